// SPDX-License-Identifier: Apache-2.0
//
// Rotary embedding, and attention by blocks of queries and keys: scores of one block at a time,
// with a running maximum and sum, so that memory is linear in sequence length. The backward
// computes the blocks again from the two, which stay apart: their logarithm would be rounded at the
// size of the largest score.
//
// Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018; T. Dao et
// al., "FlashAttention", 2022.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/cpu/blas_cpu.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/isa_cpu.h"
#include "shardmesh/tensor/cpu/lanes_cpu.h"
#include "shardmesh/tensor/cpu/math_cpu.h"
#include "shardmesh/tensor/cpu/rows_access_cpu.h"
#include "shardmesh/tensor/cpu/scratch_cpu.h"
#include "shardmesh/tensor/internal/output_data.h"

namespace shardmesh {
namespace {

using cpu::Gemm;
using cpu::MatrixView;
using cpu::RunForIsa;
using cpu::Scratch;
using internal::OutputData;

// Slots of scratch.
enum Slot { kQ, kK, kV, kOut, kScores, kGradScores, kGrad, kSumQ, kSumK, kSumV, kStatistics };

// ---- rotary -------------------------------------------------------------------------------------

/// Rows of one head: positions follow one another.
template <typename A>
struct RotaryRows {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* x, int64_t x_stride, const A* cos, const A* sin,
                                          A sign, A* out, int64_t out_stride, int64_t rows,
                                          int64_t half) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < half; ++i) {
        const A first = x[i], second = x[i + half], s = sin[i] * sign;
        out[i] = first * cos[i] - second * s;
        out[i + half] = second * cos[i] + first * s;
      }
      x += x_stride, out += out_stride, cos += half, sin += half;
    }
  }
};

/// A [rows, cols] block of memory whose rows are contiguous.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
};

/// The elements of head `head` of batch item `batch` of x, whose first element is at `data`.
template <typename T>
Rows<T> HeadOf(T* data, const Tensor& x, int64_t batch, int64_t head) {
  return {data + batch * x.strides()[0] + head * x.strides()[1], x.strides()[2]};
}

/// Whether BLAS takes rows with this stride.
bool IsDirect(int64_t stride, int64_t cols) {
  return cols <= stride && stride <= std::numeric_limits<int>::max();
}

/// For reading: the rows themselves if they have the accumulator's type, else a copy in scratch.
template <typename T>
Rows<const Accumulator<T>> Readable(const Rows<const T>& x, int64_t rows, int64_t cols,
                                    Scratch& scratch, int slot, bool in_place = true) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    if (in_place) return {x.data, x.stride};
  }
  auto* copy = scratch.Get<Accumulator<T>>(slot, rows * cols);
  for (int64_t row = 0; row < rows; ++row) {
    cpu::ConvertStrided<Accumulator<T>, T>(x.data + row * x.stride, 1, copy + row * cols, 1, cols);
  }
  return {copy, cols};
}

/// For writing: the rows themselves or scratch, which CopyBack copies to them.
template <typename T>
Rows<Accumulator<T>> Writable(const Rows<T>& x, int64_t rows, int64_t cols, Scratch& scratch,
                              int slot, bool in_place = true) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    if (in_place) return x;
  }
  return {scratch.Get<Accumulator<T>>(slot, rows * cols), cols};
}
template <typename T>
void CopyBack(const Rows<Accumulator<T>>& from, int64_t rows, int64_t cols, const Rows<T>& to) {
  if (static_cast<const void*>(from.data) == to.data) return;
  for (int64_t row = 0; row < rows; ++row) {
    cpu::ConvertStrided<T, Accumulator<T>>(from.data + row * from.stride, 1,
                                           to.data + row * to.stride, 1, cols);
  }
}

template <typename A>
void SetToZero(const Rows<A>& x, int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row) std::fill_n(x.data + row * x.stride, cols, A{0});
}

