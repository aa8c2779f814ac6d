// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/kernel_table.h"

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"

namespace shardmesh {
namespace {

KernelTable MakeCpuTable() {
  KernelTable table = {};
  FillPointwiseKernels(table);
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

std::string_view Name(UnaryOp op) {
  switch (op) {
    case UnaryOp::kNeg:
      return "neg";
    case UnaryOp::kAbs:
      return "abs";
    case UnaryOp::kExp:
      return "exp";
    case UnaryOp::kLog:
      return "log";
    case UnaryOp::kSqrt:
      return "sqrt";
    case UnaryOp::kRsqrt:
      return "rsqrt";
    case UnaryOp::kReciprocal:
      return "reciprocal";
    case UnaryOp::kTanh:
      return "tanh";
    case UnaryOp::kSigmoid:
      return "sigmoid";
    case UnaryOp::kSilu:
      return "silu";
    case UnaryOp::kRelu:
      return "relu";
    case UnaryOp::kSquare:
      return "square";
    case UnaryOp::kSin:
      return "sin";
    case UnaryOp::kCos:
      return "cos";
  }
  return "?";
}

std::string_view Name(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "add";
    case BinaryOp::kSub:
      return "sub";
    case BinaryOp::kMul:
      return "mul";
    case BinaryOp::kDiv:
      return "div";
    case BinaryOp::kMaximum:
      return "maximum";
    case BinaryOp::kMinimum:
      return "minimum";
    case BinaryOp::kRSub:
      return "rsub";
    case BinaryOp::kRDiv:
      return "rdiv";
  }
  return "?";
}

std::string_view Name(CompareOp op) {
  switch (op) {
    case CompareOp::kEqual:
      return "equal";
    case CompareOp::kNotEqual:
      return "not_equal";
    case CompareOp::kLess:
      return "less";
    case CompareOp::kLessEqual:
      return "less_equal";
    case CompareOp::kGreater:
      return "greater";
    case CompareOp::kGreaterEqual:
      return "greater_equal";
  }
  return "?";
}

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
