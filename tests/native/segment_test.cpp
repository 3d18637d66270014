// Shared memory of every kind: created, attached by another process, sealed, and gone without a trace.
#include "window/segment.h"

#include <dirent.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/status.h"
#include "check.h"

namespace pc::test {
namespace {

constexpr const char* kShared[] = {"memfd", "posix_shm"};
constexpr size_t kBytes = 3 << 20;

// Names in /dev/shm that carry this process's number.
std::set<std::string> own_names() {
  std::set<std::string> names;
  const std::string mark = "-" + std::to_string(getpid()) + "-";
  if (DIR* folder = opendir("/dev/shm")) {
    while (const dirent* entry = readdir(folder))
      if (std::strstr(entry->d_name, mark.c_str()) != nullptr) names.insert(entry->d_name);
    closedir(folder);
  }
  return names;
}

int open_files() {
  int count = 0;
  if (DIR* folder = opendir("/proc/self/fd")) {
    while (readdir(folder) != nullptr) ++count;
    closedir(folder);
  }
  return count;
}

// Exit code of body() in a child process.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    int code = 99;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

PC_TEST(segment_is_seen_by_another_process) {
  for (const char* kind : kShared) {
    const int files = open_files();
    {
      const auto mine = create_segment(kind, kBytes);
      mine->reserve(0, kBytes);
      PC_CHECK(mine->bytes() == kBytes, kind);
      PC_CHECK(std::all_of(mine->data(), mine->data() + kBytes, [](char c) { return c == 0; }), kind,
               " begins as zeros");
      mine->data()[0] = 'a';
      const std::string token = mine->token();
      const int code = in_child([&] {
        const auto theirs = attach_segment(token);
        if (theirs->bytes() != kBytes || theirs->data()[0] != 'a') return 1;
        theirs->data()[kBytes - 1] = 'z';
        return 0;
      });
      PC_CHECK(code == 0, kind, ": the child ended with ", code);
      PC_CHECK(mine->data()[kBytes - 1] == 'z', kind, ": what the child wrote");
      mine->seal();
      mine->data()[1] = 'b';  // still mapped
      PC_CHECK(own_names().empty(), kind, " has a name after seal()");
      PC_CHECK_THROWS(SystemFailure, attach_segment(token), kind, " attached after seal()");
    }
    PC_CHECK(own_names().empty(), kind, " left a name");
    PC_CHECK(open_files() == files, kind, " left open files");
  }
}

PC_TEST(segment_unsealed_leaves_nothing_either) {
  const int files = open_files();
  for (const char* kind : kShared) {
    {
      const auto dropped = create_segment(kind, kBytes);
    }
    PC_CHECK(own_names().empty(), kind);
  }
  PC_CHECK(open_files() == files, "open files");
}

PC_TEST(segment_attached_here_is_the_same_memory) {
  for (const char* kind : {"memfd", "posix_shm", "local"}) {
    const auto mine = create_segment(kind, kBytes);
    const auto theirs = attach_segment(mine->token());
    theirs->data()[5] = 'x';
    PC_CHECK(mine->data()[5] == 'x' && theirs->bytes() == kBytes, kind);
    PC_CHECK((mine == theirs) == (std::strcmp(kind, "local") == 0), kind);
  }
}

PC_TEST(segment_of_this_process_ends_with_its_last_holder) {
  auto first = create_segment("local", kBytes);
  const std::string token = first->token();
  auto second = attach_segment(token);
  first.reset();
  second->data()[kBytes - 1] = 'x';
  second.reset();
  PC_CHECK_THROWS(InvalidArgument, attach_segment(token), "after its end");
}

PC_TEST(segment_too_large_is_an_error_that_leaves_nothing) {
  constexpr size_t kTooLarge = size_t{1} << 50;  // more than an address space holds
  const int files = open_files();
  for (const char* kind : {"memfd", "posix_shm", "local"}) {
    PC_CHECK_THROWS(SystemFailure, create_segment(kind, kTooLarge), kind);
    PC_CHECK(own_names().empty(), kind, " left a name");
  }
  struct statvfs room{};
  if (statvfs("/dev/shm", &room) == 0 && room.f_blocks > 0) {
    const auto segment = create_segment("posix_shm", 2 * room.f_blocks * room.f_frsize);
    PC_CHECK_THROWS(SystemFailure, segment->reserve(0, segment->bytes()), "more than /dev/shm holds");
  }
  PC_CHECK(own_names().empty() && open_files() == files, "left something");
}

PC_TEST(segment_tokens_that_say_nothing_are_refused) {
  PC_CHECK_THROWS(InvalidArgument, create_segment("granite", 4096), "unknown kind");
  PC_CHECK_THROWS(InvalidArgument, attach_segment("granite:1"), "unknown kind");
  PC_CHECK_THROWS(SystemFailure, attach_segment("memfd:nonsense"), "memfd");
  PC_CHECK_THROWS(InvalidArgument, attach_segment("posix_shm:nonsense"), "posix_shm");
  PC_CHECK_THROWS(SystemFailure, attach_segment("posix_shm:/pycollective-none:4096"), "posix_shm");
  PC_CHECK_THROWS(InvalidArgument, attach_segment("local:nonsense"), "local");
  PC_CHECK_THROWS(InvalidArgument, attach_segment("local:4000000000"), "local");
}

}  // namespace
}  // namespace pc::test
