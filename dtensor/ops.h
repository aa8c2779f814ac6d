// SPDX-License-Identifier: Apache-2.0
//
// Ops on distributed tensors. Each has one sharding rule (placement/rule.h) beside its
// implementation in ops_*.cc; where the operands' layouts do not fit, the cheapest move is
// inserted. Differentiable unless stated otherwise.
//
//   DTensor y = Linear(x, w);       // x [S(0), R], w [R, S(0)]  ->  y [S(0), S(1)]: no
//   communication
//
// Collective: all ranks of the mesh must call with the same global arguments.
// Errors: throws Error(kInvalidArgument) naming the op, shapes, dtypes and layouts; alike on all
// ranks.
#ifndef SHARDMESH_DTENSOR_OPS_H_
#define SHARDMESH_DTENSOR_OPS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/tensor/kernel_table.h"

namespace shardmesh {

// ---- pointwise (ops_pointwise.cc): rule "elementwise with broadcast"
// ------------------------------------------------------
DTensor Neg(const DTensor& x);  // Partial passes through.
DTensor Abs(const DTensor& x);
DTensor Exp(const DTensor& x);
DTensor Log(const DTensor& x);
DTensor Sqrt(const DTensor& x);
DTensor Rsqrt(const DTensor& x);
DTensor Reciprocal(const DTensor& x);
DTensor Tanh(const DTensor& x);
DTensor Sigmoid(const DTensor& x);
DTensor Silu(const DTensor& x);
DTensor Relu(const DTensor& x);
DTensor Square(const DTensor& x);
DTensor Sin(const DTensor& x);
DTensor Cos(const DTensor& x);
DTensor Add(const DTensor& a, const DTensor& b);      // P + P -> P.
DTensor Sub(const DTensor& a, const DTensor& b);      // P - P -> P.
DTensor Mul(const DTensor& a, const DTensor& b);      // P * R -> P.
DTensor Div(const DTensor& a, const DTensor& b);      // P / R -> P.
DTensor Maximum(const DTensor& a, const DTensor& b);  // Of equal elements each gets half.
DTensor Minimum(const DTensor& a, const DTensor& b);
DTensor Add(const DTensor& a, double b);  // Not on a Partial: it is reduced first.
DTensor Sub(const DTensor& a, double b);
DTensor Mul(const DTensor& a, double b);
DTensor Div(const DTensor& a, double b);
/// The gradient passes where a is beyond b, and not where they are equal (as in clamp).
DTensor Maximum(const DTensor& a, double b);  // At a == b the gradient is 0, as that of Relu.
DTensor Minimum(const DTensor& a, double b);
inline DTensor operator+(const DTensor& a, const DTensor& b) { return Add(a, b); }
inline DTensor operator-(const DTensor& a, const DTensor& b) { return Sub(a, b); }
inline DTensor operator*(const DTensor& a, const DTensor& b) { return Mul(a, b); }
inline DTensor operator/(const DTensor& a, const DTensor& b) { return Div(a, b); }
inline DTensor operator+(const DTensor& a, double b) { return Add(a, b); }
inline DTensor operator-(const DTensor& a, double b) { return Sub(a, b); }
inline DTensor operator*(const DTensor& a, double b) { return Mul(a, b); }
inline DTensor operator/(const DTensor& a, double b) { return Div(a, b); }
inline DTensor operator-(const DTensor& x) { return Neg(x); }
/// Bool result, not differentiable.
DTensor Compare(CompareOp op, const DTensor& a, const DTensor& b);
DTensor Compare(CompareOp op, const DTensor& a, double b);
DTensor Where(const DTensor& condition, const DTensor& a, const DTensor& b);
DTensor Cast(const DTensor& x, DType dtype);
/// silu(gate) * up.
DTensor SiluMul(const DTensor& gate, const DTensor& up);
/// Zeroes each element with probability p and scales the rest by 1 / (1 - p); the mask depends on
/// (seed, stream, global index) alone.
DTensor Dropout(const DTensor& x, double p, RandomKey key);

// ---- in place: keep layout and aliasing, or throw. Not recorded: throw on a tensor that requires
// a gradient unless
// ---- NoGrad is alive.
void AddInPlace(const DTensor& a, const DTensor& b);
void MulInPlace(const DTensor& a, double b);
void FillInPlace(const DTensor& a, double value);
void CopyInPlace(const DTensor& target, const DTensor& source);

// ---- reductions (ops_reduce.cc)
// ---------------------------------------------------------------------------------------------
/// Over `dims`, or all if empty. Sharding a reduced dim gives a Partial result.
DTensor Sum(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
/// Sum divided by the global count.
DTensor Mean(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
/// Ties share the gradient equally. Throws on a globally empty dim.
DTensor Max(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
DTensor Min(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);

// ---- matrix products (ops_matmul.cc)
// ------------------------------------------------------------------------------------------
/// a [.., m, k] x b [.., k, n]: "b m k, b k n -> b m n", sum over k.
DTensor MatMul(const DTensor& a, const DTensor& b);
/// x [.., k], weight [n, k] (as PyTorch stores it), bias [n] or none: "b k, n k -> b n".
DTensor Linear(const DTensor& x, const DTensor& weight, const DTensor& bias = {});

// ---- softmax and norms (ops_rows.cc): the normalised dim must be whole
// ------------------------------------------------------------
DTensor Softmax(const DTensor& x, int dim);
DTensor LogSoftmax(const DTensor& x, int dim);
DTensor RmsNorm(const DTensor& x, const DTensor& weight, double eps);
DTensor LayerNorm(const DTensor& x, const DTensor& weight, const DTensor& bias, double eps);

// ---- lookups and losses (ops_lookup.cc)
// ---------------------------------------------------------------------------------------------
/// table [v, h] at ids [..]: "b, v h -> b h", sum over v: a rank writes zeros for ids outside its
/// rows. Errors: throws Error(kOutOfRange) naming the index and the range, before any local work.
DTensor Embedding(const DTensor& ids, const DTensor& table);
/// Mean (kMean) or sum over all targets that are not `ignore_index` of -log
/// softmax(logits)[target]. logits [.., v], targets [..]. The class dim may be sharded: three small
/// all-reduces, the logits are never gathered. The mean divides by the global count of targets; if
/// there are none it is nan, and the gradient is zero. For bf16 and f16 logits the loss is f32.
enum class LossReduction { kMean, kSum };
DTensor CrossEntropy(const DTensor& logits, const DTensor& targets, int64_t ignore_index = -100,
                     LossReduction reduction = LossReduction::kMean);
DTensor MseLoss(const DTensor& x, const DTensor& target,
                LossReduction reduction = LossReduction::kMean);

// ---- attention (ops_attention.cc)
// ---------------------------------------------------------------------------------------------------
/// x [batch, heads, seq, d] rotated by position; cos and sin are plain tensors [seq, d/2], the same
/// on every rank.
DTensor Rotary(const DTensor& x, const Tensor& cos, const Tensor& sin);
/// softmax(q k^T * scale) v with q [b, h, sq, d], k and v [b, kv, sk, d], kv dividing h. Heads and
/// batch may be sharded.
DTensor Attention(const DTensor& q, const DTensor& k, const DTensor& v, bool causal,
                  std::optional<double> scale = std::nullopt);

// ---- shape (ops_shape.cc): views where no data moves; in-place ops on a result that does not
// alias are refused -----------------------
DTensor Reshape(const DTensor& x, const Dims& shape);
DTensor Transpose(const DTensor& x, int dim0, int dim1);
DTensor Expand(const DTensor& x, const Dims& shape);
/// [start, start + length) of `dim`, which must be whole (it is gathered if it is not).
DTensor Slice(const DTensor& x, int dim, int64_t start, int64_t length);
DTensor Concat(const std::vector<DTensor>& parts, int dim);
std::vector<DTensor> Split(const DTensor& x, const std::vector<int64_t>& sizes, int dim);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_H_
