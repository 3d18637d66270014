#include "engine/engine.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <thread>
#include <utility>

#include "base/environment.h"
#include "base/pause.h"

namespace pc::engine {
namespace {

using std::chrono::milliseconds;

constexpr auto kLongestNap = milliseconds(50);           // longest sleep of a driver
constexpr auto kTurn = milliseconds(100);          // how often a submit waiting for the board checks for signals

// Arrays whose size read_item has checked to fit 64 bits.
int64_t bytes_of(const Signature& signature) {
  auto bytes = static_cast<int64_t>(size_of(signature.dtype));
  for (int32_t d = 0; d < std::min(signature.dims, kMostDims); ++d) bytes *= signature.shape[d];
  return bytes;
}

Clock::time_point time_of(int64_t nanoseconds) { return Clock::time_point(std::chrono::nanoseconds(nanoseconds)); }

}  // namespace

std::atomic<uint32_t> Engine::reports_wanted{0};

Engine::Engine(std::shared_ptr<Team> team, std::shared_ptr<Carrier> carrier, FusedAllreduce::PlanMaker maker,
               char* buffer, int64_t bytes, int32_t buffers, StallSettings stall, std::shared_ptr<Runner> runner)
    : team_(std::move(team)),
      carrier_(std::move(carrier)),
      board_(dynamic_cast<Board*>(carrier_.get())),
      fused_(team_, std::move(maker), buffer, bytes, buffers, timeline_),
      stall_(stall),
      runner_(std::move(runner)),
      reports_given_(reports_wanted.load()) {
  if (carrier_->rank() != team_->rank() || carrier_->size() != team_->size())
    throw InvalidArgument("the carrier is for rank " + std::to_string(carrier_->rank()) + " of " +
                          std::to_string(carrier_->size()));
  if (!carrier_->take()) throw InvalidArgument("the carrier has an engine");
  if (board_ == nullptr) return;
  board_->who_died = [this] { return find_lost(); };
  board_->spins = team_->patience.spin.count() > 0;
  board_->locked_out = [this](int32_t holder, std::chrono::nanoseconds waited) { locked_out(holder, waited); };
  progress_.resize(static_cast<size_t>(team_->size()));
  board_->label = [this](int32_t rank) { return team_->label(rank); };
}

void Engine::submit(const Pendings& operations, bool now) {
  if (now) require_outside();
  // A rank holds the board: let other threads of this rank use the engine.
  while (!announce(operations, now)) {
    board_->await_lock(Clock::now() + kTurn);
    if (Team::interrupted && Team::interrupted())
      throw CommunicatorFault(Fault::aborted, team_->rank(), "a submit was interrupted");
  }
}

// False: the board was not available at once, and nothing has happened.
bool Engine::announce(const Pendings& operations, bool now) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (fault_) throw CommunicatorFault(*fault_);
    std::vector<Announcement*> announcements;
    announcements.reserve(operations.size());
    const auto submitted = Clock::now();
    for (const auto& operation : operations) {
      operation->submitted_ = submitted.time_since_epoch().count();
      announcements.push_back(&operation->announcement_);
    }
    take_names(operations);
    try {
      const bool may_fetch = now && !driven_ && fetched_.empty();
      if (!carrier_->announce(announcements, now, submitted + kMoment, may_fetch ? &fetched_ : nullptr)) {
        drop_names(operations);
        return false;
      }
    } catch (...) {
      drop_names(operations);
      throw;
    }
    wake = !now && takeover_.submit(submitted) && !driven_;
  }
  if (wake) idle_.notify_one();
  return true;
}

// All of them, or none: throws InvalidArgument if one is in use.
void Engine::take_names(const Pendings& operations) {
  for (size_t i = 0; i < operations.size(); ++i) {
    Announcement& announcement = operations[i]->announcement_;
    if (announcement.hash == NameHash{}) announcement.hash = hash_of(announcement.name);
    if (flying_.try_emplace(announcement.hash, operations[i]).second) continue;
    drop_names(std::span(operations).first(i));
    throw InvalidArgument("an operation named '" + announcement.name +
                          "' is in progress: wait for it, or use another name");
  }
}

void Engine::drop_names(std::span<const std::shared_ptr<Pending>> operations) {
  for (const auto& operation : operations) flying_.erase(operation->announcement_.hash);
}

void Pending::renew(const char* input, char* output, int64_t place, std::shared_ptr<void> keep) {
  input_ = input;
  output_ = output;
  announcement_.place = place;
  keep_ = std::move(keep);
  fault_.reset();
  number_ = -1;
  done_.store(false, std::memory_order_relaxed);
}

