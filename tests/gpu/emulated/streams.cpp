// Streams, events, capture and graphs.
#include "machine.h"

using namespace pc_emulated;

namespace {
std::atomic<int> global_captures{0};
thread_local int own_captures = 0;  // captures that are not relaxed
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
}  // namespace

bool pc_emulated::forbidden() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  return own_captures > 0 || (thread_mode == cudaStreamCaptureModeGlobal && global_captures.load() > 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = stream->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  auto made = std::make_shared<Stream>();
  made->priority = priority;  // reported, but without effect
  *stream = made.get();
  const std::lock_guard lock(state().streams_mutex);
  state().streams.push_back(std::move(made));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::shared_ptr<Stream> last;  // its thread is ended outside the lock
  const std::lock_guard lock(state().streams_mutex);
  auto& all = state().streams;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.get() == stream; });
  if (found == all.end()) return cudaErrorInvalidValue;
  last = std::move(*found);
  all.erase(found);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  if (real(stream)->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  real(stream)->drain();
  return cudaSuccess;
}
// Exported for the emulated NCCL, a separate library that looks it up by name.
extern "C" __attribute__((visibility("default"))) cudaError_t cudaLaunchHostFunc(cudaStream_t stream,
                                                                                 void (*work)(void*), void* data) {
  enqueue(stream, [=] { work(data); });
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  *id = real(stream)->id;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  drain_all();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new Event;
  return cudaSuccess;
}
namespace {

std::function<void()> recording(const std::shared_ptr<EventState>& state) {
  const std::lock_guard lock(state->mutex);
  return [state, mine = ++state->recorded] {
    const std::lock_guard lock(state->mutex);
    state->happened = std::max(state->happened, mine);
    state->at = std::chrono::steady_clock::now();
    state->changed.notify_all();
  };
}
std::function<void()> waiting(const std::shared_ptr<EventState>& state) {
  const std::lock_guard lock(state->mutex);
  return [state, until = state->recorded] { state->wait(until); };
}

// Submits work now, or at each launch of the graph that is being captured.  Within a capture of one stream, events that
// are not external only repeat its order.
template <class Make>
cudaError_t put(cudaStream_t stream, bool external, Make make) {
  Graph* graph = real(stream)->capture;
  if (graph == nullptr && external) return cudaErrorInvalidValue;
  if (graph == nullptr) enqueue(stream, make());
  else if (external) graph->add(make);
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return put(stream, false, [state = event->state] { return recording(state); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  const bool external = flags == cudaEventWaitExternal;
  // On a GPU it may wait for a record in its own graph.
  if (external && event->state->recorded == 0) return cudaErrorInvalidValue;
  return put(stream, external, [state = event->state] { return waiting(state); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  const auto state = event->state;
  const std::lock_guard lock(state->mutex);
  return state->happened == state->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (cudaEventQuery(start) != cudaSuccess || cudaEventQuery(end) != cudaSuccess) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end->state->at - start->state->at).count();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  event->state->wait(event->state->recorded);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(thread_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = real(stream)->capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData**,
                                     size_t* count) {
  static thread_local cudaGraphNode_t newest;
  Graph* into = real(stream)->capture;
  if (into != nullptr) *id = into->id;
  if (into != nullptr && graph != nullptr) {
    newest = into->nodes.empty() ? nullptr : into->nodes.back().get();
    *graph = into;
    *nodes = &newest;
    *count = newest == nullptr ? 0 : 1;
  }
  return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                        size_t count, cudaEvent_t event) {
  graph->leaves.push_back(
      std::make_shared<Node>(Node{[state = event->state] { return recording(state); }, {after, after + count}}));
  *node = graph->leaves.back().get();
  return cudaSuccess;
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                                     const cudaGraphEdgeData*, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i]->after.push_back(from[i]);
  return cudaSuccess;
}
cudaError_t cudaGraphRemoveDependencies(cudaGraph_t, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                                        const cudaGraphEdgeData*, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (std::erase(to[i]->after, from[i]) == 0) return cudaErrorInvalidValue;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr || stream->capture != nullptr) return cudaErrorInvalidValue;
  stream->capture = new Graph;
  stream->capture->mode = flag("PC_EMULATED_GLOBAL_CAPTURE") ? cudaStreamCaptureModeGlobal : mode;
  if (stream->capture->mode != cudaStreamCaptureModeRelaxed) ++own_captures;
  if (stream->capture->mode == cudaStreamCaptureModeGlobal) ++global_captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->capture, nullptr);
  if (*graph == nullptr) return cudaErrorInvalidValue;
  if ((*graph)->mode != cudaStreamCaptureModeRelaxed) --own_captures;
  if ((*graph)->mode == cudaStreamCaptureModeGlobal) --global_captures;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new Graph(*graph);
  return cudaSuccess;
}
// A leaf runs as early as its dependencies permit.
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  std::map<const Node*, std::vector<Node*>> waiting;  // for a node
  for (const auto& leaf : executable->leaves) {
    const Node* last = nullptr;
    for (const auto& node : executable->nodes)
      if (std::find(leaf->after.begin(), leaf->after.end(), node.get()) != leaf->after.end()) last = node.get();
    waiting[last].push_back(leaf.get());
  }
  const auto launch = [&](const Node* after) {
    for (const Node* leaf : waiting[after]) enqueue(stream, leaf->make());
  };
  launch(nullptr);
  for (const auto& node : executable->nodes) {
    enqueue(stream, node->make());
    launch(node.get());
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