void Rotary(ExecutionContext& context, const Tensor& x, const Tensor& cos, const Tensor& sin,
            bool inverse, Tensor& out) {
  const int64_t heads = x.dim(1), rows = x.dim(2), d = x.dim(3), half = d / 2;
  if (x.NumElements() == 0) return;
  VisitFloating(x.dtype(), "rotary", [&]<typename T>() {
    using A = Accumulator<T>;
    const T* x_data = x.data<T>();
    const A *cos_data = cos.data<A>(), *sin_data = sin.data<A>();
    T* out_data = OutputData<T>(out);
    cpu::ForRowTiles(
        context, x.dim(0) * heads, cpu::RowsPerTile(rows * d), [&](int64_t begin, int64_t end) {
          Scratch scratch(context);
          for (int64_t index = begin; index < end; ++index) {
            const Rows<T> to = HeadOf(out_data, out, index / heads, index % heads);
            const auto from =
                Readable(HeadOf(x_data, x, index / heads, index % heads), rows, d, scratch, kQ);
            const auto turned = Writable(to, rows, d, scratch, kOut);
            RunForIsa<RotaryRows<A>>(from.data, from.stride, cos_data, sin_data,
                                     inverse ? A{-1} : A{1}, turned.data, turned.stride, rows,
                                     half);
            CopyBack<T>(turned, rows, d, to);
          }
        });
  });
}

// ---- attention ----------------------------------------------------------------------------------

constexpr int64_t kQueries = 64, kKeys = 128;  // Of a block.

/// Extents, and which key heads and keys a query sees.
struct Problem {
  int64_t batch, heads, key_heads, queries, keys, d;
  bool causal;

  Problem(const Tensor& q, const Tensor& k, bool is_causal)
      : batch(q.dim(0)),
        heads(q.dim(1)),
        key_heads(k.dim(1)),
        queries(q.dim(2)),
        keys(k.dim(2)),
        d(q.dim(3)),
        causal(is_causal) {}

  int64_t group() const { return heads / key_heads; }
  /// How many keys, from the first, query i sees.
  int64_t Visible(int64_t query) const {
    return causal ? std::clamp<int64_t>(query + 1 + keys - queries, 0, keys) : keys;
  }
};

/// Which scores of a block count. Row r sees its first `visible + r * step` keys, of `keys`. Rows
/// in memory are `stride` apart, a multiple of kPad, so that loops over them have no tail.
struct Mask {
  int64_t visible, step, keys, stride;

  /// The keys that a row sees, and how many loops work on: those and less than kPad further ones.
  SHARDMESH_ALWAYS_INLINE int64_t Seen(int64_t row) const {
    const int64_t n = visible + row * step;
    return n < 0 ? 0 : n < keys ? n : keys;
  }
  static constexpr int64_t kPad = 16;
  static SHARDMESH_ALWAYS_INLINE int64_t Padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }
};

Mask MaskOf(const Problem& problem, int64_t query, int64_t first_key, int64_t keys) {
  const int64_t stride = Mask::Padded(keys);
  if (!problem.causal) return {keys, 0, keys, stride};
  return {query + 1 + problem.keys - problem.queries - first_key, 1, keys, stride};
}

/// Scores become exp(score - shift); those that do not count become 0.
template <typename A>
SHARDMESH_ALWAYS_INLINE void Exponentials(A* scores, int64_t seen, A shift, const Mask& mask) {
  const int64_t worked_on = Mask::Padded(seen);
  for (int64_t i = seen; i < worked_on; ++i) scores[i] = -std::numeric_limits<A>::infinity();
  for (int64_t i = 0; i < worked_on; ++i) scores[i] = cpu::Exp(scores[i] - shift);
  for (int64_t i = worked_on; i < mask.stride; ++i) scores[i] = A{0};
}

/// One block of scores becomes weights exp(score - max), with the maximum over all blocks so far.
/// What was summed up before, `sum` and the rows of `out`, is scaled to the new maximum.
template <typename A>
struct SoftmaxBlock {
  static SHARDMESH_ALWAYS_INLINE void Run(A* scores, int64_t rows, Mask mask, bool first, A* max,
                                          A* sum, A* out, int64_t out_stride, int64_t d) {
    constexpr A kLowest = -std::numeric_limits<A>::infinity();
    for (int64_t row = 0; row < rows; ++row) {
      A* s = scores + row * mask.stride;
      const int64_t seen = mask.Seen(row);
      const A before = first ? kLowest : max[row];
      const A block_max = cpu::Max(s, seen);
      const A after = block_max > before ? block_max : before;
      // A row that has seen no key yet: exp(-inf - -inf) must not be.
      const A shift = after == kLowest ? A{0} : after;
      Exponentials(s, seen, shift, mask);
      const A block_sum = cpu::Sum(s, Mask::Padded(seen));
      if (first) {
        sum[row] = block_sum;
      } else {
        const A scale = cpu::Exp(before - shift);
        sum[row] = sum[row] * scale + block_sum;
        if (scale != A{1}) {
          for (int64_t i = 0; i < d; ++i) out[row * out_stride + i] *= scale;
        }
      }
      max[row] = after;
    }
  }
};