// -- driving ------------------------------------------------------------------------------------------------------

// Once the engine is closing only close() gets it.
bool Engine::start_driving(bool to_close) {
  const std::lock_guard lock(mutex_);
  if (closing_ != to_close || std::exchange(driven_, true)) return false;
  driver_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return true;
}

void Engine::stop_driving() {
  bool more = false;
  {
    const std::lock_guard lock(mutex_);
    driven_ = false;
    driver_.store({}, std::memory_order_relaxed);
    more = !flying_.empty();
    if (waiters_ > 0) completed_.notify_all();  // one of them may drive
  }
  if (more) idle_.notify_one();
}

// A thread finds its own id there only if it wrote it.
void Engine::require_outside() const {
  if (driver_.load(std::memory_order_relaxed) == std::this_thread::get_id()) nested_call(team_->name());
}

bool Engine::wait(const std::shared_ptr<Pending>& operation, Clock::time_point limit, bool flushing) {
  team_->require_own();  // a waiting thread may drive
  if (!operation->done()) require_outside();
  takeover_.wait(time_of(operation->submitted_));
  struct Waiting {
    explicit Waiting(Carrier& one) : carrier(one) { carrier.note_wait(true); }
    ~Waiting() { carrier.note_wait(false); }
    Carrier& carrier;
  } waiting{*carrier_};
  while (!operation->done()) {
    if (Clock::now() >= limit) return false;
    if (start_driving(false)) {
      const int32_t wanted = flushing ? operation->announcement_.slot : -1;
      while (!operation->done() && turn(limit, wanted)) {
      }
      stop_driving();
    } else {
      if (flushing && flush(*operation, limit)) flushing = false;  // for the thread that drives
      std::unique_lock lock(mutex_);
      ++waiters_;
      completed_.wait_until(lock, limit, [&] { return operation->done() || (!driven_ && !closing_); });
      --waiters_;
    }
  }
  return true;
}

bool Engine::flush(const Pending& operation, Clock::time_point limit) {
  return operation.done() || carrier_->flush(operation.announcement_.slot, limit);
}

// Whether there are operations that nobody has begun to wait for.
bool Engine::may_take_over() const {
  const auto now = Clock::now();
  const auto ripe = [now](const auto& named) { return Takeover::is_ripe(time_of(named.second->submitted_), now); };
  return !driven_ && std::any_of(flying_.begin(), flying_.end(), ripe);
}

void Engine::loop() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // nanoseconds; by default a nap lasts 50 microseconds longer
  auto looked = Clock::time_point{};  // for stalls
  for (;;) {
    bool takes_over = false;
    {
      std::unique_lock lock(mutex_);
      if (!closing_ && !may_take_over()) {
        const auto nap = takeover_.nap(!driven_ && !flying_.empty(), Clock::now());
        idle_.wait_for(lock,
                       nap > Clock::duration::zero() ? std::min<Clock::duration>(nap, kInspectEvery) : kInspectEvery);
      }
      if (closing_) return;
      takes_over = may_take_over();
    }
    if (board_ != nullptr) board_->beat();
    if (Clock::now() - looked >= kInspectEvery) {
      looked = Clock::now();
      inspect();
    }
    if (!takes_over || !start_driving(false)) continue;
    const int64_t before = batches_.load();
    turn(Clock::now() + kInspectEvery, -1, false);
    if (batches_.load() != before) {
      const std::lock_guard lock(mutex_);
      takeover_.took_over();
    }
    stop_driving();
  }
}

// Runs a batch that has been cut, if there is one.
bool Engine::run_next(Clock::time_point limit) {
  std::vector<Member> members = std::exchange(fetched_, {});
  if (members.empty()) members = carrier_->fetch(limit);
  if (members.empty()) return false;
  run_fetched(members);
  return true;
}

void Engine::run_fetched(const std::vector<Member>& members) {
  struct Completion {
    Carrier& carrier;
    ~Completion() { carrier.complete_batch(); }  // also if the batch failed
  } completion{*carrier_};
  run_batch(members);
}

