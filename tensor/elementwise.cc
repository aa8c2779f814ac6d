// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/elementwise.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

namespace shardmesh {
namespace elementwise {
namespace {

// Of the texts of the gradients.
constexpr uint32_t Differentiable(std::initializer_list<std::string_view> gradients) {
  uint32_t bits = 0, bit = 1;
  for (std::string_view gradient : gradients) {
    if (gradient != "kNone") bits |= bit;
    bit <<= 1;
  }
  return bits;
}

constexpr ElementwiseRow kRows[] = {
#define SHARDMESH_UNARY_ROW(name, has_params, flags, ga) \
  {#name, #name "_backward", 1, has_params, flags, Differentiable({#ga})},
#define SHARDMESH_UNARY(Function, name, flags, value, ga) \
  SHARDMESH_UNARY_ROW(name, false, flags, ga)
#define SHARDMESH_UNARY_WITH(Function, name, flags, value, ga) \
  SHARDMESH_UNARY_ROW(name, true, flags, ga)
#include "shardmesh/tensor/elementwise_ops.inc"
#define SHARDMESH_BINARY_ROW(name, has_params, flags, ga, gb) \
  {#name, #name "_backward", 2, has_params, flags, Differentiable({#ga, #gb})},
#define SHARDMESH_BINARY(Function, name, flags, value, ga, gb) \
  SHARDMESH_BINARY_ROW(name, false, flags, ga, gb)
#define SHARDMESH_BINARY_WITH(Function, name, flags, value, ga, gb) \
  SHARDMESH_BINARY_ROW(name, true, flags, ga, gb)
#include "shardmesh/tensor/elementwise_ops.inc"
#define SHARDMESH_TERNARY_ROW(name, has_params, flags, ga, gb, gc) \
  {#name, #name "_backward", 3, has_params, flags, Differentiable({#ga, #gb, #gc})},
#define SHARDMESH_TERNARY(Function, name, flags, value, ga, gb, gc) \
  SHARDMESH_TERNARY_ROW(name, false, flags, ga, gb, gc)
#define SHARDMESH_TERNARY_WITH(Function, name, flags, value, ga, gb, gc) \
  SHARDMESH_TERNARY_ROW(name, true, flags, ga, gb, gc)
#include "shardmesh/tensor/elementwise_ops.inc"
};

constexpr int CountOf(int arity) {
  return static_cast<int>(
      std::count_if(std::begin(kRows), std::end(kRows),
                    [arity](const ElementwiseRow& row) { return row.arity == arity; }));
}

constexpr int kNumOps = static_cast<int>(std::size(kRows)), kNumUnary = CountOf(1),
              kNumBinary = CountOf(2);

}  // namespace
}  // namespace elementwise

const ElementwiseRow& RowOf(ElementwiseOp op) { return elementwise::kRows[static_cast<int>(op)]; }
int NumElementwiseOps() { return elementwise::kNumOps; }
int NumUnaryOps() { return elementwise::kNumUnary; }
int NumBinaryOps() { return elementwise::kNumBinary; }

}  // namespace shardmesh
