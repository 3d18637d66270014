#include "executor/table_directory.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>

#include "base/status.h"

namespace pc {
namespace {

constexpr size_t kEntries = 1024;  // schedules of one communicator; further ones are compiled by every rank
constexpr auto kLookEvery = std::chrono::milliseconds(50);
constexpr auto kPatience = std::chrono::seconds(60);  // a rank whose process cannot be watched may have ended
constexpr uint32_t kIdle = 0, kReady = 1, kFailed = 2, kCompiling = 3;  // kCompiling + rank

}  // namespace

struct alignas(64) TableDirectory::Entry {
  std::atomic<uint64_t> key;    // 0: free
  std::atomic<uint32_t> state;  // a futex
  std::atomic<uint32_t> taken;
  size_t bytes;
  char token[104];
};

size_t TableDirectory::segment_bytes() { return kEntries * sizeof(Entry); }

TableDirectory::TableDirectory(std::shared_ptr<Segment> segment, size_t offset, int32_t rank)
    : segment_(std::move(segment)), mine_(kCompiling + static_cast<uint32_t>(rank)) {
  if (rank < 0 || offset % alignof(Entry) != 0 || offset > segment_->bytes() ||
      segment_bytes() > segment_->bytes() - offset)
    throw InvalidArgument("the segment has no room for a directory of tables there");
  entries_ = reinterpret_cast<Entry*>(segment_->data() + offset);
}

TableDirectory::Entry* TableDirectory::find(uint64_t key) {
  for (size_t probe = 0; key != 0 && probe < kEntries; ++probe) {
    Entry& entry = entries_[(key + probe) % kEntries];
    uint64_t found = 0;
    if (entry.key.compare_exchange_strong(found, key) || found == key) return &entry;
  }
  return nullptr;
}

std::optional<TableDirectory::Tables> TableDirectory::acquire(uint64_t key, const std::function<bool(int32_t)>& lost,
                                                              const std::function<void()>& check) {
  Entry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    uint32_t state = entry->state.load(std::memory_order_acquire);
    if (state == kReady) return Tables{{entry->token, strnlen(entry->token, sizeof entry->token)}, entry->bytes};
    // Its own entry: this thread, or another one of this rank, compiles it already, for this or an outer call.
    if (state == kFailed || state == mine_) return std::nullopt;
    if (state == kIdle || lost(static_cast<int32_t>(state - kCompiling))) {
      if (entry->state.compare_exchange_strong(state, mine_)) return Tables{};
      continue;
    }
    check();
    const timespec nap{0, std::chrono::nanoseconds(kLookEvery).count()};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&entry->state), FUTEX_WAIT, state, &nap, nullptr, 0);
  }
  return std::nullopt;
}

void TableDirectory::publish(uint64_t key, const Tables& tables) {
  if (tables.token.size() >= sizeof Entry::token) throw InvalidArgument("a token that does not fit the directory");
  Entry* entry = find(key);
  if (entry == nullptr || entry->state.load(std::memory_order_relaxed) != mine_) return;  // taken over meanwhile
  entry->bytes = tables.bytes;
  std::memcpy(entry->token, tables.token.c_str(), tables.token.size() + 1);
  settle(key, kReady);
}

void TableDirectory::fail(uint64_t key) { settle(key, kFailed); }

void TableDirectory::settle(uint64_t key, uint32_t state) {
  Entry* entry = find(key);
  uint32_t compiling = mine_;
  if (entry == nullptr || !entry->state.compare_exchange_strong(compiling, state)) return;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&entry->state), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void TableDirectory::note_taken(uint64_t key) {
  if (Entry* entry = find(key)) entry->taken.fetch_add(1, std::memory_order_relaxed);
}

uint32_t TableDirectory::taken(uint64_t key) {
  const Entry* entry = find(key);
  return entry == nullptr ? 0 : entry->taken.load(std::memory_order_relaxed);
}

}  // namespace pc
