// SPDX-License-Identifier: Apache-2.0
//
// What is known of each elementwise op without its kernels: the rows of elementwise_ops.inc.
#ifndef SHARDMESH_TENSOR_ELEMENTWISE_H_
#define SHARDMESH_TENSOR_ELEMENTWISE_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace shardmesh {

/// Unary ones first, then binary and ternary ones.
enum class ElementwiseOp : uint8_t {
#define SHARDMESH_UNARY(Function, ...) k##Function,
#define SHARDMESH_UNARY_WITH(Function, ...) k##Function,
#include "shardmesh/tensor/elementwise_ops.inc"
#define SHARDMESH_BINARY(Function, ...) k##Function,
#define SHARDMESH_BINARY_WITH(Function, ...) k##Function,
#include "shardmesh/tensor/elementwise_ops.inc"
#define SHARDMESH_TERNARY(Function, ...) k##Function,
#define SHARDMESH_TERNARY_WITH(Function, ...) k##Function,
#include "shardmesh/tensor/elementwise_ops.inc"
};

namespace elementwise {

/// Operands are of one floating-point dtype, which is the result's, and of more dtypes with these.
enum Flags : uint32_t {
  kNumbers = 1u << 0,   ///< i32 and i64 as well.
  kIntegers = 1u << 1,  ///< i32 and i64 only.
  kBools = 1u << 2,     ///< bool as well.
  kAnyDType = kNumbers | kBools,
  kBoolResult = 1u << 3,
  kWholeDivisor = 1u << 4,  ///< An integer divides by b, which must not be 0.

  // What the gradients read.
  kReadsA = 1u << 5,
  kReadsB = 1u << 6,
  kReadsC = 1u << 7,
  kReadsResult = 1u << 8,

  // Sums of operands pass through it.
  kLinearA = 1u << 9,
  kLinearB = 1u << 10,
  kLinearAB = 1u << 11,  ///< In both together.

  kVector = 1u << 12,  ///< Its loops are compiled for each instruction set.
  kFused = 1u << 13,   ///< Both gradients of a binary op in one pass.

  // Where values are numbers; tests keep to it.
  kPositive = 1u << 14,
  kUnit = 1u << 15,  ///< Below 1 (from 0 if kPositive).
  kAboveOne = 1u << 16,

  // Maxima and minima of a pass through it, at infinities and nan too.
  kRising = 1u << 17,
  kFalling = 1u << 18,  ///< A maximum becomes a minimum. Of floating-point numbers alone.
};
constexpr Flags operator|(Flags a, Flags b) {
  return static_cast<Flags>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}

}  // namespace elementwise

struct ElementwiseRow {
  const char* name;
  const char* backward_name;
  int arity;  ///< Operands.
  bool has_params;
  uint32_t flags;           ///< elementwise::Flags
  uint32_t differentiable;  ///< Bit i: there is a gradient of operand i.

  bool Has(uint32_t flag) const { return (flags & flag) != 0; }
  /// Bit i: backward reads operand i; bit `arity`: the result.
  uint32_t Reads() const {
    return ((flags / elementwise::kReadsA) & ((1u << arity) - 1)) |
           (Has(elementwise::kReadsResult) ? 1u << arity : 0u);
  }
};

/// p0, p1 and p2 of a row; 0 where it has none.
using ElementwiseParams = std::array<double, 3>;

const ElementwiseRow& RowOf(ElementwiseOp op);
inline std::string_view Name(ElementwiseOp op) { return RowOf(op).name; }

/// How many there are, and how many of them have one operand, or two.
int NumElementwiseOps();
int NumUnaryOps();
int NumBinaryOps();

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_ELEMENTWISE_H_
