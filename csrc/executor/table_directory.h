// Which rank compiles a schedule for all ranks of a host, and where it has put their tables.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "window/segment.h"

namespace pc {

// The ranks of a communicator need the same schedules at about the same time.  The first to ask for one compiles it;
// the others wait, and read their tables from memory that it has shared.  An entry is never reused for another
// schedule. All that is read here is a hint: the reader checks what the token names, and compiles itself in any doubt.
class TableDirectory {
 public:
  struct Tables {
    std::string token;  // of a segment (see attach_segment); empty: the caller is to compile and publish the tables
    size_t bytes = 0;
  };

  static size_t segment_bytes();
  // `offset`: of segment_bytes() bytes, initially zero, that no one else uses.
  TableDirectory(std::shared_ptr<Segment> segment, size_t offset, int32_t rank);

  // Blocks while a rank compiles.  Called now and then meanwhile: `lost(rank)`, whether that rank may never finish,
  // which hands its task to the caller; `check()` throws if there is nothing to wait for any more.
  // Nothing: the caller should compile for itself.
  std::optional<Tables> acquire(uint64_t key, const std::function<bool(int32_t)>& lost,
                                const std::function<void()>& check);
  // By the rank that compiles.  Throws InvalidArgument for a token that is too long.
  void publish(uint64_t key, const Tables& tables);
  void fail(uint64_t key);
  // How many ranks have read the tables.
  void note_taken(uint64_t key);
  uint32_t taken(uint64_t key);

 private:
  struct Entry;
  Entry* find(uint64_t key);
  void settle(uint64_t key, uint32_t state);

  std::shared_ptr<Segment> segment_;
  Entry* entries_;
  uint32_t mine_;  // the state of an entry for which this rank compiles
};

}  // namespace pc
