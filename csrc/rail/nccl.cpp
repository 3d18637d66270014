#include "rail/nccl.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <thread>

#include "base/cuda/device.h"

namespace pc::cuda {
namespace {

constexpr unsigned kMagic = 0xcafebeef;
constexpr auto kSpin = std::chrono::microseconds(50), kPause = std::chrono::microseconds(100);

bool is_ok(int result) { return result == kNcclSuccess || result == kNcclInProgress; }

bool all_equal(const std::vector<int64_t>& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

}  // namespace

std::string nccl_version_text(int version) {
  const int unit = version < 10000 ? 1000 : 10000;  // the code had one digit fewer up to 2.8
  return std::to_string(version / unit) + "." + std::to_string(version % unit / 100) + "." +
         std::to_string(version % 100);
}

// -- the library ------------------------------------------------------------------------------------------------------

NcclLibrary::NcclLibrary(const std::string& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw SystemFailure(std::string("cannot load NCCL: ") + dlerror());
  const auto read_version = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  if (read_version == nullptr) throw SystemFailure(file + " is not NCCL: it has no ncclGetVersion");
  Dl_info place{};
  path_ = dladdr(reinterpret_cast<void*>(read_version), &place) != 0 ? place.dli_fname : file;
  if (read_version(&version_) != kNcclSuccess) throw SystemFailure(path_ + ": ncclGetVersion failed");
  if (version_ < kOldest)
    throw SystemFailure(path_ + " is NCCL " + nccl_version_text(version_) + "; " + nccl_version_text(kOldest) +
                        " or newer is needed");
#define PC_LOAD(member, name, result, parameters)                         \
  member = reinterpret_cast<result(*) parameters>(dlsym(library, #name)); \
  if (member == nullptr) throw SystemFailure(path_ + " (NCCL " + nccl_version_text(version_) + ") lacks " #name);
  PC_NCCL_FUNCTIONS(PC_LOAD)
#undef PC_LOAD
}

std::string NcclLibrary::unique_id() const {
  NcclUniqueId id{};
  check(get_unique_id(&id), "ncclGetUniqueId", nullptr);
  return {id.bytes, sizeof id.bytes};
}

void NcclLibrary::check(int result, const char* what, NcclHandle handle) const {
  if (is_ok(result)) return;
  std::string text = std::string(what) + ": " + error_string(result);
  const char* more = last_error(handle);
  if (more != nullptr && *more != '\0') text += std::string("; last error: ") + more;
  throw NcclError("NCCL " + nccl_version_text(version_) + ": " + text);
}

// -- a communicator ---------------------------------------------------------------------------------------------------

NcclComm::NcclComm(std::shared_ptr<const NcclLibrary> library, const std::string& id, int size, int rank, int device,
                   int most_blocks)
    : nccl_(std::move(library)), size_(size), rank_(rank), device_(device) {
  NcclUniqueId unique{};
  if (id.size() != sizeof unique.bytes) throw InvalidArgument("a unique id has 128 bytes");
  std::copy(id.begin(), id.end(), unique.bytes);
  NcclConfig config{sizeof(NcclConfig),
                    kMagic,
                    NcclLibrary::kOldest,
                    0,
                    INT_MIN,
                    INT_MIN,
                    most_blocks > 0 ? most_blocks : INT_MIN,
                    nullptr};
  const OnDevice on(device_);
  const int result = nccl_->init(&handle_, size, unique, rank, &config);
  if (!is_ok(result)) abort();
  nccl_->check(result, "ncclCommInitRankConfig", nullptr);
}

NcclComm::~NcclComm() { abort(); }

NcclHandle NcclComm::require() const {
  if (handle_ == nullptr) throw NcclError("the NCCL communicator was aborted");
  return handle_;
}

void NcclComm::started(int result, const char* what) { nccl_->check(result, what, handle_); }

bool NcclComm::settle(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      int state = kNcclSuccess;
      nccl_->check(nccl_->async_error(require(), &state), "ncclCommGetAsyncError", handle_);
      if (state == kNcclSuccess) return true;
      nccl_->check(state, "in the background", handle_);
    }
    const auto spent = Clock::now() - begin;
    if (std::chrono::duration<double>(spent).count() > seconds) return false;
    if (spent < kSpin) std::this_thread::yield();
    else std::this_thread::sleep_for(kPause);
  }
}

bool NcclComm::run(const NcclCall& call, double seconds) {
  const OnDevice on(device_);
  int op = call.op;
  {
    const std::lock_guard lock(mutex_);
    require();
    if (!call.scalar.empty()) {
      std::string scalar = call.scalar;
      started(nccl_->make_premul(&op, scalar.data(), call.type, kNcclScalarOnHost, handle_),
              "ncclRedOpCreatePreMulSum");
    }
    begin(call, op);
  }
  const bool done = settle(seconds);
  if (done && !call.scalar.empty()) {
    const std::lock_guard lock(mutex_);
    started(nccl_->drop_op(op, require()), "ncclRedOpDestroy");
  }
  return done;
}

// Prefixes and weighted sums, which NCCL lacks, are refused before (pycollective/comm/cuda/nccl/library.py).
void NcclComm::begin(const NcclCall& c, int op) {
  const Traits& t = traits(c.kind);
  if (t.in_blocks()) {
    if (t.rooted || t.split == Split::pairs) return exchange(c);
    if (!all_equal(c.counts)) return in_blocks(c, op);
    const auto each = c.counts.empty() ? 0 : static_cast<size_t>(c.counts[0]);
    if (t.reduces)
      return started(nccl_->reduce_scatter(c.x, c.out, each, c.type, op, handle_, c.stream), "ncclReduceScatter");
    return started(nccl_->allgather(c.x, c.out, each, c.type, handle_, c.stream), "ncclAllGather");
  }
  const auto count = static_cast<size_t>(c.count);
  if (!t.reduces)
    return started(nccl_->broadcast(rank_ == c.root ? c.x : c.out, c.out, count, c.type, c.root, handle_, c.stream),
                   "ncclBroadcast");
  if (t.rooted) return started(nccl_->reduce(c.x, c.out, count, c.type, op, c.root, handle_, c.stream), "ncclReduce");
  return started(nccl_->allreduce(c.x, c.out, count, c.type, op, handle_, c.stream), "ncclAllReduce");
}

// Blocks of different lengths: one collective for each, in one launch.
void NcclComm::in_blocks(const NcclCall& c, int op) {
  started(nccl_->group_start(), "ncclGroupStart");
  const bool reduces = traits(c.kind).reduces;
  int64_t offset = 0;
  int result = kNcclSuccess;
  for (int r = 0; r < size_; ++r) {
    const int64_t length = c.counts[r];
    if (length > 0 && is_ok(result)) {
      const bool mine = r == rank_;
      char* block = c.out + offset;
      result = reduces ? nccl_->reduce(c.x + offset, mine ? c.out : nullptr, length, c.type, op, r, handle_, c.stream)
                       : nccl_->broadcast(mine ? c.x : block, block, length, c.type, r, handle_, c.stream);
    }
    offset += length * c.itemsize;
  }
  const int end = nccl_->group_end();  // also after an error, or the group would stay open
  started(result, reduces ? "ncclReduce" : "ncclBroadcast");
  started(end, "ncclGroupEnd");
}

// gather, scatter and alltoall: messages between pairs, in one launch.
void NcclComm::exchange(const NcclCall& c) {
  started(nccl_->group_start(), "ncclGroupStart");
  int result = kNcclSuccess;
  int64_t send_offset = 0, recv_offset = 0;
  for (int peer = 0; peer < size_; ++peer) {
    int64_t sends = 0, receives = 0;
    const int32_t sent = traits(c.kind).block(rank_, peer, size_, c.root);
    const int32_t received = traits(c.kind).block(peer, rank_, size_, c.root);
    if (sent >= 0) sends = c.counts[static_cast<size_t>(sent)];
    if (received >= 0) receives = c.counts[static_cast<size_t>(received)];
    if (sends > 0 && is_ok(result)) result = nccl_->send(c.x + send_offset, sends, c.type, peer, handle_, c.stream);
    if (receives > 0 && is_ok(result))
      result = nccl_->recv(c.out + recv_offset, receives, c.type, peer, handle_, c.stream);
    send_offset += sends * c.itemsize;
    recv_offset += receives * c.itemsize;
  }
  const int end = nccl_->group_end();
  started(result, "ncclSend or ncclRecv");
  started(end, "ncclGroupEnd");
}

std::optional<std::string> NcclComm::failure() {
  const std::lock_guard lock(mutex_);
  if (handle_ == nullptr) return std::nullopt;
  try {
    int state = kNcclSuccess;
    nccl_->check(nccl_->async_error(handle_, &state), "ncclCommGetAsyncError", handle_);
    nccl_->check(state, "in the background", handle_);
  } catch (const NcclError& error) {
    return error.what();
  }
  return std::nullopt;
}

void NcclComm::abort() {
  const std::lock_guard lock(mutex_);
  if (handle_ != nullptr) (void)nccl_->abort(handle_);
  handle_ = nullptr;
}

bool NcclComm::close(double seconds) {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (handle_ == nullptr) return true;
      started(nccl_->finalize(handle_), "ncclCommFinalize");
    }
    if (settle(seconds)) {
      const std::lock_guard lock(mutex_);
      if (handle_ != nullptr) started(nccl_->destroy(handle_), "ncclCommDestroy");
      handle_ = nullptr;
      return true;
    }
  } catch (const NcclError&) {  // a peer is gone: nothing to finish
  }
  abort();
  return false;
}

}  // namespace pc::cuda
