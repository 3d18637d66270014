#include "executor/cpu/staging.h"

#include <algorithm>

namespace pc {

void Staging::Side::use(int32_t chunk) {
  if (index[chunk] >= 0) return;
  index[chunk] = static_cast<int32_t>(chunks.size());
  chunks.push_back(chunk);
}

void Staging::find_chunks() {
  const ScheduleView s = plan_->schedule->view();
  for (Side* side : {&input_, &output_}) side->index.assign(s.chunks(), -1);
  const auto use = [&](int32_t rank, int32_t place, int32_t chunk) {
    if (rank != s.rank() || place >= 0) return;
    (place == kPlaceInput ? input_ : output_).use(chunk);
  };
  Step step = s.first();
  for (int32_t i = 0; i < s.steps(); ++i, step = step.next()) {
    for (int32_t k = 0; !step.receives() && k < step.sources(); ++k)
      use(step.source(k).rank, step.source(k).place, step.chunk());
    for (int32_t m = 0; !step.sends() && m < step.targets(); ++m)
      use(step.target(m).rank, step.target(m).place, step.chunk());
  }
}

void Staging::begin(const Plan& plan) {
  plan_ = &plan;
  depth_ = plan.schedule->view().depth();
  tile_bytes_ = plan.tile_elements * static_cast<int64_t>(plan.element);
  find_chunks();
  slots_.resize(static_cast<size_t>(std::min(plan.tiles, depth_ + kAhead)));
  const auto bytes = [&](const Side& side) {
    return static_cast<uint64_t>(tile_bytes_) * side.chunks.size() * slots_.size();
  };
  if (bytes(input_) + bytes(output_) > 0) {
    input_.staged = copies_.memory(copies_.self, bytes(input_) + bytes(output_));
    if (input_.staged == nullptr) fail();
    else output_.staged = input_.staged + bytes(input_);
  }
  // Copies to the device from these slots may be in progress for the previous call.
  const uint64_t before = output_.chunks.empty() ? 0 : copies_.mark(copies_.self, CopyDirection::to_device);
  for (Slot& slot : slots_) slot.stored = before;
  fetch_ahead(0);
}

bool Staging::fail() {
  if (failure_.empty()) failure_ = copies_.error(copies_.self);
  return false;
}

bool Staging::taken(Slot& slot) {
  std::erase_if(slot.held, [](const Held& each) { return each.peer->sent() >= each.posted; });
  return slot.held.empty();
}

bool Staging::reached(CopyDirection direction, uint64_t mark) {
  if (mark == 0) return true;
  const int32_t state = copies_.reached(copies_.self, direction, mark);
  return state < 0 ? fail() : state > 0;
}

int64_t Staging::staged_at(const Side& side, int32_t chunk, int64_t tile) const {
  const auto slots = static_cast<int64_t>(slots_.size()), chunks = static_cast<int64_t>(side.chunks.size());
  return (tile % slots * chunks + side.index[chunk]) * tile_bytes_;
}

char* Staging::place(bool input, int32_t chunk, int64_t begin, int64_t skip) const {
  const Side& side = input ? input_ : output_;
  return side.staged + staged_at(side, chunk, begin / plan_->tile_elements) +
         skip * static_cast<int64_t>(plan_->element);
}

// Enqueues a tile's copies; returns the mark after them.
uint64_t Staging::copy(const Side& side, const std::vector<int64_t>& offsets, CopyDirection direction, int64_t tile) {
  const int64_t begin = tile * plan_->tile_elements;
  const auto element = static_cast<int64_t>(plan_->element);
  bool any = false;
  for (const int32_t chunk : side.chunks) {
    const int64_t count = std::min(plan_->tile_elements, plan_->layout.length[chunk] - begin);
    if (count <= 0) continue;
    char* const on_device = side.device + (offsets[chunk] + begin) * element;
    char* const on_host = side.staged + staged_at(side, chunk, tile);
    const bool fetches = direction == CopyDirection::to_host;
    any = true;
    if (!copies_.copy(copies_.self, direction, fetches ? on_host : on_device, fetches ? on_device : on_host,
                      static_cast<uint64_t>(count * element))) {
      fail();
      return 0;
    }
  }
  if (!any) return 0;
  const uint64_t mark = copies_.mark(copies_.self, direction);
  if (mark == 0) fail();
  return mark;
}

// The slot of a tile is free for the next one's input after the iteration `depth` later has begun, and its messages
// have been taken.
void Staging::fetch_ahead(int64_t iteration) {
  const auto slots = static_cast<int64_t>(slots_.size());
  const int64_t last = slots == plan_->tiles ? slots : std::min(plan_->tiles, iteration - depth_ + 1 + slots);
  for (; fetched_ < last && failure_.empty() && taken(slot(fetched_)); ++fetched_)
    slot(fetched_).fetched = copy(input_, plan_->layout.input_offset, CopyDirection::to_host, fetched_);
}

void Staging::advance(int64_t iteration) {
  const int64_t last = std::min(plan_->tiles, iteration - depth_ + 1);
  for (; stored_ < last && failure_.empty(); ++stored_)
    slot(stored_).stored = copy(output_, plan_->layout.output_offset, CopyDirection::to_device, stored_);
}

bool Staging::ready(int64_t tile) {
  advance(tile);
  fetch_ahead(tile);
  if (!failure_.empty() || fetched_ <= tile) return false;
  return reached(CopyDirection::to_device, slot(tile).stored) && reached(CopyDirection::to_host, slot(tile).fetched);
}

}  // namespace pc
