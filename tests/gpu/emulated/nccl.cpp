// A libnccl.so.2 for tests without GPUs: NCCL's names and rules, our implementation.  Its collectives are executed
// between processes, in the emulated streams (streams.cpp): every message goes through a mailbox in shared memory.
// Always "non-blocking", and strict about it: a call before the last one has settled is an error.  Except in
// communicators of ncclCommInitRank, whose ranks are one thread's: it makes each of their calls in a group.
//
// Environment variables: PC_EMULATED_NCCL_VERSION (22304), PC_EMULATED_NCCL_DEAF: it does not notice when a peer dies.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtype/convert.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Result { kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7 };
enum Type { kInt8, kUint8, kInt32, kUint32, kInt64, kUint64, kFloat16, kFloat32, kFloat64, kBfloat16, kE4m3, kE5m2 };
enum Op { kSum, kProd, kMax, kMin, kAvg, kFirstOwn };
enum Kind { kAllreduce, kReduce, kBroadcast, kReduceScatter, kAllgather, kSend, kRecv };
constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
constexpr int kMostRanks = 8;
constexpr size_t kMailbox = 16384;

thread_local std::string last_error;

int fail(int result, const std::string& text) {
  last_error = text;
  return result;
}

int number(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);
}

int version() { return number("PC_EMULATED_NCCL_VERSION", 22304); }

struct Mailbox {
  std::atomic<uint32_t> full;
  uint32_t bytes;
  char data[kMailbox];
};
struct Shared {
  std::atomic<int> arrived;
  std::atomic<int> pid[kMostRanks];
  Mailbox mailbox[kMostRanks][kMostRanks];  // by sender and receiver
};

struct Transfer {
  char* at;
  size_t bytes;
  int peer;
  bool sends;
  size_t done = 0;
  bool begun = false;  // an empty message counts as well
};

struct Own {
  double scalar;
  int type;
};

struct State {
  int rank, size;
  bool blocks = false;
  Shared* shared = nullptr;
  std::atomic<bool> aborted{false};
  std::atomic<int> error{kSuccess};
  std::atomic<bool> met{false};
  std::atomic<int> busy{0};  // polls until a call has settled
  std::atomic<int> queued{0};
  std::atomic<bool> leaves{false};
  std::map<int, Own> operators;
  int next_operator = kFirstOwn;
  ~State() {
    if (shared != nullptr) munmap(shared, sizeof(Shared));
  }
};

struct Comm { std::shared_ptr<State> state; };

struct Call {
  Kind kind;
  const void* x;
  void* out;
  size_t count;
  int type, op = kSum, root = -1;
  double scalar = 1;
};

// -- moving data ------------------------------------------------------------------------------------------------------

bool gone(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return true;
  return text.substr(text.rfind(')') + 2, 1) == "Z";
}

bool peer_died(State& state) {
  if (number("PC_EMULATED_NCCL_DEAF", 0) != 0) return false;
  for (int r = 0; r < state.size; ++r) {
    if (state.shared->pid[r] != 0 && gone(state.shared->pid[r])) return true;
  }
  return false;
}

bool step(State& state, Transfer& t) {
  Mailbox& box = t.sends ? state.shared->mailbox[state.rank][t.peer] : state.shared->mailbox[t.peer][state.rank];
  if (box.full.load(std::memory_order_acquire) != (t.sends ? 0u : 1u)) return false;
  const size_t now = t.sends ? std::min(kMailbox, t.bytes - t.done) : box.bytes;
  if (t.sends) {
    std::memcpy(box.data, t.at + t.done, now);
    box.bytes = static_cast<uint32_t>(now);
  } else {
    if (t.done + now > t.bytes) std::abort();  // counts that do not match: undefined in NCCL
    std::memcpy(t.at + t.done, box.data, now);
  }
  box.full.store(t.sends ? 1 : 0, std::memory_order_release);
  t.done += now;
  t.begun = true;
  return true;
}

// Messages between two ranks in one direction stay in order.
bool carry_out(State& state, std::vector<Transfer> transfers) {
  for (int idle = 0;;) {
    bool progress = false, left = false, blocked[2][kMostRanks] = {};
    for (Transfer& t : transfers) {
      if (t.begun && t.done == t.bytes) continue;
      left = true;
      if (blocked[t.sends][t.peer]) continue;
      progress |= step(state, t);
      blocked[t.sends][t.peer] = true;
    }
    if (!left) return true;
    idle = progress ? 0 : idle + 1;
    if (state.aborted) return false;
    if (idle % 1000 == 999 && peer_died(state)) {
      state.error = kRemoteError;
      return false;
    }
    if (idle > 10) std::this_thread::yield();
    if (idle > 1000) usleep(200);
  }
}

