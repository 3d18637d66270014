#include "window/heap.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <random>

#include "base/status.h"
#include "window/kinds.h"

namespace pc {
namespace {

constexpr size_t kKept = 64 << 20;  // bytes kept for later arrays beyond as many as are in use

std::atomic<Heap*> newest{nullptr};  // of this process or, after a fork, of its parent
std::mutex making;  // of a heap, and of the list of those attached

// That of the machine, and at most what a process that maps the heap of a rank for each core has addresses for.
size_t most_bytes() {
  const auto bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return std::min(bytes, whole_pages((size_t{1} << 45) / static_cast<size_t>(sysconf(_SC_NPROCESSORS_CONF))));
}

// A core dump would otherwise take memory for all that was never allocated.
void omit_from_dumps(const Segment& segment) { madvise(segment.data(), segment.bytes(), MADV_DONTDUMP); }

uint64_t file_of(const Segment& segment) {
  struct stat file{};
  return fstat(segment.descriptor(), &file) == 0 ? file.st_ino : 0;
}

uint64_t& proof_in(const Segment& segment) { return *reinterpret_cast<uint64_t*>(segment.data()); }

}  // namespace

Heap& Heap::of_process() {
  const std::lock_guard lock(making);
  if (Heap* const found = existing()) return *found;
  static const int registered = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  if (registered != 0) throw SystemFailure("no room for a handler of forks");
  auto* const made = new Heap(most_bytes());  // never destroyed: arrays may outlive everything
  made->older_ = newest.load();
  newest.store(made, std::memory_order_release);
  own_.store(made, std::memory_order_release);
  return *made;
}

Heap::Heap(size_t bytes) : segment_(create_segment("memfd", bytes)), file_(file_of(*segment_)), end_(kPage) {
  omit_from_dumps(*segment_);
  segment_->reserve(0, kPage);
  std::random_device random;
  proof_in(*segment_) = static_cast<uint64_t>(random()) << 32 | random();
}

bool Heap::owned(const void* address) {
  for (const Heap* heap = newest.load(std::memory_order_acquire); heap != nullptr; heap = heap->older_)
    if (heap->holds(address)) return true;
  return false;
}

void Heap::free(void* address) {
  Heap* const heap = existing();
  if (heap == nullptr || !heap->holds(address)) return;
  const std::lock_guard lock(heap->mutex_);
  heap->release(static_cast<size_t>(heap->offset(address)));
}

void Heap::retire(const void* address) {
  Heap* const heap = existing();
  const int64_t offset = heap == nullptr ? -1 : heap->position(address, 1);
  if (offset < 0) return;
  const std::lock_guard lock(heap->mutex_);
  const auto next = heap->used_.upper_bound(static_cast<size_t>(offset));
  if (next != heap->used_.begin()) heap->retired_.insert(std::prev(next)->first);
}

void* Heap::allocate(size_t bytes, bool& zeroed) {
  if (bytes > segment_->bytes()) return nullptr;
  const size_t wanted = whole_pages(std::max<size_t>(bytes, 1));
  const std::lock_guard lock(mutex_);
  size_t offset = end_;
  Free block{wanted, false};
  if (const auto fits = by_size_.lower_bound({wanted, 0}); fits != by_size_.end()) {
    offset = fits->second;
    const auto found = free_.find(offset);
    block = found->second;
    remove_free(found);
  } else if (segment_->bytes() - end_ < wanted) {
    return nullptr;
  } else {
    end_ += wanted;
  }
  if (!block.backed) {
    try {
      if (file_of(*segment_) != file_) throw SystemFailure("the program has closed the descriptor of its heap");
      segment_->reserve(offset, wanted);
    } catch (const SystemFailure&) {
      add_free(offset, block);
      return nullptr;
    }
  }
  if (block.bytes > wanted) add_free(offset + wanted, {block.bytes - wanted, block.backed});
  used_.emplace(offset, wanted);
  used_bytes_ += wanted;
  zeroed = !block.backed;
  return segment_->data() + offset;
}

void Heap::release(size_t offset) {
  const auto found = used_.find(offset);
  if (found == used_.end() || retired_.contains(offset)) return;
  used_bytes_ -= found->second;
  add_free(offset, {found->second, true});
  used_.erase(found);
  trim();
}

bool Heap::adopt(size_t bytes, const std::function<void*()>& provide) {
  bool zeroed = false;
  char* const at = static_cast<char*>(allocate(bytes, zeroed));
  if (at == nullptr) return false;
  const auto place = static_cast<size_t>(offset(at));
  try {
    char* const address = static_cast<char*>(provide());
    std::memcpy(at, address, bytes);
    const std::lock_guard lock(mutex_);
    forget_adopted(address, bytes);
    map(address, bytes, place, MAP_SHARED);
    adopted_.emplace(address, Adopted{bytes, place});
    any_adopted_.store(true, std::memory_order_release);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    release(place);
    throw;
  }
  return true;
}

void Heap::abandon(void* address) {
  Heap* const heap = existing();
  if (heap == nullptr) return;
  const std::lock_guard lock(heap->mutex_);
  heap->forget_adopted(static_cast<const char*>(address), 1);
}

void Heap::forget_adopted(const char* address, size_t bytes) {
  auto found = adopted_.upper_bound(address);
  if (found != adopted_.begin() && std::prev(found)->first + std::prev(found)->second.bytes > address) --found;
  while (found != adopted_.end() && found->first < address + bytes) {
    release(found->second.offset);
    found = adopted_.erase(found);
  }
  any_adopted_.store(!adopted_.empty(), std::memory_order_release);
}

int64_t Heap::adopted_position(const void* address, size_t bytes) const {
  const char* const at = static_cast<const char*>(address);
  const std::lock_guard lock(mutex_);
  const auto next = adopted_.upper_bound(at);
  if (next == adopted_.begin()) return -1;
  const auto& [begin, memory] = *std::prev(next);
  return at + bytes <= begin + memory.bytes ? static_cast<int64_t>(memory.offset) + (at - begin) : -1;
}

// Joins it with its neighbours that have memory if it has, or have none either.
void Heap::add_free(size_t offset, Free block) {
  const auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + block.bytes && next->second.backed == block.backed) {
    block.bytes += next->second.bytes;
    remove_free(next);
  }
  const auto after = free_.lower_bound(offset);
  const auto before = after == free_.begin() ? free_.end() : std::prev(after);
  if (before != free_.end() && before->first + before->second.bytes == offset &&
      before->second.backed == block.backed) {
    offset = before->first;
    block.bytes += before->second.bytes;
    remove_free(before);
  }
  free_.emplace(offset, block);
  by_size_.emplace(block.bytes, offset);
  if (block.backed) kept_bytes_ += block.bytes;
}

