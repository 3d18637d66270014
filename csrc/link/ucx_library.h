// The part of UCP's interface that the link uses (UCX 1.12 or newer), declared here so that no header of UCX is needed:
// the library is loaded at run time.  Names and values are those of ucp/api/ucp.h; field masks state what is filled in,
// so that a library with longer structures reads these correctly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pc::ucx {

using Status = int8_t;  // ucs_status_t, a packed enum
constexpr Status kOk = 0, kInProgress = 1, kTimedOut = -20, kConnectionReset = -25, kEndpointTimeout = -80,
                 kLastError = -100;

using Context = void*;
using Config = void*;
using Worker = void*;
using Endpoint = void*;
using Address = void*;
using Request = void*;  // ucs_status_ptr_t: null, a request, or a status

inline bool is_error(Request request) {
  return reinterpret_cast<uintptr_t>(request) >= static_cast<uintptr_t>(intptr_t{kLastError});
}
inline Status error_of(Request request) { return static_cast<Status>(reinterpret_cast<intptr_t>(request)); }

constexpr uint64_t bit(int i) { return uint64_t{1} << i; }

struct ContextParams {
  uint64_t fields;
  uint64_t features;
  size_t request_size;
  void (*request_init)(void*);
  void (*request_cleanup)(void*);
  uint64_t tag_sender_mask;
  int workers_in_threads;
  size_t endpoints, processes;
  const char* name;
  size_t node_local_id;
};
constexpr uint64_t kContextFeatures = bit(0), kContextWorkersInThreads = bit(5);
constexpr uint64_t kFeatureWakeup = bit(4), kFeatureMessages = bit(6);

struct WorkerParams {
  uint64_t fields;
  int thread_mode;
  unsigned long cpus[1024 / 8 / sizeof(unsigned long)];
  unsigned events;
  void* user_data;
  int event_descriptor;
  uint64_t flags;
  const char* name;
  size_t alignment;
  uint64_t client_id;
};
constexpr uint64_t kWorkerThreadMode = bit(0);
constexpr int kThreadsInTurn = 1;  // UCS_THREAD_MODE_SERIALIZED

struct EndpointParams {
  uint64_t fields;
  const void* address;
  int error_mode;
  void (*on_error)(void* argument, Endpoint, Status);
  void* argument;
  void* user_data;
  unsigned flags;
  struct {
    const void* address;
    uint32_t length;
  } socket;
  void* request;
  const char* name;
  struct {
    const void* address;
    uint32_t length;
  } local_socket;
};
constexpr uint64_t kEndpointAddress = bit(0), kEndpointErrorMode = bit(1), kEndpointOnError = bit(2);
constexpr int kNoErrors = 0, kErrorsOfPeers = 1;  // UCP_ERR_HANDLING_MODE_NONE, _PEER

struct RequestParams {
  uint32_t fields;
  uint32_t flags;
  void* request;
  union {
    void (*sent)(void* request, Status, void* argument);
    void (*received)(void* request, Status, size_t length, void* argument);
  } callback;
  uint64_t datatype;
  void* argument;
  void* reply;
  int memory_type;
  void* info;
  void* memory_handle;
  uint64_t remote_datatype;
  const void* remote;
  size_t remote_count;
};
constexpr uint32_t kRequestCallback = bit(1), kRequestArgument = bit(2), kRequestFlags = bit(4),
                   kRequestMemory = bit(6);
constexpr uint32_t kSendRendezvous = bit(2), kCloseForced = bit(0);
constexpr int kHostMemory = 0;

struct ArrivalParams {
  uint64_t flags;
  Endpoint reply;
};
constexpr uint64_t kArrivalKeepsData = bit(16), kArrivalRendezvous = bit(17);

struct HandlerParams {
  uint64_t fields;
  unsigned id;
  uint32_t flags;
  Status (*on_arrival)(void* argument, const void* header, size_t header_length, void* data, size_t length,
                       const ArrivalParams*);
  void* argument;
};
constexpr uint64_t kHandlerAll = bit(0) | bit(1) | bit(2) | bit(3);

// X(member, function, result, parameters)
#define PC_UCX_FUNCTIONS(X)                                                                                       \
  X(read_config, ucp_config_read, Status, (const char* prefix, const char* file, Config*))                        \
  X(modify_config, ucp_config_modify, Status, (Config, const char* name, const char* value))                      \
  X(release_config, ucp_config_release, void, (Config))                                                           \
  X(init, ucp_init_version, Status, (unsigned major, unsigned minor, const ContextParams*, Config, Context*))     \
  X(print_context, ucp_context_print_info, void, (Context, FILE*))                                                \
  X(create_worker, ucp_worker_create, Status, (Context, const WorkerParams*, Worker*))                            \
  X(destroy_worker, ucp_worker_destroy, void, (Worker))                                                           \
  X(get_address, ucp_worker_get_address, Status, (Worker, Address*, size_t*))                                     \
  X(release_address, ucp_worker_release_address, void, (Worker, Address))                                         \
  X(progress, ucp_worker_progress, unsigned, (Worker))                                                            \
  X(get_descriptor, ucp_worker_get_efd, Status, (Worker, int*))                                                   \
  X(arm, ucp_worker_arm, Status, (Worker))                                                                        \
  X(set_handler, ucp_worker_set_am_recv_handler, Status, (Worker, const HandlerParams*))                          \
  X(create_endpoint, ucp_ep_create, Status, (Worker, const EndpointParams*, Endpoint*))                           \
  X(close_endpoint, ucp_ep_close_nbx, Request, (Endpoint, const RequestParams*))                                  \
  X(send, ucp_am_send_nbx, Request,                                                                               \
    (Endpoint, unsigned id, const void* header, size_t header_length, const void* data, size_t count,             \
     const RequestParams*))                                                                                       \
  X(receive, ucp_am_recv_data_nbx, Request, (Worker, void* held, void* into, size_t count, const RequestParams*)) \
  X(release, ucp_am_data_release, void, (Worker, void* held))                                                     \
  X(free_request, ucp_request_free, void, (void* request))                                                        \
  X(status_of, ucp_request_check_status, Status, (void* request))                                                 \
  X(describe, ucs_status_string, const char*, (Status))

using Options = std::vector<std::pair<std::string, std::string>>;  // names without the prefix UCX_

// A loaded libucp.
class Library {
 public:
  // Loads it, as a library that leaves signals and memory functions of the process alone.  Throws SystemFailure.
  explicit Library(const std::string& file);
  const std::string& path() const { return path_; }
  std::string version() const;
  void check(Status status, const char* what) const;  // throws SystemFailure

#define PC_DECLARE(member, function, result, parameters) result(*member) parameters = nullptr;
  PC_UCX_FUNCTIONS(PC_DECLARE)
#undef PC_DECLARE
  unsigned major() const { return major_; }
  unsigned minor() const { return minor_; }

 private:
  std::string path_;
  unsigned major_ = 0, minor_ = 0, release_ = 0;
};

// UCX's transports and devices, of which the workers of this process use those that fit.
class Devices {
 public:
  // One for each file and options; exists as long as the process.  Throws SystemFailure.
  static std::shared_ptr<const Devices> open(const std::string& file, const Options& options);
  Devices(std::shared_ptr<const Library> library, const Options& options);
  Devices(const Devices&) = delete;

  const Library& library() const { return *library_; }
  Context context() const { return context_; }
  // Each as TRANSPORT/DEVICE, such as tcp/eth0.
  std::vector<std::string> transports() const;

 private:
  std::shared_ptr<const Library> library_;
  Context context_ = nullptr;
};

}  // namespace pc::ucx
