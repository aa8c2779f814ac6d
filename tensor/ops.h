// SPDX-License-Identifier: Apache-2.0
//
// Ops on local tensors: each infers shape and dtype, allocates the result, and calls the device's
// kernel. Local: no communication, no autograd. Operands on meta give a result on meta.
//
//   Tensor y = ops::Binary(context, BinaryOp::kAdd, x, bias);     // broadcasts
//
// Errors: every function throws Error(kInvalidArgument) naming the op, the shapes and the dtypes,
// before anything is allocated. There is no promotion between tensor dtypes; scalars take the
// tensor's dtype.
//
// Versions: a function that writes a Tensor& raises the version of its storage by one, also if it
// has no elements; a result has version 0.
#ifndef SHARDMESH_TENSOR_OPS_H_
#define SHARDMESH_TENSOR_OPS_H_

#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shardmesh/tensor/kernel_table.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::ops {

// ---- creation and copies ------------------------------------------------------------------------
Tensor Full(ExecutionContext&, const Dims& shape, DType, double value);
Tensor Zeros(ExecutionContext&, const Dims& shape, DType);
void Fill(ExecutionContext&, Tensor& out, double value);
/// Shapes equal; converts.
void Copy(ExecutionContext&, const Tensor& x, Tensor& out);
/// Itself if contiguous, else a contiguous copy.
Tensor Contiguous(ExecutionContext&, const Tensor& x);
/// A contiguous copy, always.
Tensor Clone(ExecutionContext&, const Tensor& x);
/// Itself if the dtype is already this.
Tensor Cast(ExecutionContext&, const Tensor& x, DType);
/// A view where strides allow, else a view of a contiguous copy. One extent may be -1.
Tensor Reshape(ExecutionContext&, const Tensor& x, const Dims& shape);

// ---- pointwise ----------------------------------------------------------------------------------
/// A row of elementwise_ops.inc. An integer divided by 0 is an error.
Tensor Elementwise(ExecutionContext&, ElementwiseOp, std::span<const Tensor* const> operands,
                   const ElementwiseParams& params = {});
inline Tensor Elementwise(ExecutionContext& context, ElementwiseOp op,
                          std::initializer_list<const Tensor*> operands,
                          const ElementwiseParams& params = {}) {
  return Elementwise(context, op, std::span(operands.begin(), operands.size()), params);
}
inline Tensor Unary(ExecutionContext& context, ElementwiseOp op, const Tensor& x) {
  return Elementwise(context, op, {&x});
}
/// By `operand`, in grad's shape. `reads`: what ElementwiseRow::Reads() says, in its order.
Tensor ElementwiseGradient(ExecutionContext&, ElementwiseOp, int operand, const Tensor& grad,
                           std::span<const Tensor* const> reads,
                           const ElementwiseParams& params = {});
/// Both at once, of a row that is kFused.
std::pair<Tensor, Tensor> ElementwiseGradients(ExecutionContext&, ElementwiseOp, const Tensor& grad,
                                               std::span<const Tensor* const> reads,
                                               const ElementwiseParams& params = {});
Tensor Binary(ExecutionContext&, BinaryOp, const Tensor& a, const Tensor& b);
Tensor Binary(ExecutionContext&, BinaryOp, const Tensor& a, double b);
/// In place: a = a op b, with b broadcast to a's shape.
void BinaryInto(ExecutionContext&, BinaryOp, Tensor& a, const Tensor& b);
void BinaryInto(ExecutionContext&, BinaryOp, Tensor& a, double b);
Tensor Compare(ExecutionContext&, CompareOp, const Tensor& a, const Tensor& b);
Tensor Compare(ExecutionContext&, CompareOp, const Tensor& a, double b);
/// i64 and i32 with any integer, exact: also with one that no double or no i32 holds.
Tensor CompareInteger(ExecutionContext&, CompareOp, const Tensor& a, int64_t b);
Tensor Where(ExecutionContext&, const Tensor& cond, const Tensor& a, const Tensor& b);
void Accumulate(ExecutionContext&, const Tensor& x, Tensor& out);

// ---- reductions ---------------------------------------------------------------------------------
/// Over `dims` (all, if empty). Max and min of no elements at all give the identity. Sums and
/// products of integers and bools are i64. `out_dtype` may be f32 for bf16 and f16: then nothing is
/// rounded to the small dtype.
Tensor Reduce(ExecutionContext&, ReduceOp, const Tensor& x, std::span<const int> dims, bool keepdim,
              std::optional<DType> out_dtype = std::nullopt);
/// f64, 0-d.
Tensor SumOfSquares(ExecutionContext&, const Tensor& x);

// ---- matrix product -----------------------------------------------------------------------------
/// a[.., m, k] b[.., k, n] with broadcast batch dims. `out_dtype` may be f32 for bf16 and f16: then
/// nothing is rounded to the small dtype.
Tensor MatMul(ExecutionContext&, const Tensor& a, const Tensor& b,
              std::optional<DType> out_dtype = std::nullopt);
/// Into a given tensor, of a dtype that MatMul can give; with `accumulate` adds to it.
void MatMulInto(ExecutionContext&, const Tensor& a, const Tensor& b, bool accumulate, Tensor& out);

// ---- rows ---------------------------------------------------------------------------------------
Tensor Softmax(ExecutionContext&, const Tensor& x, int dim, bool log = false);
Tensor SoftmaxBackward(ExecutionContext&, const Tensor& grad, const Tensor& y, int dim,
                       bool log = false);

