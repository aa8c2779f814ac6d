// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one device: plain functions that write into operands which the caller has shaped
// and allocated. Shape and dtype inference live in tensor/ops.h, so that a new device brings this
// table and nothing else.
//
// Contracts of every kernel:
//   * operands have the shapes and dtypes stated, any strides unless stated otherwise, and may be
//   empty;
//   * an output does not overlap an input unless it is the same view (then elementwise kernels work
//   in place);
//   * the result depends on values and shapes alone: not on threads, alignment, strides or what the
//   processor has. Exceptions: BLAS (matmul, attention) may round differently for transposed
//   operands, and on another processor; so may functions that are libm's
//   (element_functions_cpu.h) on another processor;
//   * bf16 and f16 are computed in f32 and rounded once; sums accumulate in Accumulator<T> or
//   wider;
//   * working memory comes from the context's allocator and is given back;
//   * the reduction of nothing is the identity of the op;
//   * versions of storages stay (outputs are reached by internal::OutputData): an op in place
//   counts its write itself, as a kernel returns early for empty tensors and runs on many threads.
#ifndef SHARDMESH_TENSOR_KERNEL_TABLE_H_
#define SHARDMESH_TENSOR_KERNEL_TABLE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "shardmesh/base/dims.h"
#include "shardmesh/base/reduce_op.h"
#include "shardmesh/tensor/device.h"
#include "shardmesh/tensor/elementwise.h"
#include "shardmesh/tensor/execution_context.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh {

/// The kR* ones have their operands swapped (for a scalar on the left).
enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kMaximum, kMinimum, kRSub, kRDiv };
enum class CompareOp : uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };

/// Of the elements up to each one along a dim.
enum class ScanOp : uint8_t { kSum, kProduct, kMax, kMin, kLogSumExp };
/// What becomes of an element and what is written to it.
enum class ScatterOp : uint8_t { kSet, kAdd, kProduct, kMax, kMin };

std::string_view Name(BinaryOp op);
std::string_view Name(CompareOp op);

/// Which elements of a conceptual global tensor a local one holds; random numbers are a function of
/// the global index.
struct RandomBox {
  Dims global_shape;
  Dims begin;  ///< Global index of the local tensor's first element.
};
/// Names a sequence of random numbers: bits = Philox(seed, stream, global element index).
struct RandomKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
};

struct AdamWStep {
  double lr, beta1, beta2, eps, weight_decay;
  int64_t step;  ///< 1 for the first.
};

struct KernelTable {
  // ---- pointwise (copy_cpu.cc, elementwise_cpu.cc, binary_cpu.cc) -------------------------------
  void (*fill)(ExecutionContext&, double value, Tensor& out);
  /// Any strides and any pair of dtypes, converted as ConvertTo (dtype.h) says.
  void (*copy)(ExecutionContext&, const Tensor& x, Tensor& out);
  /// out = the row's value; operands already expanded to out's shape. Three params, of which those
  /// that the row does not have are 0.
  void (*elementwise)(ExecutionContext&, ElementwiseOp, const double* params,
                      std::span<const Tensor* const> operands, Tensor& out);
  /// outs[0] = grad * the derivative by `operand`; for a row that is kFused two outs are those of
  /// both. `reads`: what ElementwiseRow::Reads() says, in its order. All of grad's shape and dtype.
  void (*elementwise_gradient)(ExecutionContext&, ElementwiseOp, int operand, const double* params,
                               const Tensor& grad, std::span<const Tensor* const> reads,
                               std::span<Tensor* const> outs);
  /// a and b already expanded to out's shape. Maximum and minimum propagate NaN.
  void (*binary)(ExecutionContext&, BinaryOp, const Tensor& a, const Tensor& b, Tensor& out);
  void (*binary_scalar)(ExecutionContext&, BinaryOp, const Tensor& a, double b, Tensor& out);
  /// out is bool.
  void (*compare)(ExecutionContext&, CompareOp, const Tensor& a, const Tensor& b, Tensor& out);
  void (*compare_scalar)(ExecutionContext&, CompareOp, const Tensor& a, double b, Tensor& out);
  /// a is i64 or i32, and b one of its values.
  void (*compare_integer)(ExecutionContext&, CompareOp, const Tensor& a, int64_t b, Tensor& out);
  /// cond is bool; all of one shape.
  void (*where)(ExecutionContext&, const Tensor& cond, const Tensor& a, const Tensor& b,
                Tensor& out);
  /// out += x, where out's dtype may be wider than x's (f32 += bf16).
  void (*accumulate)(ExecutionContext&, const Tensor& x, Tensor& out);

