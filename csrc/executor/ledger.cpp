#include "executor/ledger.h"

#include <algorithm>

#include "base/status.h"

namespace pc {

size_t Ledger::segment_bytes(int32_t size) {
  if (size < 1) throw InvalidArgument("a ledger of " + std::to_string(size) + " ranks");
  return sizeof(Note) * kKept * static_cast<size_t>(size);
}

Ledger::Ledger(std::shared_ptr<Segment> segment, int32_t rank, int32_t size)
    : segment_(std::move(segment)), notes_(reinterpret_cast<Note*>(segment_->data())), rank_(rank), size_(size) {
  check_rank(rank);
  if (segment_->bytes() < segment_bytes(size))
    throw InvalidArgument("the segment is smaller than a ledger of " + std::to_string(size) + " ranks needs");
}

void Ledger::check_rank(int32_t rank) const {
  if (rank < 0 || rank >= size_)
    throw InvalidArgument("rank " + std::to_string(rank) + " is not one of a ledger of " + std::to_string(size_));
}

int32_t Ledger::note(uint64_t digest, const std::string& text) {
  const uint64_t call = ++calls_;
  Note& mine = at(rank_, call);
  mine.call.store(0, std::memory_order_relaxed);  // of a call that ended long ago: not readable while it is overwritten
  for (size_t i = 0; i < sizeof mine.text; ++i)
    mine.text[i].store(i < text.size() && i + 1 < sizeof mine.text ? text[i] : '\0', std::memory_order_relaxed);
  mine.digest.store(digest, std::memory_order_relaxed);
  // Sequentially consistent, as are the loads: of two ranks at least one sees the other's record.
  mine.call.store(call, std::memory_order_seq_cst);
  for (int32_t rank = 0; rank < size_; ++rank) {
    const Note& theirs = at(rank, call);
    if (theirs.call.load(std::memory_order_seq_cst) == call && theirs.digest.load(std::memory_order_relaxed) != digest)
      return rank;
  }
  return -1;
}

std::string Ledger::read(const Note& note) {
  std::string found;
  for (const auto& letter : note.text) {
    const char c = letter.load(std::memory_order_relaxed);
    if (c == '\0') break;
    found += c;
  }
  return found;
}

int64_t Ledger::calls(int32_t rank) const {
  check_rank(rank);
  uint64_t latest = 0;
  for (uint64_t slot = 0; slot < kKept; ++slot)
    latest = std::max(latest, at(rank, slot).call.load(std::memory_order_acquire));
  return static_cast<int64_t>(latest);
}

std::string Ledger::counterpart(int32_t rank) const {
  check_rank(rank);
  return read(at(rank, calls_));
}

std::string Ledger::text(int32_t rank, uint64_t digest) const {
  check_rank(rank);
  for (uint64_t slot = 0; slot < kKept; ++slot) {
    const Note& note = at(rank, slot);
    if (note.call.load(std::memory_order_acquire) == 0 || note.digest.load(std::memory_order_relaxed) != digest)
      continue;
    return read(note);
  }
  return {};
}

}  // namespace pc