/// The statistics of rows: the maximum of a row's scores and the sum of exp(score - maximum), side
/// by side. Of a const type for reading.
template <typename A>
struct RowStatistics {
  A* data;
  int64_t stride;
  SHARDMESH_ALWAYS_INLINE A& max(int64_t row) const { return data[row * stride]; }
  SHARDMESH_ALWAYS_INLINE A& sum(int64_t row) const { return data[row * stride + 1]; }
  /// 0 for a row that saw no key.
  SHARDMESH_ALWAYS_INLINE A inverse_sum(int64_t row) const {
    return sum(row) == A{0} ? A{0} : A{1} / sum(row);
  }
  RowStatistics From(int64_t row) const { return {data + row * stride, stride}; }
};

template <typename A>
RowStatistics<A> StatisticsOf(A* data, const Tensor& statistics, int64_t batch, int64_t head) {
  const Rows<A> rows = HeadOf(data, statistics, batch, head);
  return {rows.data, rows.stride};
}

/// out /= sum. A row that saw no key is 0.
template <typename A>
struct FinishBlock {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* max, const A* sum, A* out, int64_t out_stride,
                                          RowStatistics<A> statistics, int64_t rows, int64_t d) {
    for (int64_t row = 0; row < rows; ++row) {
      statistics.max(row) = max[row];
      statistics.sum(row) = sum[row];
      const A inverse = statistics.inverse_sum(row);
      for (int64_t i = 0; i < d; ++i) out[row * out_stride + i] *= inverse;
    }
  }
};

/// Queries [first, first + rows) of one head.
template <typename T>
void AttendBlock(const Problem& problem, Rows<const T> q, Rows<const T> k, Rows<const T> v,
                 Rows<T> out, RowStatistics<Accumulator<T>> statistics, double scale, int64_t first,
                 int64_t rows, Scratch& scratch) {
  using A = Accumulator<T>;
  const int64_t d = problem.d;
  const auto queries = Readable(q, rows, d, scratch, kQ, IsDirect(q.stride, d));
  const auto sums = Writable(out, rows, d, scratch, kOut, IsDirect(out.stride, d));
  A* max = scratch.Get<A>(kStatistics, 2 * rows);
  A* sum = max + rows;
  const int64_t visible = problem.Visible(first + rows - 1);
  if (visible == 0) {
    SetToZero(sums, rows, d);
    std::fill_n(max, rows, -std::numeric_limits<A>::infinity());
    std::fill_n(sum, rows, A{0});
  }
  for (int64_t key = 0; key < visible; key += kKeys) {
    const int64_t n = std::min(kKeys, visible - key);
    const auto keys = Readable(Rows<const T>{k.data + key * k.stride, k.stride}, n, d, scratch, kK,
                               IsDirect(k.stride, d));
    const auto values = Readable(Rows<const T>{v.data + key * v.stride, v.stride}, n, d, scratch,
                                 kV, IsDirect(v.stride, d));
    const Mask mask = MaskOf(problem, first, key, n);
    A* scores = scratch.Get<A>(kScores, rows * mask.stride);
    Gemm(rows, n, d, static_cast<A>(scale), MatrixView<A>{queries.data, queries.stride, 1},
         MatrixView<A>{keys.data, 1, keys.stride}, /*accumulate=*/false, scores, mask.stride);
    RunForIsa<SoftmaxBlock<A>>(scores, rows, mask, key == 0, max, sum, sums.data, sums.stride, d);
    Gemm(rows, d, n, A{1}, MatrixView<A>{scores, mask.stride, 1},
         MatrixView<A>{values.data, values.stride, 1},
         /*accumulate=*/key > 0, sums.data, sums.stride);
  }
  RunForIsa<FinishBlock<A>>(static_cast<const A*>(max), static_cast<const A*>(sum), sums.data,
                            sums.stride, statistics, rows, d);
  CopyBack<T>(sums, rows, d, out);
}

