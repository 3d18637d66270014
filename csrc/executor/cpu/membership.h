// Which ranks a team has, and how they are numbered.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "executor/control.h"

namespace pc {

struct Membership {
  std::vector<int32_t> members;  // by rank: its number in the communicator; a channel's team has two of its ranks
  std::vector<int32_t> world;    // by rank: its number in the world
  std::vector<int32_t> here;     // of a communicator, the ranks of this host
  std::vector<int32_t> local;    // by rank: its index among them; -1: on another host
  int32_t rank, size;            // last: near to what else every call reads of a team

  int32_t operator[](int32_t r) const { return members[static_cast<size_t>(r)]; }
  int32_t self() const { return members[static_cast<size_t>(rank)]; }
  // The rank of a member; `size`: it has none here.
  int32_t find(int32_t member) const {
    return static_cast<int32_t>(std::find(members.begin(), members.end(), member) - members.begin());
  }
  // For messages: "1 (world rank 3)", and the same after "rank".
  std::string number(int32_t r) const {
    return rank_number(members[static_cast<size_t>(r)], world[static_cast<size_t>(r)]);
  }
  std::string label(int32_t r) const { return "rank " + number(r); }
  std::string label_of_member(int32_t member) const {
    const int32_t r = find(member);
    return r < size ? label(r) : "rank " + std::to_string(member);
  }
};

}  // namespace pc
