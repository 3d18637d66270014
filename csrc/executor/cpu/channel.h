// What a team of two ranks has of the communicator that it is a channel of: for messages from one rank to the other.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "executor/control.h"
#include "executor/cpu/hosts/remote.h"

namespace pc {

struct Channel {
  int64_t number;  // among those of the communicator
  Control control;             // of the communicator
  std::vector<int32_t> world;  // the numbers of its ranks in the world
  std::vector<std::shared_ptr<Remote>> remotes;  // own blocks of `control`
  std::unique_ptr<RankBlock> own;                // this rank's block, if the other rank is on another host
};

}  // namespace pc