struct NormResult {
  Tensor y, mean, inv_std;  // RmsNorm: no mean; inv_std is 1 / rms.
};
NormResult RmsNorm(ExecutionContext&, const Tensor& x, const Tensor& w, double eps);
/// Into dx and dw, shaped by the caller; either may be an empty handle.
void RmsNormBackward(ExecutionContext&, const Tensor& grad, const Tensor& x, const Tensor& w,
                     const Tensor& inv_rms, Tensor& dx, bool accumulate_dw, Tensor& dw);
NormResult LayerNorm(ExecutionContext&, const Tensor& x, const Tensor& w, const Tensor& b,
                     double eps);
void LayerNormBackward(ExecutionContext&, const Tensor& grad, const Tensor& x, const Tensor& w,
                       const Tensor& mean, const Tensor& inv_std, Tensor& dx, bool accumulate,
                       Tensor& dw, Tensor& db);

// ---- lookups and losses -------------------------------------------------------------------------
/// Throws Error(kOutOfRange) naming `op`, the first bad index and the range [low, high).
void CheckIndices(ExecutionContext&, const char* op, const Tensor& ids, int64_t low, int64_t high,
                  std::optional<int64_t> ignored = std::nullopt);
/// `out_dtype` may be f32 for a table of bf16 or f16.
Tensor Embedding(ExecutionContext&, const Tensor& ids, const Tensor& table, int64_t first_row,
                 std::optional<DType> out_dtype = std::nullopt);
void EmbeddingBackward(ExecutionContext&, const Tensor& grad, const Tensor& ids, int64_t first_row,
                       bool accumulate, Tensor& dtable);
struct CrossEntropyTermsResult {
  Tensor sum_exp, picked;
};
CrossEntropyTermsResult CrossEntropyTerms(ExecutionContext&, const Tensor& x, const Tensor& targets,
                                          int64_t first_class, const Tensor& max);
Tensor CrossEntropyBackward(ExecutionContext&, const Tensor& x, const Tensor& targets,
                            int64_t first_class, const Tensor& max, const Tensor& sum_exp,
                            const Tensor& scale, int64_t ignore_index);

// ---- along one dim ------------------------------------------------------------------------------
Tensor Scan(ExecutionContext&, ScanOp, const Tensor& x, int dim, bool reverse = false);
/// The extremum so far (kMax or kMin) and its index, i64.
std::pair<Tensor, Tensor> ScanExtremum(ExecutionContext&, ScanOp, const Tensor& x, int dim);
Tensor CumulativeProductBackward(ExecutionContext&, const Tensor& grad, const Tensor& x, int dim);
/// Values and indices (i64). Stable; nan is larger than all.
std::pair<Tensor, Tensor> Sort(ExecutionContext&, const Tensor& x, int dim, bool descending);
/// x at `index` along `dim`, in index's shape, which is no larger than x's in other dims.
/// Throws Error(kOutOfRange) naming an index outside x.
Tensor Gather(ExecutionContext&, const Tensor& x, int dim, const Tensor& index);
/// x with source written at `index` along `dim`. Sums of bf16 and f16 are f32, rounded once. Throws
/// as Gather.
Tensor Scatter(ExecutionContext&, ScatterOp, const Tensor& x, int dim, const Tensor& index,
               const Tensor& source);

// ---- attention ----------------------------------------------------------------------------------
Tensor Rotary(ExecutionContext&, const Tensor& x, const Tensor& cos, const Tensor& sin,
              bool inverse);
/// `out` has the order of q's strides: a transposed view gives a transposed result.
struct AttentionResult {
  Tensor out, statistics;  ///< `statistics` is for the backward: see kernel_table.h.
};
AttentionResult Attention(ExecutionContext&, const Tensor& q, const Tensor& k, const Tensor& v,
                          bool causal, double scale);
struct AttentionGradients {
  Tensor dq, dk, dv;
};
AttentionGradients AttentionBackward(ExecutionContext&, const Tensor& grad, const Tensor& q,
                                     const Tensor& k, const Tensor& v, const Tensor& out,
                                     const Tensor& statistics, bool causal, double scale);

// ---- random numbers -----------------------------------------------------------------------------
void RandomUniform(ExecutionContext&, RandomKey, const RandomBox&, double low, double high,
                   Tensor& out);
void RandomNormal(ExecutionContext&, RandomKey, const RandomBox&, double mean, double stddev,
                  Tensor& out);
Tensor Dropout(ExecutionContext&, RandomKey, const RandomBox&, const Tensor& x, double p);

// ---- optimizer steps ----------------------------------------------------------------------------
/// In place; contiguous operands of one shape. p, m and v in one dtype, f32 or f64; any floating
/// grad.
void AdamW(ExecutionContext&, const AdamWStep&, const Tensor& grad, Tensor& p, Tensor& m,
           Tensor& v);
/// `buffer` may be an empty handle if momentum is 0; what it holds is ignored if `first`.
void Sgd(ExecutionContext&, double lr, double momentum, double weight_decay, bool first,
         const Tensor& grad, Tensor& p, Tensor& buffer);

// ---- concatenation ------------------------------------------------------------------------------
Tensor Concat(ExecutionContext&, std::span<const Tensor> parts, int dim);
/// Views.
std::vector<Tensor> Split(const Tensor& x, std::span<const int64_t> sizes, int dim);

}  // namespace shardmesh::ops

#endif  // SHARDMESH_TENSOR_OPS_H_