// Runs the next batch.  False: there was none until `limit`.  `wanted`: see Carrier::cut.  `awaited`: the caller has
// nothing else to do; otherwise it leaves the core to the program, which computes meanwhile, until there is a batch.
bool Engine::turn(Clock::time_point limit, int32_t wanted, bool awaited) {
  try {
    if (team_->poisoned()) team_->raise();
    std::vector<Member> fetched;
    if (!await_batch(limit, wanted, awaited, fetched)) return false;
    if (fetched.empty()) return run_next(limit);
    run_fetched(fetched);
    return true;
  } catch (const CommunicatorFault& fault) {
    fail(fault);
    return false;
  }
}

// `fetched`: the batch, if this rank has cut it; empty: run_next() fetches it.
bool Engine::await_batch(Clock::time_point limit, int32_t wanted, bool awaited, std::vector<Member>& fetched) {
  if (!fetched_.empty()) return true;
  const auto start = Clock::now();
  auto due = Clock::time_point{};  // no batch can be cut before then
  uint32_t known = carrier_->news() - 1;
  for (;;) {
    const uint32_t seen = carrier_->news();
    if (carrier_->has_batch()) return true;
    const auto now = Clock::now();
    if (now >= limit) {
      check_peers(now);
      return false;
    }
    if (carrier_->has_ready() && (seen != known || now >= due)) {
      known = seen;
      due = carrier_->cut(false, limit, wanted, &fetched);
      if (!fetched.empty()) return true;
      continue;
    }
    const bool sleeps = !awaited || now - start >= std::max(team_->patience.spin, team_->patience.yield);
    if (sleeps || now - start >= kCheckEvery) check_peers(now);
    if (!sleeps && now - start < team_->patience.spin) {
      // Each look at more than the news delays the rank that is writing the rest.
      const int looks = carrier_->has_ready() ? 32 : 256;
      for (int i = 0; i < looks && carrier_->news() == seen; ++i) pause();
    } else if (!sleeps) {
      sched_yield();
    } else {
      const auto until = std::min({limit, now + kLongestNap, carrier_->has_ready() ? due : limit});
      if (until > now) carrier_->sleep(seen, until - now);
    }
    const std::lock_guard lock(mutex_);
    if (closing_) return false;
  }
}

// -- batches ------------------------------------------------------------------------------------------------------

// This rank's part of each operation; null if it has joined.  By name: once all ranks have fetched the batch, the board
// may give an operation's slot to another one, which a thread of this rank submits meanwhile.
Pendings Engine::claim(const std::vector<Member>& members) {
  Pendings mine(members.size());
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].details && members[i].details->lacks(team_->rank())) continue;
    const auto found = flying_.find(members[i].hash);
    if (found == flying_.end())  // all of this rank's operations have failed
      throw fault_ ? *fault_ : CommunicatorFault(Fault::aborted, team_->rank(), "an operation was not submitted");
    mine[i] = found->second;
  }
  return mine;
}

void Engine::run_batch(const std::vector<Member>& members) {
  if (team_->poisoned()) team_->raise();  // the others gave up the agreed batch while this rank was stopped
  ++batches_;
  const Pendings mine = claim(members);
  const Details* first = members[0].details.get();
  if (first != nullptr && !first->difference.empty()) {
    complete(mine, CommunicatorFault(Fault::mismatch, -1, first->difference));
    return;
  }
  try {
    timeline_.on() ? run_traced(members, mine) : run_agreed(members, mine);
  } catch (const CommunicatorFault&) {
    throw;
  } catch (const std::bad_alloc&) {  // on this rank alone
    team_->poison({Fault::aborted, team_->rank(), team_->label(team_->rank()) + " has run out of memory"});
    team_->raise();
  } catch (const std::exception& error) {  // before anything was sent, and the same on all ranks
    complete(mine, CommunicatorFault(Fault::aborted, -1, error.what()));
    return;
  }
  complete(mine, std::nullopt, first != nullptr && first->signature.kind == Kind::join ? first->last : -1);
}

void Engine::run_agreed(const std::vector<Member>& members, const Pendings& mine) {
  const Details* first = members[0].details.get();
  if (first == nullptr || first->signature.is_of_core()) {
    run_fused(members, mine);
  } else if (first->signature.kind != Kind::join) {
    runner_->run(mine, members);
    for (const Member& member : members)
      if (is_fused(member.details->signature.kind)) reduced_ += bytes_of(member.details->signature);
  }
}