// -- arithmetic -------------------------------------------------------------------------------------------------------

using pc::to_float;
float to_float(pc::float8_e4m3fn v) { return pc::E4M3FN::decode(v.bits); }
float to_float(pc::float8_e5m2 v) { return pc::E5M2::decode(v.bits); }

// Calls `function` with a value of the type's C++ type.
template <class Function>
auto with_type(int type, Function function) {
  switch (type) {
    case kInt8: return function(int8_t{});
    case kUint8: return function(uint8_t{});
    case kInt32: return function(int32_t{});
    case kUint32: return function(uint32_t{});
    case kInt64: return function(int64_t{});
    case kUint64: return function(uint64_t{});
    case kFloat16: return function(pc::float16{});
    case kFloat32: return function(float{});
    case kFloat64: return function(double{});
    case kBfloat16: return function(pc::bfloat16{});
    case kE4m3: return function(pc::float8_e4m3fn{});
    default: return function(pc::float8_e5m2{});
  }
}

double load(const void* at, size_t i, int type) {
  return with_type(type, [=]<class T>(T) -> double {
    const T value = static_cast<const T*>(at)[i];
    if constexpr (std::is_arithmetic_v<T>) return static_cast<double>(value);
    else return to_float(value);
  });
}

void store(void* at, size_t i, int type, double value) {
  with_type(type, [=]<class T>(T) {
    T& into = static_cast<T*>(at)[i];
    if constexpr (std::is_arithmetic_v<T>) into = static_cast<T>(value);
    else pc::from_float(static_cast<float>(value), into);
  });
}

double combine(int op, double a, double b) {
  switch (op) {
    case kProd: return a * b;
    case kMax: return std::fmax(a, b);
    case kMin: return std::fmin(a, b);
    default: return a + b;
  }
}

void reduce_blocks(const State& state, const Call& c, const std::vector<std::vector<char>>& blocks) {
  for (size_t i = 0; i < c.count; ++i) {
    double total = load(blocks[0].data(), i, c.type) * c.scalar;
    for (int r = 1; r < state.size; ++r) total = combine(c.op, total, load(blocks[r].data(), i, c.type) * c.scalar);
    store(c.out, i, c.type, c.op == kAvg ? total / state.size : total);
  }
}

// -- collectives: all of them made of messages ------------------------------------------------------------------------

bool collective(State& state, const Call& c) {
  const size_t bytes = c.count * kSizes[c.type];
  std::vector<Transfer> transfers;
  std::vector<std::vector<char>> blocks;
  const bool reduces = c.kind == kAllreduce || c.kind == kReduce || c.kind == kReduceScatter;
  const bool receives = c.root < 0 || (c.kind == kBroadcast || c.root == state.rank);
  if (reduces && receives) blocks.assign(state.size, std::vector<char>(bytes));
  char* const x = static_cast<char*>(const_cast<void*>(c.x));
  char* const out = static_cast<char*>(c.out);
  std::vector<char> mine;  // in place: sent data must not be overwritten by received data
  if (c.kind == kAllgather || (c.kind == kBroadcast && c.root == state.rank)) mine.assign(x, x + bytes);
  for (int r = 0; r < state.size; ++r) {
    if (c.kind == kAllreduce || c.kind == kReduceScatter || (c.kind == kReduce && r == c.root))
      transfers.push_back({c.kind == kReduceScatter ? x + r * bytes : x, bytes, r, true});
    if (reduces && receives) transfers.push_back({blocks[r].data(), bytes, r, false});
    if (c.kind == kAllgather || (c.kind == kBroadcast && c.root == state.rank))
      transfers.push_back({mine.data(), bytes, r, true});
    if (c.kind == kAllgather) transfers.push_back({out + r * bytes, bytes, r, false});
    if (c.kind == kBroadcast && r == c.root) transfers.push_back({out, bytes, r, false});
  }
  if (!carry_out(state, transfers)) return false;
  if (reduces && receives) reduce_blocks(state, c, blocks);
  return true;
}

void perform(State& state, const std::vector<Call>& calls) {
  std::vector<Transfer> pairs;
  for (const Call& c : calls) {
    const size_t bytes = c.count * kSizes[c.type];
    if (c.kind == kSend) pairs.push_back({static_cast<char*>(const_cast<void*>(c.x)), bytes, c.root, true});
    else if (c.kind == kRecv) pairs.push_back({static_cast<char*>(c.out), bytes, c.root, false});
    else if (state.aborted || state.error != kSuccess || !collective(state, c)) return;
  }
  if (!pairs.empty()) (void)carry_out(state, pairs);
}