void Attention(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
               bool causal, double scale, Tensor& out, Tensor& statistics) {
  cpu::PrepareBlas();
  const Problem problem(q, k, causal);
  if (q.NumElements() == 0) return;
  VisitFloating(q.dtype(), "attention", [&]<typename T>() {
    using A = Accumulator<T>;
    const int64_t blocks = (problem.queries + kQueries - 1) / kQueries;
    const T *q_data = q.data<T>(), *k_data = k.data<T>(), *v_data = v.data<T>();
    T* out_data = OutputData<T>(out);
    A* statistics_data = OutputData<A>(statistics);
    context.ParallelFor(problem.batch * problem.heads * blocks, [&](int64_t tile) {
      const int64_t first = tile % blocks * kQueries, head = tile / blocks % problem.heads;
      const int64_t batch = tile / blocks / problem.heads, key_head = head / problem.group();
      const auto from = [&](auto rows) {
        return decltype(rows){rows.data + first * rows.stride, rows.stride};
      };
      const RowStatistics<A> of_head = StatisticsOf(statistics_data, statistics, batch, head);
      Scratch scratch(context);
      AttendBlock<T>(problem, from(HeadOf(q_data, q, batch, head)),
                     HeadOf(k_data, k, batch, key_head), HeadOf(v_data, v, batch, key_head),
                     from(HeadOf(out_data, out, batch, head)), of_head.From(first), scale, first,
                     std::min(kQueries, problem.queries - first), scratch);
    });
  });
}

// ---- its backward -------------------------------------------------------------------------------

/// dot[row] = sum over d of grad * out.
template <typename A>
struct RowDots {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* grad, int64_t grad_stride, const A* out,
                                          int64_t out_stride, A* dot, int64_t rows, int64_t d) {
    for (int64_t row = 0; row < rows; ++row) {
      dot[row] = cpu::SumOfProducts(grad + row * grad_stride, out + row * out_stride, d);
    }
  }
};

/// Scores become weights exp(score - max) / sum.
template <typename A>
struct WeightsBlock {
  static SHARDMESH_ALWAYS_INLINE void Run(A* scores, int64_t rows, Mask mask,
                                          RowStatistics<const A> statistics) {
    for (int64_t row = 0; row < rows; ++row) {
      A* s = scores + row * mask.stride;
      Exponentials(s, mask.Seen(row), statistics.max(row), mask);
      const A inverse = statistics.inverse_sum(row);
      for (int64_t i = 0; i < mask.stride; ++i) s[i] *= inverse;
    }
  }
};

/// Gradients of weights w become gradients of the products q k: w (g - dot) scale.
template <typename A>
struct GradScoresBlock {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* weights, A* grads, int64_t rows, Mask mask,
                                          const A* dot, A scale) {
    for (int64_t row = 0; row < rows; ++row) {
      const A* w = weights + row * mask.stride;
      A* g = grads + row * mask.stride;
      for (int64_t i = 0; i < mask.keys; ++i) g[i] = w[i] * ((g[i] - dot[row]) * scale);
    }
  }
};

/// What the blocks of one query head and its key head share, in the accumulator's type.
template <typename A>
struct KeyHead {
  Rows<const A> k, v;
  Rows<A> dk, dv;
};

