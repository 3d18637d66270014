#include "engine/fused.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>

#include "base/environment.h"

namespace pc::engine {
namespace {

constexpr size_t kMostPlans = 4096;
constexpr int64_t kStagedBytes = 4096;  // up to here one synchronisation of a staged call beats the windows' two

// Goes through the pieces as through one buffer.
class Walk {
 public:
  explicit Walk(const std::vector<Piece>& pieces) : piece_(pieces.begin()), end_(pieces.end()) {}

  // Calls move(piece, offset in it, offset in the part, bytes) for the next `bytes` bytes.
  template <class Move>
  void part(int64_t bytes, const Move& move) {
    for (int64_t done = 0; done < bytes;) {
      const int64_t step = std::min(bytes - done, piece_->bytes - offset_);
      if (step > 0) move(*piece_, offset_, done, step);
      done += step;
      offset_ += step;
      if (offset_ == piece_->bytes) {
        ++piece_;
        offset_ = 0;
      }
    }
  }

 private:
  std::vector<Piece>::const_iterator piece_, end_;
  int64_t offset_ = 0;
};

}  // namespace

FusedAllreduce::FusedAllreduce(std::shared_ptr<Team> team, PlanMaker maker, char* buffer, int64_t bytes,
                               Timeline& timeline)
    : team_(std::move(team)),
      maker_(std::move(maker)),
      buffer_(buffer),
      tile_bytes_(bytes / 64 * 64),
      timeline_(timeline) {}

void FusedAllreduce::run(const Reduction& reduction, std::vector<Piece> pieces) {
  const auto packed = std::partition(pieces.begin(), pieces.end(), [](const Piece& p) { return p.place >= 0; });
  std::vector<Piece> others(packed, pieces.end());
  pieces.erase(packed, pieces.end());
  run_in_windows(reduction, pieces);
  run_packed(reduction, others);
}

// Neighbours are one array: their order in memory is the same on all ranks.
void FusedAllreduce::run_in_windows(const Reduction& reduction, std::vector<Piece>& pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.place < b.place; });
  for (auto first = pieces.begin(); first != pieces.end();) {
    int64_t bytes = first->bytes;
    auto next = std::next(first);
    for (; next != pieces.end() && next->place == first->place + bytes; ++next) bytes += next->bytes;
    if (bytes > 0) reduce(reduction, first->output, bytes);
    first = next;
  }
}

void FusedAllreduce::run_packed(const Reduction& reduction, const std::vector<Piece>& pieces) {
  int64_t left = 0;
  for (const Piece& piece : pieces) left += piece.bytes;
  Walk in(pieces), out(pieces);
  while (left > 0) {
    const int64_t bytes = std::min(left, tile_bytes_);
    auto span = timeline_.span(Phase::pack);
    in.part(bytes, [this](const Piece& piece, int64_t from, int64_t to, int64_t count) {
      if (piece.input != nullptr) std::memcpy(buffer_ + to, piece.input + from, static_cast<size_t>(count));
      else std::memset(buffer_ + to, 0, static_cast<size_t>(count));
    });
    span.end();
    reduce(reduction, buffer_, bytes);
    span = timeline_.span(Phase::unpack);
    out.part(bytes, [this](const Piece& piece, int64_t to, int64_t from, int64_t count) {
      if (piece.output != nullptr) std::memcpy(piece.output + to, buffer_ + from, static_cast<size_t>(count));
    });
    span.end();
    left -= bytes;
  }
}

// In place, in a window.
void FusedAllreduce::reduce(const Reduction& reduction, char* data, int64_t bytes) {
  const auto element = static_cast<int64_t>(size_of(reduction.dtype));
  Operation operation;
  const bool shared = bytes > kStagedBytes;
  operation.plan = plan_for(reduction, bytes / element, shared);
  operation.input = operation.output = data;
  if (shared) operation.input_at = operation.output_at = team_->locate(data, bytes);
  operation.timeout = std::chrono::duration<double>(environment().timeout);
  auto span = timeline_.span(Phase::reduce);
  const std::lock_guard turn(team_->one_call);
  team_->run(operation);
  span.end();
}

// A plan of any size is a copy of one of about that size: making one asks Python.
std::shared_ptr<const Plan> FusedAllreduce::plan_for(const Reduction& reduction, int64_t count, bool shared) {
  const Key key{reduction, count, shared};
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  if (plans_.size() >= kMostPlans) plans_.clear();
  const auto about = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  auto& model = sizes_[{reduction, about, shared}];
  if (model == nullptr) model = maker_(reduction, about, shared);
  auto plan = std::make_shared<Plan>(*model);
  plan->fingerprint.count = count;
  plan->layout = Layout::split(count, plan->schedule->view().chunks(),
                               std::max<int64_t>(1, 64 / static_cast<int64_t>(plan->element)));
  plan->finish(team_->capacity(), team_->tile_bytes);
  return plans_[key] = plan;
}

}  // namespace pc::engine