// -- streams and groups -----------------------------------------------------------------------------------------------

using HostFunction = int (*)(void*, void (*)(void*), void*);

// The emulated runtime is in the extension module, which this process has already loaded.
HostFunction host_function() {
  static const HostFunction found = [] {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      const size_t at = line.find('/');
      if (at == std::string::npos || line.find("/_cuda.") == std::string::npos) continue;
      void* module = dlopen(line.c_str() + at, RTLD_NOLOAD | RTLD_NOW);
      void* symbol = module == nullptr ? nullptr : dlsym(module, "cudaLaunchHostFunc");
      if (symbol != nullptr) return reinterpret_cast<HostFunction>(symbol);
    }
    return HostFunction{nullptr};
  }();
  return found;
}

struct Group {
  int depth = 0;
  std::vector<std::shared_ptr<State>> joining;
  std::map<std::pair<Comm*, void*>, std::vector<Call>> calls;  // by communicator and stream
  int result = kSuccess;
};
thread_local Group group;

int submit(Comm* comm, void* stream, std::vector<Call> calls) {
  if (host_function() == nullptr) return fail(kInvalidUsage, "no emulated runtime in this process");
  auto* work = new std::function<void()>([state = comm->state, calls = std::move(calls)] {
    perform(*state, calls);
    if (state->queued > 0) --state->queued;  // a captured call is queued once, and runs more than once
  });  // outlives the communicator for that
  comm->state->busy = comm->state->blocks ? 0 : 2;
  ++comm->state->queued;
  const int result = host_function()(stream, [](void* data) { (*static_cast<std::function<void()>*>(data))(); }, work);
  if (result != 0) return fail(1, "the stream accepts no work");
  return comm->state->blocks ? kSuccess : kInProgress;
}

int add(Comm* comm, void* stream, Call call) {
  State& state = *comm->state;
  if (!state.met || state.busy != 0) return group.result = fail(kInvalidUsage, "the last call has not settled");
  if (call.type < 0 || call.type > kE5m2 || (call.type >= kE4m3 && version() < 22400))
    return group.result = fail(kInvalidArgument, "no such data type: " + std::to_string(call.type));
  if (call.op >= kFirstOwn) {
    const auto own = state.operators.find(call.op);
    if (own == state.operators.end() || own->second.type != call.type)
      return group.result = fail(kInvalidArgument, "no such operator: " + std::to_string(call.op));
    call.scalar = own->second.scalar;
    call.op = kSum;
  }
  if (group.depth == 0) return submit(comm, stream, {call});
  group.calls[{comm, stream}].push_back(call);
  if (group.calls.size() > 1 && !state.blocks)
    return group.result = fail(kInvalidUsage, "one communicator and stream per group");
  return kSuccess;
}

void meet(const std::shared_ptr<State>& state, const std::string& name) {
  state->shared->pid[state->rank] = getpid();
  ++state->shared->arrived;
  while (state->shared->arrived < state->size) {
    if (state->aborted) break;
    if (peer_died(*state)) {
      state->error = kRemoteError;
      break;
    }
    usleep(200);
  }
  if (state->rank == 0) shm_unlink(name.c_str());
  if (state->error == kSuccess && !state->aborted) state->met = true;
}

}  // namespace

struct UniqueId { char bytes[128]; };
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
};

