// The graph that a stream is being captured into.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>

#include "base/cuda/error.h"

namespace pc::cuda {

struct CapturedNode {
  cudaGraph_t graph;
  cudaGraphNode_t node;
};

// The node that the next one in a captured stream will depend on; there must be exactly one, as after a launch.
inline CapturedNode newest_node(cudaStream_t stream) {
  CapturedNode newest{};
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  const cudaGraphNode_t* nodes = nullptr;
  size_t count = 0;
#if CUDART_VERSION >= 13000
  const cudaError_t got = cudaStreamGetCaptureInfo(stream, &status, &id, &newest.graph, &nodes, nullptr, &count);
#else
  const cudaError_t got = cudaStreamGetCaptureInfo(stream, &status, &id, &newest.graph, &nodes, &count);
#endif
  check(got, "cudaStreamGetCaptureInfo");
  if (count != 1) throw std::logic_error("a captured launch is not its stream's only newest node");
  newest.node = nodes[0];
  return newest;
}

// Replaces the edge `from` -> `to` by `now` -> `to`.
inline void move_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t now, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
  check(cudaGraphAddDependencies(graph, &now, &to, nullptr, 1), "cudaGraphAddDependencies");
  check(cudaGraphRemoveDependencies(graph, &from, &to, nullptr, 1), "cudaGraphRemoveDependencies");
#else
  check(cudaGraphAddDependencies(graph, &now, &to, 1), "cudaGraphAddDependencies");
  check(cudaGraphRemoveDependencies(graph, &from, &to, 1), "cudaGraphRemoveDependencies");
#endif
}

}  // namespace pc::cuda
