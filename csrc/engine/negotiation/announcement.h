// One rank's announcement of an operation, and its encoding for ranks that share no memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/negotiation/signature.h"

namespace pc::engine {

// Names are compared by 128 bits of hash; the text is for messages.
struct NameHash {
  uint64_t words[2];
  bool operator==(const NameHash&) const = default;
};
NameHash hash_of(std::string_view name);

struct Announcement {
  std::string name;
  Signature signature;
  int32_t priority = 0;
  int64_t bytes = 0;
  int64_t place = -1;  // the array's place in the ranks' windows, equal on all ranks; -1: not in a window
  int64_t rows = 0;    // of this rank's array, if ranks may differ
  int32_t slot = -1;   // result of Board::announce(), and where it looks first if the operation is announced again
  NameHash hash{};     // of the name; zero: not computed yet
};

// Hash of the names that are submitted together, in any order: Signature::group.  0: fewer than two.
uint64_t group_of(const std::vector<std::string>& names);

// For ranks on other hosts: all but the place and the slot, which are local to a host.
std::string encode(const Announcement& announcement);
// Throws InvalidArgument for malformed bytes.
Announcement decode(std::string_view bytes);

}  // namespace pc::engine
