// A 64-bit digest of a sequence of words and strings, identical on all ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/bits.h"

namespace pc {

// One round of MurmurHash3's finalizer per word: a bijection, so sequences that differ in one word never collide, and
// others collide with probability 2^-64.
class Digest {
 public:
  Digest& add(uint64_t word) {
    uint64_t x = state_ ^ word;
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCDull;
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53ull;
    state_ = (x ^ x >> 33) + 0x9E3779B97F4A7C15ull;
    return *this;
  }
  Digest& add(double value) { return add(bits_of(value)); }
  // The length is included, so that adjacent strings cannot exchange characters.
  Digest& add(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    for (; !text.empty(); text.remove_prefix(std::min<size_t>(text.size(), 8))) {
      uint64_t word = 0;
      std::memcpy(&word, text.data(), std::min<size_t>(text.size(), 8));
      add(word);
    }
    return *this;
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace pc
