#include "check.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <vector>

namespace pc::test {
namespace {

constexpr int kMostShown = 20;

struct Row {
  const char* name;
  void (*body)();
};

std::vector<Row>& rows() {
  static std::vector<Row> instance;
  return instance;
}

std::atomic<int> failures{0};

}  // namespace

Registered::Registered(const char* name, void (*body)()) { rows().push_back({name, body}); }

void fail(const char* file, int line, const std::string& what) {
  const char* slash = std::strrchr(file, '/');
  if (failures.fetch_add(1) < kMostShown)
    std::fprintf(stderr, "%s:%d: %s\n", slash != nullptr ? slash + 1 : file, line, what.c_str());
}

}  // namespace pc::test

// Runs every test whose name starts with one of the arguments; all without arguments.
int main(int argc, char** argv) {
  using namespace pc::test;
  int ran = 0, wrong = 0;
  for (const Row& row : rows()) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted |= std::strncmp(row.name, argv[i], std::strlen(argv[i])) == 0;
    if (!wanted) continue;
    const int before = failures.load();
    row.body();
    ++ran;
    if (failures.load() != before) {
      ++wrong;
      std::fprintf(stderr, "FAILED %s (%d checks)\n", row.name, failures.load() - before);
    } else {
      std::printf("passed %s\n", row.name);
    }
  }
  if (ran == 0) std::fprintf(stderr, "no test with that name\n");
  return ran == 0 || wrong > 0 ? 1 : 0;
}
