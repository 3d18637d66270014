// The kernels' bodies.  A block is a channel of a rank; blocks of the same rank are adjacent.
#pragma once

#include "executor/cuda/kernels/group.h"
#include "executor/cuda/kernels/kernels.h"
#include "executor/cuda/kernels/low_latency.h"

namespace pc::cuda {

template <class E>
PC_FN void schedule_block(const Arguments& a) {
  const auto block = static_cast<int32_t>(block_index());
  CudaGroup<E> group(a, shared<BlockState>(), block / a.channels, block % a.channels);
  ScheduleView table{nullptr};
  Span span{};
  if (!group.begin(table, span)) return;
  Cursor cursor;
  cursor.entered = true;
  if (execute(group, table, span, cursor) == Status::done) group.finish(table, span);
}

template <class E>
PC_FN void low_latency_block(const LowLatencyArguments& a) {
  const auto block = static_cast<int32_t>(block_index());
  LowLatencyBlock<E>(a, shared<Exchange>(), block / a.channels, block % a.channels).run();
}

template <class E>
__global__ void __launch_bounds__(kThreads, 1) run_schedule(const __grid_constant__ Arguments a) {
  schedule_block<E>(a);
}

template <class E>
__global__ void __launch_bounds__(kThreads, 1) run_low_latency(const __grid_constant__ LowLatencyArguments a) {
  low_latency_block<E>(a);
}

template <class E>
Kernels kernels_with() {
  if constexpr (sizeof(typename E::Element) > kPacketBytes) return {run_schedule<E>, nullptr};  // exceeds a packet
  else return {run_schedule<E>, run_low_latency<E>};
}

// The sum, which dominates training, has specialized kernels.
template <class T>
Kernels real_kernels(Operator op) {
  const bool sums = op == Operator::sum || op == Operator::avg;
  return sums ? kernels_with<Elements<T, Fixed<Sum>>>() : kernels_with<Elements<T, Chosen<T>>>();
}

}  // namespace pc::cuda