void Engine::run_fused(const std::vector<Member>& members, const Pendings& mine) {
  std::vector<Piece> pieces;
  Signature signature;
  pieces.reserve(members.size());
  int64_t total = 0;
  bool everybody = true;
  for (size_t i = 0; i < members.size(); ++i) {
    const Details* details = members[i].details.get();
    everybody = everybody && (details == nullptr || details->absent.empty());
    const Pending* own = mine[i].get();
    signature = own != nullptr ? own->announcement_.signature : details->signature;
    const int64_t bytes = bytes_of(signature);
    total += bytes;
    // A rank that has joined has nothing in its window.
    const int64_t place = details != nullptr ? -1 : members[i].place;
    pieces.push_back({own != nullptr ? own->input_ : nullptr, own != nullptr ? own->output_ : nullptr, bytes, place});
  }
  fused_.run({signature.dtype, signature.op, signature.prescale, signature.postscale}, std::move(pieces), everybody);
  reduced_ += total;
}

void Engine::run_traced(const std::vector<Member>& members, const Pendings& mine) {
  StepTrace steps;
  const int64_t begin = Timeline::now();
  team_->trace = board_ != nullptr ? &steps : nullptr;  // between hosts the links are the timeline's only step
  try {
    run_agreed(members, mine);
  } catch (...) {
    team_->trace = nullptr;
    throw;
  }
  team_->trace = nullptr;
  const int64_t end = Timeline::now();
  for (size_t i = 0; i < members.size(); ++i) {
    const Details* details = members[i].details.get();
    const std::string name = mine[i] ? mine[i]->name() : details->name;
    const char* kind = name_of(details != nullptr ? details->signature.kind : Kind::allreduce);
    if (mine[i]) timeline_.add({Phase::negotiate, kind, name, mine[i]->submitted_, members[i].ready});
    timeline_.add({Phase::queue, nullptr, name, members[i].ready, begin});
    timeline_.add({Phase::execute, kind, name, begin, end});
  }
  timeline_.add({Phase::cycle, nullptr, {}, begin, begin});
  timeline_.add(steps);
}

void Engine::complete(const Pendings& operations, const std::optional<CommunicatorFault>& fault, int32_t number) {
  std::vector<std::shared_ptr<void>> watched;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& operation : operations) {
      if (operation == nullptr) continue;
      flying_.erase(operation->announcement_.hash);
      if (fault) operation->fault_.emplace(*fault);
      operation->number_ = number;
      operation->done_.store(true, std::memory_order_seq_cst);
      if (operation->watched.load(std::memory_order_seq_cst)) watched.push_back(operation->keep_);
      spent_.push_back(std::move(operation->keep_));
    }
    if (waiters_ > 0) completed_.notify_all();
  }
  if (watched.empty()) return;
  runner_->finished(watched);
  const std::lock_guard lock(mutex_);
  std::move(watched.begin(), watched.end(), std::back_inserter(spent_));
}

std::vector<std::shared_ptr<void>> Engine::take_spent() {
  const std::lock_guard lock(mutex_);
  return std::exchange(spent_, {});
}

// Nothing runs after a fault of the communicator.
void Engine::fail(const CommunicatorFault& fault) {
  team_->note_loss(fault);  // one that the carrier has found is not known to the team
  Pendings all;
  {
    const std::lock_guard lock(mutex_);
    if (!fault_) fault_.emplace(fault);
    for (const auto& [name, operation] : flying_) all.push_back(operation);
  }
  complete(all, fault);
}

void Engine::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    require_outside();
    closing_ = true;
  }
  idle_.notify_all();
  carrier_->wake();
  while (!start_driving(true)) {  // the thread that has it leaves soon
    std::unique_lock lock(mutex_);
    ++waiters_;
    completed_.wait_for(lock, milliseconds(10));
    --waiters_;
  }
  drain();
  fail(CommunicatorFault(Fault::aborted, team_->rank(), "the engine was shut down"));
  driver_.store({}, std::memory_order_relaxed);
}

// The others depend on this rank for what all have submitted.  No thread uses the team once this one has stopped.
void Engine::drain() {
  const auto deadline = Clock::now() + std::chrono::duration<double>(environment().timeout);
  try {
    while (!team_->poisoned()) {
      const uint32_t seen = carrier_->news();
      const auto limit = Clock::now() + kTurn;
      if (run_next(limit) || carrier_->cut(true, limit) != Clock::time_point::max()) continue;
      if (carrier_->leave(Clock::now() >= deadline, limit)) break;
      raise_if_lost([](int32_t) { return std::string(); });
      carrier_->sleep(seen, kCheckEvery);
    }
  } catch (const CommunicatorFault& fault) {
    fail(fault);
  }
}

}  // namespace pc::engine
