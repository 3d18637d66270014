// The heap of a process: its blocks are disjoint, reused and given back, and only what it names is attached.
#include "window/heap.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <random>

#include "base/status.h"
#include "check.h"

namespace pc::test {
namespace {

constexpr size_t kPage = 4096;

bool is_filled(const char* at, size_t bytes, char with) {
  return bytes == 0 || (at[0] == with && std::memcmp(at, at + 1, bytes - 1) == 0);
}

char* six_pages() {
  return static_cast<char*>(mmap(nullptr, 6 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

PC_TEST(heap_blocks_are_disjoint_and_zero_if_it_says_so) {
  Heap& heap = Heap::of_process();
  std::mt19937 random(5);
  std::map<char*, std::pair<size_t, char>> blocks;
  for (int step = 0; step < 3000; ++step) {
    if (blocks.size() > 40 || (!blocks.empty() && random() % 3 == 0)) {
      const auto block = std::next(blocks.begin(), random() % blocks.size());
      PC_CHECK(is_filled(block->first, block->second.first, block->second.second), "another block overlaps it");
      PC_CHECK(Heap::room(block->first) >= block->second.first, "room");
      Heap::free(block->first);
      blocks.erase(block);
      continue;
    }
    const size_t bytes = random() % 64 == 0 ? 40 << 20 : 1 + random() % (100 * kPage);
    bool zeroed = false;
    auto* const at = static_cast<char*>(heap.allocate(bytes, zeroed));
    PC_CHECK(at != nullptr && heap.contains(at, bytes) && heap.offset(at) % kPage == 0, bytes);
    PC_CHECK(!zeroed || is_filled(at, bytes, 0), "not zero");
    const char with = static_cast<char>(1 + random() % 100);
    std::memset(at, with, bytes);
    blocks[at] = {bytes, with};
    PC_CHECK(heap.retained() <= 2 * heap.used() + (64 << 20), "memory is given back");
  }
  for (const auto& [at, block] : blocks) Heap::free(at);
  PC_CHECK(heap.used() == 0, heap.used());
}

PC_TEST(heap_that_is_full_says_so_and_serves_again_when_something_is_freed) {
  Heap heap(16 * kPage);
  bool zeroed = false;
  void* const first = heap.allocate(10 * kPage, zeroed);
  PC_CHECK(first != nullptr, "15 pages are free");
  for (const size_t bytes : {6 * kPage, 16 * kPage, SIZE_MAX, SIZE_MAX - kPage})
    PC_CHECK(heap.allocate(bytes, zeroed) == nullptr, bytes);
  PC_CHECK(heap.allocate(5 * kPage, zeroed) != nullptr, "all that is left");
  Heap::of_process();
  Heap::free(Heap::of_process().allocate(kPage, zeroed));
  PC_CHECK(Heap::of_process().allocate(SIZE_MAX, zeroed) == nullptr, "no wrap around");
}

PC_TEST(heap_memory_that_is_retired_is_not_reused) {
  Heap& heap = Heap::of_process();
  bool zeroed = false;
  void* const at = heap.allocate(20 * kPage, zeroed);
  Heap::retire(static_cast<char*>(at) + 3 * kPage);
  Heap::free(at);
  for (int i = 0; i < 100; ++i) PC_CHECK(heap.allocate(20 * kPage, zeroed) != at, "retired");
}

PC_TEST(heap_adopts_memory_that_keeps_its_address) {
  Heap heap(64 * kPage);
  constexpr size_t kBytes = 5 * kPage + 100;
  char* const memory = six_pages();
  std::memset(memory, 3, kBytes);
  PC_CHECK(heap.position(memory, 1) < 0, "not yet");
  PC_CHECK(heap.adopt(kBytes, [&] { return memory; }) && is_filled(memory, kBytes, 3), "its content is kept");
  const int64_t at = heap.position(memory + 50, kBytes - 50);
  PC_CHECK(at > 0 && heap.position(memory, kBytes) == at - 50, at);
  memory[50] = 9;
  PC_CHECK(heap.data()[at] == 9, "one memory");
  PC_CHECK(heap.position(memory + 50, kBytes) < 0 && heap.position(memory - 1, 1) < 0, "beyond it");
  PC_CHECK(!heap.adopt(64 * kPage, [&] { return memory; }) && heap.position(memory, kBytes) == at - 50, "no room");
  munmap(memory, 6 * kPage);
}

PC_TEST(heap_frees_what_it_has_adopted_unless_it_is_retired) {
  for (const bool retired : {false, true}) {
    char* const memory = six_pages();
    Heap& heap = Heap::of_process();
    const size_t before = heap.used();
    heap.adopt(6 * kPage, [&] { return memory; });
    if (retired) Heap::retire(memory + 2 * kPage);
    Heap::abandon(memory);
    Heap::abandon(memory);
    PC_CHECK((heap.used() == before) == !retired, heap.used());
    PC_CHECK(heap.position(memory, 1) < 0, "forgotten");
    munmap(memory, 6 * kPage);
  }
}

PC_TEST(heap_that_is_attached_is_the_one_named) {
  const Heap heap(64 * kPage), other(64 * kPage);
  const std::string token = heap.token();
  const auto attached = attach_heap(token);
  heap.data()[5000] = 7;
  PC_CHECK(attached->data()[5000] == 7 && attach_heap(token) == attached, "one mapping of the same memory");
  const size_t slash = token.find('/');
  const std::string head = token.substr(0, slash), tail = token.substr(slash);
  const std::string others = head + other.token().substr(other.token().find('/'));
  for (const std::string& name :
       {std::string(), std::string("memfd"), std::string("memfd:x/1"), head, tail, token + "0", others})
    PC_CHECK_THROWS(InvalidArgument, attach_heap(name), name);
}

}  // namespace
}  // namespace pc::test
