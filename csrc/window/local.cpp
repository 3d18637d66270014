// Plain memory of this process, for ranks that are its threads.
#include <sys/mman.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "base/status.h"
#include "window/kinds.h"

namespace pc {
namespace {

// Never destroyed: the progress thread may drop the last reference to a segment while the process exits.
std::mutex& registry_mutex = *new std::mutex;
std::map<uint64_t, std::weak_ptr<Segment>>& registry = *new std::map<uint64_t, std::weak_ptr<Segment>>;  // by number
uint64_t next_number = 0;

class Local final : public Segment {
 public:
  explicit Local(size_t bytes) {
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) fail("cannot allocate " + std::to_string(bytes) + " bytes");
    madvise(address, bytes, MADV_HUGEPAGE);
    data_ = static_cast<char*>(address);
    bytes_ = bytes;
  }
  ~Local() override {
    munmap(data_, bytes_);
    const std::lock_guard lock(registry_mutex);
    registry.erase(number);
  }
  std::string token() const override { return "local:" + std::to_string(number); }
  void reserve(size_t, size_t) override {}
  uint64_t number = 0;
};

}  // namespace

std::shared_ptr<Segment> create_local(size_t bytes) {
  auto segment = std::make_shared<Local>(bytes);
  const std::lock_guard lock(registry_mutex);
  segment->number = next_number++;
  registry[segment->number] = segment;
  return segment;
}

std::shared_ptr<Segment> attach_local(const std::string& token, size_t bytes) {
  uint64_t number = 0;
  parse_numbers(token, "local", {&number});
  const std::lock_guard lock(registry_mutex);
  const auto found = registry.find(number);
  auto segment = found == registry.end() ? nullptr : found->second.lock();
  if (!segment) throw InvalidArgument("no such memory in this process: " + token);
  if (segment->bytes() != bytes)
    refuse(token, "it has " + std::to_string(segment->bytes()) + " bytes, not " + std::to_string(bytes));
  return segment;
}

}  // namespace pc
