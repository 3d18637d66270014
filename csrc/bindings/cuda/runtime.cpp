// Devices, and the streams, events, copies and graphs that Python uses without another CUDA library.
#include <cuda_runtime.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "base/cuda/deferred_free.h"
#include "base/cuda/device.h"
#include "bindings/cuda/bindings.h"

namespace pc::cuda {
namespace {

cudaStream_t stream_of(uintptr_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

// One sentence; nothing if a device can be used.
std::optional<std::string> why_no_device() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && count > 0) return std::nullopt;
  (void)cudaGetLastError();
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return "there is no CUDA driver on this machine (libcuda.so.1 was not found)";
  if (result == cudaSuccess || std::string(cudaGetErrorName(result)) == "cudaErrorNoDevice")
    return "the CUDA driver sees no GPU (is one installed, and visible by CUDA_VISIBLE_DEVICES?)";
  return std::string("the CUDA driver does not work: ") + cudaGetErrorString(result);
}

int version(cudaError_t (*read)(int*)) {
  int value = 0;
  if (read(&value) != cudaSuccess) (void)cudaGetLastError();
  return value;
}

py::dict properties(int device) {
  cudaDeviceProp prop;
  check(cudaGetDeviceProperties(&prop, device), "cudaGetDeviceProperties");
  std::string uuid;
  for (const char byte : prop.uuid.bytes) {
    char text[3];
    (void)std::snprintf(text, sizeof text, "%02x", static_cast<unsigned char>(byte));
    uuid += text;
  }
  py::dict made;
  made["name"] = std::string(prop.name);
  made["uuid"] = uuid;
  made["compute_capability"] = py::make_tuple(prop.major, prop.minor);
  made["multiprocessors"] = prop.multiProcessorCount;
  made["memory_bytes"] = prop.totalGlobalMem;
  made["l2_bytes"] = prop.l2CacheSize;
  return made;
}

// The device that owns an address; nothing for host memory.
std::optional<int> device_of(uintptr_t address) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, reinterpret_cast<void*>(address)) != cudaSuccess) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) return std::nullopt;
  return attributes.device;
}

bool capturing(uintptr_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_of(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

class Stream {
 public:
  explicit Stream(int device) : device_(device) {
    const OnDevice on(device);
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
  }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(stream_); }
  int device() const { return device_; }
  int priority() const {
    int priority = 0;
    check(cudaStreamGetPriority(stream_, &priority), "cudaStreamGetPriority");
    return priority;
  }

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event(int device, bool timed) : device_(device) {
    const OnDevice on(device);
    check(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming),
          "cudaEventCreateWithFlags");
  }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  void record(uintptr_t stream) {
    const OnDevice on(device_);
    check(cudaEventRecord(event_, stream_of(stream)), "cudaEventRecord");
  }
  void hold_back(uintptr_t stream) const {
    const OnDevice on(device_);
    check(cudaStreamWaitEvent(stream_of(stream), event_, 0), "cudaStreamWaitEvent");
  }
  bool done() const {
    const CaptureAside aside;  // queries are forbidden while a stream is captured in global mode, as torch does
    const cudaError_t result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    check(result, "cudaEventQuery");
    return true;
  }
  double seconds_since(const Event& earlier) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  int device_;
  cudaEvent_t event_ = nullptr;
};

class Graph {
 public:
  explicit Graph(cudaGraph_t graph) {
    const cudaError_t result = cudaGraphInstantiate(&executable_, graph, 0);
    (void)cudaGraphDestroy(graph);
    check(result, "cudaGraphInstantiate");
  }
  ~Graph() { (void)cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  void launch(uintptr_t stream) const { check(cudaGraphLaunch(executable_, stream_of(stream)), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

void begin_capture(uintptr_t stream) {
  check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

std::unique_ptr<Graph> end_capture(uintptr_t stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_of(stream), &graph), "cudaStreamEndCapture");
  return std::make_unique<Graph>(graph);
}

}  // namespace

void bind_cuda_runtime(py::module_& m) {
  const auto free_of_gil = py::call_guard<py::gil_scoped_release>();
  m.def("why_no_device", &why_no_device, "Why no GPU can be used, in one sentence; None if one can.");
  m.def("device_count", [] {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) (void)cudaGetLastError();
    return count;
  });
  m.def("driver_version", [] { return version(cudaDriverGetVersion); }, "1000 * major + 10 * minor; 0: no driver.");
  m.def("runtime_version", [] { return version(cudaRuntimeGetVersion); }, "Version of the runtime that is linked in.");
  m.def("properties", &properties, py::arg("device"));
  m.def("current_device", [] {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  });
  m.def("device_of", &device_of, py::arg("address"), "The device that owns an address, or None.");
  m.def(
      "copy",
      [](uintptr_t into, uintptr_t from, size_t bytes, uintptr_t stream, std::optional<int> device) {
        std::optional<OnDevice> on;  // each device has its own default stream
        if (device) on.emplace(*device);
        check(cudaMemcpyAsync(reinterpret_cast<void*>(into), reinterpret_cast<const void*>(from), bytes,
                              cudaMemcpyDefault, stream_of(stream)),
              "cudaMemcpyAsync");
      },
      py::arg("into"), py::arg("source"), py::arg("nbytes"), py::arg("stream"), py::arg("device") = py::none(),
      free_of_gil, "Copy between host and device memory in any direction, in stream order.");
  m.def(
      "synchronize",
      [](uintptr_t stream, std::optional<int> device) {
        const CaptureAside aside;
        std::optional<OnDevice> on;
        if (device) on.emplace(*device);
        check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
      },
      py::arg("stream"), py::arg("device") = py::none(), free_of_gil);
  m.def(
      "idle", [] { return idle(kAnyDevice); }, free_of_gil,
      "Whether no kernel of a communicator of this process is in flight.");
  m.def("is_capturing", &capturing, py::arg("stream"));
  m.def("begin_capture", &begin_capture, py::arg("stream"));
  py::class_<Stream>(
      m, "Stream", py::module_local(),
      "A stream that does not synchronize with the default stream, of the greatest priority: calls do not "
      "queue behind the kernels of a backward pass.")
      .def(py::init<int>(), py::arg("device"))
      .def_property_readonly("address", &Stream::address)
      .def_property_readonly("device", &Stream::device)
      .def_property_readonly("priority", &Stream::priority);
  py::class_<Event>(m, "Event", py::module_local(), "A point in a stream.")
      .def(py::init<int, bool>(), py::arg("device"), py::arg("timed") = false)
      .def("record", &Event::record, py::arg("stream"))
      .def("hold_back", &Event::hold_back, py::arg("stream"), "Make the stream wait until the point is reached.")
      .def("seconds_since", &Event::seconds_since, py::arg("earlier"), "Both events must have timing and be reached.")
      .def("done", &Event::done);
  py::class_<Graph>(m, "Graph", py::module_local(), "Captured work.").def("launch", &Graph::launch, py::arg("stream"));
  m.def("end_capture", &end_capture, py::arg("stream"));
}

}  // namespace pc::cuda
