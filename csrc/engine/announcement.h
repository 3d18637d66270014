// What one rank announces about one operation, and how that is sent where ranks share no memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/signature.h"

namespace pc::engine {

struct Announcement {
  std::string name;
  Signature signature;
  int32_t priority = 0;
  int64_t bytes = 0;
  int64_t place = -1;  // where in the ranks' windows the array lies, the same number on all ranks; -1: elsewhere
  int64_t rows = 0;    // of this rank's array, where ranks may differ
  int32_t slot = -1;   // result of Board::announce()
};

// Of the names that are submitted together, whatever their order: Signature::group.  0: of less than two.
uint64_t group_of(const std::vector<std::string>& names);

// Names are told apart by 128 bits of hash; the text is for messages.
struct NameHash {
  uint64_t words[2];
  bool operator==(const NameHash&) const = default;
};
NameHash hash_of(std::string_view name);

// For the ranks of another host: all but the place and the slot, which mean something on one host alone.
std::string encode(const Announcement& announcement);
// Throws InvalidArgument for bytes that no rank has encoded.
Announcement decode(std::string_view bytes);

}  // namespace pc::engine