/// Queries [first, first + rows) of one head: writes their dq and adds to dk and dv.
template <typename T>
void AttendBlockBackward(const Problem& problem, Rows<const T> grad, Rows<const T> q,
                         Rows<const T> out, RowStatistics<const Accumulator<T>> statistics,
                         double scale, int64_t first, int64_t rows,
                         const KeyHead<Accumulator<T>>& key_head, Rows<T> dq, Scratch& scratch) {
  using A = Accumulator<T>;
  const int64_t d = problem.d;
  const auto queries = Readable(q, rows, d, scratch, kQ, IsDirect(q.stride, d));
  const auto grads = Readable(grad, rows, d, scratch, kGrad, IsDirect(grad.stride, d));
  const auto outs = Readable(out, rows, d, scratch, kOut);
  const auto dqs = Writable(dq, rows, d, scratch, kSumQ, IsDirect(dq.stride, d));
  A* dot = scratch.Get<A>(kStatistics, rows);
  RunForIsa<RowDots<A>>(grads.data, grads.stride, outs.data, outs.stride, dot, rows, d);
  const int64_t visible = problem.Visible(first + rows - 1);
  if (visible == 0) SetToZero(dqs, rows, d);
  const MatrixView<A> query_view{queries.data, queries.stride, 1},
      grad_view{grads.data, grads.stride, 1};
  for (int64_t key = 0; key < visible; key += kKeys) {
    const int64_t n = std::min(kKeys, visible - key);
    const MatrixView<A> keys{key_head.k.data + key * key_head.k.stride, key_head.k.stride, 1};
    const MatrixView<A> values{key_head.v.data + key * key_head.v.stride, key_head.v.stride, 1};
    const Mask mask = MaskOf(problem, first, key, n);
    A* scores = scratch.Get<A>(kScores, rows * mask.stride);
    A* grad_scores = scratch.Get<A>(kGradScores, rows * mask.stride);
    Gemm(rows, n, d, static_cast<A>(scale), query_view, keys.Transposed(), /*accumulate=*/false,
         scores, mask.stride);
    RunForIsa<WeightsBlock<A>>(scores, rows, mask, statistics);
    const MatrixView<A> weights{scores, mask.stride, 1}, grad_products{grad_scores, mask.stride, 1};
    Gemm(n, d, rows, A{1}, weights.Transposed(), grad_view, /*accumulate=*/true,
         key_head.dv.data + key * key_head.dv.stride, key_head.dv.stride);
    Gemm(rows, n, d, A{1}, grad_view, values.Transposed(), /*accumulate=*/false, grad_scores,
         mask.stride);
    RunForIsa<GradScoresBlock<A>>(static_cast<const A*>(scores), grad_scores, rows, mask,
                                  static_cast<const A*>(dot), static_cast<A>(scale));
    Gemm(rows, d, n, A{1}, grad_products, keys, /*accumulate=*/key > 0, dqs.data, dqs.stride);
    Gemm(n, d, rows, A{1}, grad_products.Transposed(), query_view, /*accumulate=*/true,
         key_head.dk.data + key * key_head.dk.stride, key_head.dk.stride);
  }
  CopyBack<T>(dqs, rows, d, dq);
}

/// One key head and the query heads that read it, in order: the sums over queries do not depend on
/// threads.
void AttentionBackward(ExecutionContext& context, const Tensor& grad, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor& out,
                       const Tensor& statistics, bool causal, double scale, Tensor& dq, Tensor& dk,
                       Tensor& dv) {
  cpu::PrepareBlas();
  const Problem problem(q, k, causal);
  const int64_t queries = problem.queries, keys = problem.keys, d = problem.d;
  VisitFloating(q.dtype(), "attention backward", [&]<typename T>() {
    using A = Accumulator<T>;
    context.ParallelFor(problem.batch * problem.key_heads, [&](int64_t tile) {
      const int64_t batch = tile / problem.key_heads, key_head = tile % problem.key_heads;
      Scratch scratch(context);
      const Rows<const T> ks = HeadOf(k.data<T>(), k, batch, key_head),
                          vs = HeadOf(v.data<T>(), v, batch, key_head);
      const Rows<T> dks = HeadOf(OutputData<T>(dk), dk, batch, key_head),
                    dvs = HeadOf(OutputData<T>(dv), dv, batch, key_head);
      const KeyHead<A> shared{Readable(ks, keys, d, scratch, kK, IsDirect(ks.stride, d)),
                              Readable(vs, keys, d, scratch, kV, IsDirect(vs.stride, d)),
                              Writable(dks, keys, d, scratch, kSumK, IsDirect(dks.stride, d)),
                              Writable(dvs, keys, d, scratch, kSumV, IsDirect(dvs.stride, d))};
      SetToZero(shared.dk, keys, d);
      SetToZero(shared.dv, keys, d);
      for (int64_t head = key_head * problem.group(); head < (key_head + 1) * problem.group();
           ++head) {
        const RowStatistics<const A> of_head =
            StatisticsOf(statistics.data<A>(), statistics, batch, head);
        for (int64_t first = 0; first < queries; first += kQueries) {
          const auto from = [&]<typename D>(D* data, const Tensor& x) {
            const Rows<D> rows = HeadOf(data, x, batch, head);
            return Rows<D>{rows.data + first * rows.stride, rows.stride};
          };
          AttendBlockBackward<T>(problem, from(grad.data<T>(), grad), from(q.data<T>(), q),
                                 from(out.data<T>(), out), of_head.From(first), scale, first,
                                 std::min(kQueries, queries - first), shared,
                                 from(OutputData<T>(dq), dq), scratch);
        }
      }
      CopyBack<T>(shared.dk, keys, d, dks);
      CopyBack<T>(shared.dv, keys, d, dvs);
    });
  });
}

}  // namespace

void FillAttentionKernels(KernelTable& table) {
  table.rotary = Rotary;
  table.attention = Attention;
  table.attention_backward = AttentionBackward;
}

}  // namespace shardmesh