  // ---- reductions (reduce_cpu.cc) ---------------------------------------------------------------
  /// out has x's rank; where out's extent is 1 and x's is not (or `reduced` bit d is set), dim d is
  /// reduced. Max and min propagate NaN; of nothing they are -inf / +inf (lowest / highest
  /// integer). out's dtype may be wider than x's.
  void (*reduce)(ExecutionContext&, ReduceOp, const Tensor& x, uint32_t reduced, Tensor& out);
  /// out is f64 and has one element.
  void (*sum_of_squares)(ExecutionContext&, const Tensor& x, Tensor& out);

  // ---- matrix product (matmul_cpu.cc) -----------------------------------------------------------
  /// out[.., m, n] (+)= sum_k a[.., m, k] b[.., k, n]; batch dims of a and b already expanded to
  /// out's. Any strides; row- and column-major operands are not copied. Dtypes of a and b equal;
  /// out the same, or f32 for bf16 and f16. With k == 0, out is zero (or, if accumulating,
  /// unchanged).
  void (*matmul)(ExecutionContext&, const Tensor& a, const Tensor& b, bool accumulate, Tensor& out);

  // ---- rows: softmax and norms over the last dim (rows_cpu.cc) ----------------------------------
  void (*softmax)(ExecutionContext&, const Tensor& x, bool log, Tensor& out);
  void (*softmax_backward)(ExecutionContext&, const Tensor& grad, const Tensor& y, bool log,
                           Tensor& out);
  /// y = x / sqrt(mean(x^2) + eps) * w. inv_rms has x's shape without the last dim, dtype
  /// Accumulator.
  void (*rms_norm)(ExecutionContext&, const Tensor& x, const Tensor& w, double eps, Tensor& y,
                   Tensor& inv_rms);
  /// dw (+)= ..., in its own dtype (at least as wide as x's); dx and dw may be empty handles.
  void (*rms_norm_backward)(ExecutionContext&, const Tensor& grad, const Tensor& x, const Tensor& w,
                            const Tensor& inv_rms, Tensor& dx, bool accumulate_dw, Tensor& dw);
  /// b may be an empty handle. mean and inv_std as inv_rms.
  void (*layer_norm)(ExecutionContext&, const Tensor& x, const Tensor& w, const Tensor& b,
                     double eps, Tensor& y, Tensor& mean, Tensor& inv_std);
  void (*layer_norm_backward)(ExecutionContext&, const Tensor& grad, const Tensor& x,
                              const Tensor& w, const Tensor& mean, const Tensor& inv_std,
                              Tensor& dx, bool accumulate, Tensor& dw, Tensor& db);