EXPORT int ncclGetVersion(int* found) {
  *found = version();
  return kSuccess;
}
EXPORT int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> made{0};
  std::memset(id->bytes, 0, sizeof id->bytes);
  std::snprintf(id->bytes, sizeof id->bytes, "/pycollective-test-nccl-%d-%d", getpid(), made++);
  return kSuccess;
}
static int join(Comm** comm, int size, const UniqueId& id, int rank) {
  if (size > kMostRanks || rank >= size) return fail(kInvalidArgument, "too many ranks");
  const int fd = shm_open(id.bytes, O_CREAT | O_RDWR, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) return fail(2, "no shared memory");
  auto state = std::make_shared<State>();
  state->rank = rank;
  state->size = size;
  void* at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at == MAP_FAILED) return fail(2, "no shared memory");
  state->shared = static_cast<Shared*>(at);
  *comm = new Comm{state};
  std::thread(meet, state, std::string(id.bytes)).detach();
  return kInProgress;
}
EXPORT int ncclCommInitRankConfig(Comm** comm, int size, UniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->size < 40 || config->version < 21700 || config->blocking != 0)
    return fail(kInvalidArgument, "the configuration is not one that was agreed on");
  return join(comm, size, id, rank);
}
EXPORT int ncclCommInitRank(Comm** comm, int size, UniqueId id, int rank) {
  if (group.depth == 0) return fail(kInvalidUsage, "the other ranks would be waited for");
  if (const int result = join(comm, size, id, rank); result != kInProgress) return result;
  (*comm)->state->blocks = true;
  group.joining.push_back((*comm)->state);
  return kSuccess;
}
EXPORT int ncclCommGetAsyncError(Comm* comm, int* found) {
  State& state = *comm->state;
  if (state.error != kSuccess) *found = state.error;
  else if (!state.met || (state.leaves && state.queued > 0)) *found = kInProgress;
  else if (state.busy > 0) {
    --state.busy;
    *found = kInProgress;
  } else {
    *found = kSuccess;
    if (state.leaves) state.shared->pid[state.rank] = 0;  // peers may still read from the mailboxes
  }
  return kSuccess;
}
EXPORT int ncclCommFinalize(Comm* comm) {
  comm->state->busy = 1;
  comm->state->leaves = true;
  return kInProgress;
}
EXPORT int ncclCommDestroy(Comm* comm) {
  if (comm->state->busy != 0) return fail(kInvalidUsage, "not finalized");
  delete comm;
  return kSuccess;
}
EXPORT int ncclCommAbort(Comm* comm) {
  comm->state->aborted = true;
  delete comm;
  return kSuccess;
}
EXPORT const char* ncclGetErrorString(int result) {
  switch (result) {
    case kSuccess: return "no error";
    case kInvalidArgument: return "invalid argument";
    case kInvalidUsage: return "invalid usage";
    case kRemoteError: return "remote process exited or there was a network error";
    default: return "unhandled error";
  }
}
EXPORT const char* ncclGetLastError(Comm*) { return last_error.c_str(); }
EXPORT int ncclGroupStart() {
  ++group.depth;
  return kSuccess;
}
EXPORT int ncclGroupEnd() {
  if (group.depth == 0) return fail(kInvalidUsage, "no group is open");
  if (--group.depth > 0) return kSuccess;
  Group ended = std::exchange(group, {});
  for (const auto& state : ended.joining)
    while (!state->met) usleep(200);
  for (auto& [where, calls] : ended.calls)
    if (ended.result == kSuccess) ended.result = submit(where.first, where.second, std::move(calls));
  return ended.result;
}
EXPORT int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, Comm* comm) {
  if (residence != 1) return fail(kInvalidArgument, "the scalar is in host memory");
  State& state = *comm->state;
  *op = state.next_operator++;
  state.operators[*op] = {load(scalar, 0, type), type};
  return kSuccess;
}
EXPORT int ncclRedOpDestroy(int op, Comm* comm) {
  return comm->state->operators.erase(op) == 1 ? kSuccess : fail(kInvalidArgument, "no such operator");
}
EXPORT int ncclAllReduce(const void* x, void* out, size_t count, int type, int op, Comm* comm, void* stream) {
  return add(comm, stream, {kAllreduce, x, out, count, type, op});
}
EXPORT int ncclReduce(const void* x, void* out, size_t count, int type, int op, int root, Comm* comm, void* stream) {
  return add(comm, stream, {kReduce, x, out, count, type, op, root});
}
EXPORT int ncclBroadcast(const void* x, void* out, size_t count, int type, int root, Comm* comm, void* stream) {
  return add(comm, stream, {kBroadcast, x, out, count, type, kSum, root});
}
EXPORT int ncclReduceScatter(const void* x, void* out, size_t count, int type, int op, Comm* comm, void* stream) {
  return add(comm, stream, {kReduceScatter, x, out, count, type, op});
}
EXPORT int ncclAllGather(const void* x, void* out, size_t count, int type, Comm* comm, void* stream) {
  return add(comm, stream, {kAllgather, x, out, count, type});
}
EXPORT int ncclSend(const void* x, size_t count, int type, int peer, Comm* comm, void* stream) {
  return add(comm, stream, {kSend, x, nullptr, count, type, kSum, peer});
}
EXPORT int ncclRecv(void* out, size_t count, int type, int peer, Comm* comm, void* stream) {
  return add(comm, stream, {kRecv, nullptr, out, count, type, kSum, peer});
}