// Gives memory back, from the largest free blocks, until no more than is in use is kept, and a little.
void Heap::trim() {
  while (kept_bytes_ > used_bytes_ + kKept) {
    const auto largest = std::find_if(by_size_.rbegin(), by_size_.rend(),
                                      [this](const auto& each) { return free_.at(each.second).backed; });
    const auto [bytes, offset] = *largest;
    if (madvise(segment_->data() + offset, bytes, MADV_REMOVE) != 0) return;
    remove_free(free_.find(offset));
    add_free(offset, {bytes, false});
  }
}

void Heap::remove_free(std::map<size_t, Free>::iterator block) {
  if (block->second.backed) kept_bytes_ -= block->second.bytes;
  by_size_.erase({block->second.bytes, block->first});
  free_.erase(block);
}

size_t Heap::room(const void* address) {
  for (const Heap* heap = newest.load(std::memory_order_acquire); heap != nullptr; heap = heap->older_) {
    if (!heap->holds(address)) continue;
    std::unique_lock lock(heap->mutex_, std::defer_lock);
    if (heap == existing()) lock.lock();  // that of a parent does not change
    const auto found = heap->used_.find(static_cast<size_t>(heap->offset(address)));
    return found == heap->used_.end() ? 0 : found->second;
  }
  return 0;
}

size_t Heap::used() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

size_t Heap::retained() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_ + kept_bytes_;
}

std::string Heap::token() const { return segment_->token() + "/" + std::to_string(proof_in(*segment_)); }

// The child must find the heap's lists whole.
void Heap::before_fork() {
  making.lock();
  if (Heap* const heap = existing()) heap->mutex_.lock();
}

void Heap::after_fork_in_parent() {
  if (Heap* const heap = existing()) heap->mutex_.unlock();
  making.unlock();
}

void Heap::after_fork_in_child() {
  if (Heap* const heap = existing()) {
    heap->make_private();
    heap->mutex_.unlock();
    own_.store(nullptr, std::memory_order_release);
  }
  making.unlock();
}

// In place of what is mapped at the address.
void Heap::map(void* address, size_t bytes, size_t offset, int sharing) const {
  const int how = sharing | MAP_FIXED | MAP_NORESERVE;
  const auto from = static_cast<off_t>(offset);
  if (file_of(*segment_) != file_ ||
      mmap(address, bytes, PROT_READ | PROT_WRITE, how, segment_->descriptor(), from) == MAP_FAILED)
    throw SystemFailure("cannot map memory of the heap");
}

// Without it, what the child writes to its parent's arrays would be the parent's.
void Heap::make_private() {
  try {
    map(segment_->data(), end_, 0, MAP_PRIVATE);
    for (const auto& [address, memory] : adopted_)
      map(const_cast<char*>(address), memory.bytes, memory.offset, MAP_PRIVATE);
  } catch (const SystemFailure&) {
    constexpr char kWhy[] = "pycollective: a forked process ends, since it cannot copy its parent's shared arrays\n";
    static_cast<void>(write(STDERR_FILENO, kWhy, sizeof kWhy - 1));
    _exit(127);
  }
  omit_from_dumps(*segment_);
  segment_->seal();
}

std::shared_ptr<Segment> attach_heap(const std::string& token) {
  const size_t slash = token.find('/'), colon = token.rfind(':', slash);
  if (slash == std::string::npos || colon == std::string::npos) throw InvalidArgument("malformed token " + token);
  uint64_t bytes = 0, proof = 0;
  parse_numbers("bytes:" + token.substr(colon + 1, slash - colon - 1), "bytes", {&bytes});
  parse_numbers("proof:" + token.substr(slash + 1), "proof", {&proof});
  static auto& attached = *new std::map<std::string, std::weak_ptr<Segment>>;  // also while the process ends
  const std::lock_guard lock(making);
  if (std::shared_ptr<Segment> known = attached[token].lock()) return known;
  const std::string name = token.substr(0, slash);
  std::shared_ptr<Segment> segment = attach_segment(name, bytes);
  omit_from_dumps(*segment);
  segment->seal();
  if (bytes < kPage || proof_in(*segment) != proof) refuse(name, "it is another process's heap");
  std::erase_if(attached, [](const auto& each) { return each.second.expired(); });
  attached[token] = segment;
  return segment;
}

}  // namespace pc