  // ---- lookups and losses (lookup_cpu.cc) -------------------------------------------------------
  /// The first id, in row-major order, outside [low, high) and not equal to `ignored`, if any. ids
  /// i64 or i32.
  std::optional<int64_t> (*find_out_of_range)(ExecutionContext&, const Tensor& ids, int64_t low,
                                              int64_t high, std::optional<int64_t> ignored);
  /// out[.., :] = table[ids - first_row, :], or zeros where the id is not among table's rows. out's
  /// dtype is the table's, or f32 for bf16 and f16.
  void (*embedding)(ExecutionContext&, const Tensor& ids, const Tensor& table, int64_t first_row,
                    Tensor& out);
  /// dtable (+)= sum over positions; in position order, in dtable's dtype (at least as wide as
  /// grad's).
  void (*embedding_backward)(ExecutionContext&, const Tensor& grad, const Tensor& ids,
                             int64_t first_row, bool accumulate, Tensor& dtable);
  /// Per row of x[.., classes], with the row's maximum over *all* classes given (accumulator dtype,
  /// as the outputs): sum_exp = sum over local classes of exp(x - max); picked = x[target -
  /// first_class] - max, 0 where the target is not local. So the loss, log(sum_exp) - picked, has
  /// no large terms that cancel.
  void (*cross_entropy_terms)(ExecutionContext&, const Tensor& x, const Tensor& targets,
                              int64_t first_class, const Tensor& max, Tensor& sum_exp,
                              Tensor& picked);
  /// dx = (exp(x - max) / sum_exp - [class == target]) * scale, with max, sum_exp (over *all*
  /// classes) and scale per row; rows whose target is ignore_index get 0.
  void (*cross_entropy_backward)(ExecutionContext&, const Tensor& x, const Tensor& targets,
                                 int64_t first_class, const Tensor& max, const Tensor& sum_exp,
                                 const Tensor& scale, int64_t ignore_index, Tensor& dx);

  // ---- along one dim (indexing_cpu.cc) ----------------------------------------------------------
  // All operands are contiguous.
  /// From the last element to the first if `reverse`. kMax and kMin also give the index of the
  /// extremum in `indices` (i64), of equal ones the latest, and nan once there is one; other
  /// `indices` are an empty handle.
  void (*scan)(ExecutionContext&, ScanOp, const Tensor& x, int dim, bool reverse, Tensor& out,
               Tensor& indices);
  void (*cumulative_product_backward)(ExecutionContext&, const Tensor& grad, const Tensor& x,
                                      int dim, Tensor& out);
  /// Stable; nan is larger than all. indices i64.
  void (*sort)(ExecutionContext&, const Tensor& x, int dim, bool descending, Tensor& values,
               Tensor& indices);
  /// out[.., i, ..] = x[.., index[.., i, ..], ..]. index (i64) has out's shape, no larger than x's
  /// but along `dim`, and is within x.
  void (*gather)(ExecutionContext&, const Tensor& x, int dim, const Tensor& index, Tensor& out);
  /// out[.., index[.., i, ..], ..] becomes what `op` makes of it and source[.., i, ..], one after
  /// the other in the order of `index` (i64), which has source's shape, no larger than out's but
  /// along `dim`.
  void (*scatter)(ExecutionContext&, ScatterOp, int dim, const Tensor& index, const Tensor& source,
                  Tensor& out);

  // ---- linear algebra (linalg_cpu.cc) -----------------------------------------------------------
  // f32 or f64, contiguous; dims before the last two are a batch. Where a number is returned, it is
  // that of the first matrix of the batch (row-major) that is singular, or not positive definite;
  // `out` is then unspecified.
  /// x = out out^T with zeros above out's diagonal; of x the lower triangle is read.
  std::optional<int64_t> (*cholesky)(ExecutionContext&, const Tensor& x, Tensor& out);
  /// det x = sign * exp(log_abs), which have the batch dims of x; 0 and -inf if x is singular.
  void (*log_determinant)(ExecutionContext&, const Tensor& x, Tensor& sign, Tensor& log_abs);
  /// a out = b, by LU factors; a [.., n, n], b and out [.., n, k].
  std::optional<int64_t> (*solve)(ExecutionContext&, const Tensor& a, const Tensor& b, Tensor& out);
  /// The same where a is triangular; its other triangle is not read, and its diagonal is taken for
  /// ones if `unit_diagonal`. A zero on the diagonal gives infinities, as in LAPACK's trsm.
  void (*solve_triangular)(ExecutionContext&, const Tensor& a, const Tensor& b, bool upper,
                           bool unit_diagonal, Tensor& out);
  /// x = q r by Householder reflections; x [.., m, n], q [.., m, k], r [.., k, n] upper triangular,
  /// k either min(m, n) or m.
  void (*qr)(ExecutionContext&, const Tensor& x, Tensor& q, Tensor& r);
  /// x = vectors diag(values) vectors^T; values [.., n] ascending. Of x one triangle is read.
  void (*eigh)(ExecutionContext&, const Tensor& x, bool upper, Tensor& values, Tensor& vectors);

