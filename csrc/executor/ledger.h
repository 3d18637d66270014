// Each rank's record of the asynchronous calls it enqueues on streams.  No rank waits: of two ranks whose calls do not
// match, the later one detects it.  In shared memory that is initially zero.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "window/segment.h"

namespace pc {

class Ledger {
 public:
  static size_t segment_bytes(int32_t size);

  // Throws InvalidArgument for an invalid rank, as do the methods, and for a segment that is too small.
  Ledger(std::shared_ptr<Segment> segment, int32_t rank, int32_t size);

  // Records this rank's next call.  Returns a rank whose call of the same number has another digest, or -1.
  int32_t note(uint64_t digest, const std::string& text);
  // A rank's record of its latest call with the digest; empty if it has been overwritten.
  std::string text(int32_t rank, uint64_t digest) const;
  // Number of calls that a rank has made.
  int64_t calls(int32_t rank) const;
  // A rank's record of the call with the same number as this rank's latest.
  std::string counterpart(int32_t rank) const;

 private:
  static constexpr uint64_t kKept = 64;
  struct alignas(64) Note {
    std::atomic<uint64_t> call;  // 0: empty
    std::atomic<uint64_t> digest;
    std::atomic<char> text[240];
  };
  static std::string read(const Note& note);
  void check_rank(int32_t rank) const;  // throws InvalidArgument
  Note& at(int32_t rank, uint64_t call) const { return notes_[static_cast<uint64_t>(rank) * kKept + call % kKept]; }

  std::shared_ptr<Segment> segment_;
  Note* notes_;
  int32_t rank_, size_;
  uint64_t calls_ = 0;
};

}  // namespace pc
