// SPDX-License-Identifier: Apache-2.0
//
// Walks operands of one shape and any strides together. The inner loop sees contiguous runs only:
// where an operand is strided or repeats, its elements are gathered into a buffer first (or
// scattered from one after).
//
//   ForEachRun(context, {&a, &b}, {&out}, [](char* const* data, int64_t n) {
//     // n elements each of a, b and out, at data[0], data[1] and data[2]
//   });
//
// Which elements share a run depends on shapes and strides, so this is for elementwise work only.
#ifndef SHARDMESH_TENSOR_CPU_LOOPS_CPU_H_
#define SHARDMESH_TENSOR_CPU_LOOPS_CPU_H_

#include <cstdint>
#include <initializer_list>
#include <span>

#include "absl/functional/function_ref.h"
#include "shardmesh/tensor/execution_context.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::cpu {

/// What one thread does at a time. Below it, no other thread is asked.
inline constexpr int64_t kTileElements = 16 * 1024;

/// n elements at each of data[k].
using RunFn = absl::FunctionRef<void(char* const* data, int64_t n)>;

/// Calls fn for contiguous runs that cover each element exactly once, on all threads: inputs first,
/// then outputs. At most five operands. An output that is read must be among the inputs as well.
/// The runs follow the order in memory of the last output.
void ForEachRun(ExecutionContext& context, std::span<const Tensor* const> inputs,
                std::span<const Tensor* const> outputs, RunFn fn);
inline void ForEachRun(ExecutionContext& context, std::initializer_list<const Tensor*> inputs,
                       std::initializer_list<const Tensor*> outputs, RunFn fn) {
  ForEachRun(context, std::span<const Tensor* const>(inputs.begin(), inputs.size()),
             std::span<const Tensor* const>(outputs.begin(), outputs.size()), fn);
}

/// Calls fn(begin, end) for tiles of [0, count), on all threads.
void ForTiles(ExecutionContext& context, int64_t count, int64_t tile,
              absl::FunctionRef<void(int64_t begin, int64_t end)> fn);

}  // namespace shardmesh::cpu

#endif  // SHARDMESH_TENSOR_CPU_LOOPS_CPU_H_