  // ---- attention (attention_cpu.cc) -------------------------------------------------------------
  /// x[batch, heads, seq, d]; cos, sin [seq, d/2] in Accumulator dtype. Pairs are (i, i + d/2):
  /// out_i = x_i cos - x_j sin, out_j = x_j cos + x_i sin; `inverse` rotates back (the backward).
  /// Last dims contiguous; cos and sin contiguous.
  void (*rotary)(ExecutionContext&, const Tensor& x, const Tensor& cos, const Tensor& sin,
                 bool inverse, Tensor& out);
  /// q[b, h, sq, d], k and v [b, kv, sk, d], h a multiple of kv; query head i reads key head
  /// i / (h / kv). Blockwise: memory is linear in sequence length. `causal`: position i sees keys
  /// 0..i + (sk - sq); one that sees none gives 0. d > 0; last dims contiguous.
  /// statistics [b, h, sq, 2] in Accumulator dtype: per query, the largest score and the sum of
  /// exp(score - largest); -inf and 0 for one that sees no key.
  void (*attention)(ExecutionContext&, const Tensor& q, const Tensor& k, const Tensor& v,
                    bool causal, double scale, Tensor& out, Tensor& statistics);
  void (*attention_backward)(ExecutionContext&, const Tensor& grad, const Tensor& q,
                             const Tensor& k, const Tensor& v, const Tensor& out,
                             const Tensor& statistics, bool causal, double scale, Tensor& dq,
                             Tensor& dk, Tensor& dv);

  // ---- random numbers (random_cpu.cc) -----------------------------------------------------------
  /// Uniform in [low, high), or normal; docs/random.md has the format. out floating, any box of the
  /// global tensor: same bits whatever the box.
  void (*random_uniform)(ExecutionContext&, RandomKey, const RandomBox&, double low, double high,
                         Tensor& out);
  void (*random_normal)(ExecutionContext&, RandomKey, const RandomBox&, double mean, double stddev,
                        Tensor& out);
  /// out = keep ? x / (1 - p) : 0, keep with probability 1 - p.
  void (*dropout)(ExecutionContext&, RandomKey, const RandomBox&, const Tensor& x, double p,
                  Tensor& out);

  // ---- optimizer steps (optimizer_cpu.cc) -------------------------------------------------------
  /// In place, elementwise, contiguous operands of one shape. p, m, v in one dtype (f32 or f64),
  /// grad any floating. p -= lr * weight_decay * p; then Adam with bias correction, eps added after
  /// the square root; no update where that sum is 0.
  void (*adamw)(ExecutionContext&, const AdamWStep&, const Tensor& grad, Tensor& p, Tensor& m,
                Tensor& v);
  /// d = grad + weight_decay * p; buffer = first ? d : momentum * buffer + d; p -= lr * buffer.
  /// buffer may be none.
  void (*sgd)(ExecutionContext&, double lr, double momentum, double weight_decay, bool first,
              const Tensor& grad, Tensor& p, Tensor& buffer);
};

/// The table of a device kind. Meta's kernels do nothing. Throws Error(kUnavailable) for a device
/// that this build does not have.
const KernelTable& KernelsFor(Device device);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_KERNEL_TABLE_H_
