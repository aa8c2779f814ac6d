// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/kernel_table.h"

namespace shardmesh {
namespace {

KernelTable MakeCpuTable() {
  KernelTable table = {};
  FillCopyKernels(table);
  FillPointwiseKernels(table);
  FillBinaryKernels(table);
  FillReduceKernels(table);
  FillMatmulKernels(table);
  FillRowsKernels(table);
  FillLookupKernels(table);
  FillAttentionKernels(table);
  FillRandomKernels(table);
  FillOptimizerKernels(table);
  return table;
}

template <typename Result, typename... Args>
void DoNothing(Result (*&kernel)(Args...)) {
  kernel = [](Args...) -> Result { return Result(); };
}

template <typename... Kernels>
void AllDoNothing(Kernels&... kernels) {
  (DoNothing(kernels), ...);
}

KernelTable MakeMetaTable() {
  KernelTable table = {};
  // Names every entry, so that a new one does not compile until it is here.
  auto& [fill, copy, unary, unary_backward, binary, binary_scalar, compare, compare_scalar, where,
         accumulate, silu_mul, silu_mul_backward, reduce, sum_of_squares, matmul, softmax,
         softmax_backward, rms_norm, rms_norm_backward, layer_norm, layer_norm_backward,
         find_out_of_range, embedding, embedding_backward, cross_entropy_terms,
         cross_entropy_backward, rotary, attention, attention_backward, random_uniform,
         random_normal, dropout, adamw, sgd] = table;
  AllDoNothing(fill, copy, unary, unary_backward, binary, binary_scalar, compare, compare_scalar,
               where, accumulate, silu_mul, silu_mul_backward, reduce, sum_of_squares, matmul,
               softmax, softmax_backward, rms_norm, rms_norm_backward, layer_norm,
               layer_norm_backward, find_out_of_range, embedding, embedding_backward,
               cross_entropy_terms, cross_entropy_backward, rotary, attention, attention_backward,
               random_uniform, random_normal, dropout, adamw, sgd);
  return table;
}

}  // namespace

const KernelTable& KernelsFor(Device device) {
  static const KernelTable cpu = MakeCpuTable();
  static const KernelTable meta = MakeMetaTable();
  switch (device.kind) {
    case DeviceKind::kCpu:
      return cpu;
    case DeviceKind::kMeta:
      return meta;
    case DeviceKind::kCuda:
      break;
  }
  Throw(absl::StatusCode::kUnavailable, "device ", device.ToString(),
        ": built without CUDA; rebuild with --config=cuda");
}

}  // namespace shardmesh
