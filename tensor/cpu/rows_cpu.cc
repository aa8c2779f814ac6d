// SPDX-License-Identifier: Apache-2.0
//
// Softmax and the norms: one row (run along the last dim) at a time, in tiles of rows that the
// shape alone fixes. Gradients of weights are sums over rows: one partial sum per tile, then the
// tiles in order.
//
// Rows may lie anywhere in the range of their dtype. What is large and cancels (a maximum, a mean)
// is taken off before anything small is added to it, and squares that would overflow or vanish are
// those of the row times a power of two.
#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/isa_cpu.h"
#include "shardmesh/tensor/cpu/lanes_cpu.h"
#include "shardmesh/tensor/cpu/log_cpu.h"
#include "shardmesh/tensor/cpu/math_cpu.h"
#include "shardmesh/tensor/cpu/rows_access_cpu.h"
#include "shardmesh/tensor/cpu/scratch_cpu.h"
#include "shardmesh/tensor/internal/output_data.h"

namespace shardmesh {
namespace {

using cpu::ForRowTiles;
using cpu::RowReader;
using cpu::RowsOf;
using cpu::RowsPerTile;
using cpu::RowWriter;
using cpu::RunForIsa;
using cpu::Scratch;
using cpu::SumOfProducts;
using internal::OutputData;

// Slots of scratch: of a tile, and of a whole kernel.
enum TileSlot { kX, kG, kY, kOut, kTemporary };
enum SharedSlot { kWeight, kBias, kPartials, kSum };

/// Statistics: one value per row, beginning at `data`. Of a const type for reading.
template <typename A>
class PerRow {
 public:
  PerRow(A* data, const Tensor& x, int64_t row) : data_(data), cursor_(x, row, /*dims_in_row=*/0) {}
  A& Next() {
    A& value = data_[cursor_.offset()];
    cursor_.Next();
    return value;
  }

 private:
  A* data_;
  cpu::RowCursor cursor_;
};

// The elements of a vector in the accumulator's type; null for an empty handle.
template <typename T>
const Accumulator<T>* ReadVector(const Tensor& w, Scratch& scratch, int slot) {
  if (!w) return nullptr;
  auto* values = scratch.Get<Accumulator<T>>(slot, w.dim(0));
  cpu::ConvertStrided(w.data<T>(), cpu::LastStride(w), values, 1, w.dim(0));
  return values;
}

// ---- softmax ------------------------------------------------------------------------------------

template <typename A>
struct SoftmaxRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* x, A* y, int64_t n, bool log) {
    const A max = cpu::Max(x, n);
    for (int64_t i = 0; i < n; ++i) y[i] = cpu::Exp(x[i] - max);
    const A sum = cpu::Sum(y, n);
    if (log) {
      const A log_sum = cpu::Log(sum);
      for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - max) - log_sum;
    } else {
      const A inverse = A{1} / sum;
      for (int64_t i = 0; i < n; ++i) y[i] *= inverse;
    }
  }
};

/// sum (x_i - shift) y_i.
template <typename A>
SHARDMESH_ALWAYS_INLINE A SumOfShiftedProducts(const A* x, A shift, const A* y, int64_t n) {
  const auto add = [ x, shift, y ](cpu::Lanes<A> & sum, int64_t at, int64_t count)
      __attribute__((always_inline)) {
    cpu::Lanes<A> a, b;
    cpu::LoadLanesOrZero(x, at, count, a);
    cpu::LoadLanesOrZero(y, at, count, b);
    sum += (a - shift) * b;
  };
  return cpu::FoldLanes<A>(n, A{0}, add, cpu::MergeBySum());
}

// y = softmax: dx = y (g - sum g y). The sum of y being 1, a shift of g changes nothing; that by a
// first sum leaves no large terms to cancel, also where all of g lies far from 0.
// y = log softmax: dx = g - exp(y) sum g.
template <typename A>
struct SoftmaxBackwardRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* g, const A* y, A* dx, int64_t n, bool log) {
    if (log) {
      const A sum = cpu::Sum(g, n);
      for (int64_t i = 0; i < n; ++i) dx[i] = g[i] - cpu::Exp(y[i]) * sum;
    } else {
      const A first = SumOfProducts(g, y, n);
      const A shift = std::isfinite(first) ? first : A{0};
      const A sum = SumOfShiftedProducts(g, shift, y, n);
      for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * ((g[i] - shift) - sum);
    }
  }
};

void Softmax(ExecutionContext& context, const Tensor& x, bool log, Tensor& out) {
  const int64_t n = x.dim(-1);
  if (x.NumElements() == 0) return;
  VisitFloating(x.dtype(), "softmax", [&]<typename T>() {
    using A = Accumulator<T>;
    ForRowTiles(context, RowsOf(x), RowsPerTile(n), [&](int64_t begin, int64_t end) {
      Scratch scratch(context);
      RowReader<T> xs(x, begin, scratch, kX);
      RowWriter<T> ys(out, begin, scratch, kOut);
      for (int64_t row = begin; row < end; ++row) {
        RunForIsa<SoftmaxRow<A>>(xs.Next(), ys.Row(), n, log);
        ys.Commit();
      }
    });
  });
}

void SoftmaxBackward(ExecutionContext& context, const Tensor& grad, const Tensor& y, bool log,
                     Tensor& out) {
  const int64_t n = y.dim(-1);
  if (y.NumElements() == 0) return;
  VisitFloating(y.dtype(), "softmax backward", [&]<typename T>() {
    using A = Accumulator<T>;
    ForRowTiles(context, RowsOf(y), RowsPerTile(n), [&](int64_t begin, int64_t end) {
      Scratch scratch(context);
      RowReader<T> gs(grad, begin, scratch, kG), ys(y, begin, scratch, kY);
      RowWriter<T> dxs(out, begin, scratch, kOut);
      for (int64_t row = begin; row < end; ++row) {
        RunForIsa<SoftmaxBackwardRow<A>>(gs.Next(), ys.Next(), dxs.Row(), n, log);
        dxs.Commit();
      }
    });
  });
}

// ---- sums over rows -----------------------------------------------------------------------------

template <typename A>
struct AddRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* x, A* sum, int64_t n) {
    for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
  }
};

/// Rows that share a partial sum: enough that the partial sums are few.
int64_t RowsPerPartial(int64_t n) { return std::max<int64_t>(64, RowsPerTile(n)); }

/// to[n] (+)= the sum of `count` rows, in order, rounded once to T or not at all.
template <typename T, typename A = Accumulator<T>>
void StoreSum(const A* rows, int64_t count, int64_t row_stride, int64_t n, bool accumulate,
              Scratch& scratch, Tensor& to) {
  A* sum = scratch.Get<A>(kSum, n);
  std::fill_n(sum, n, A{0});
  for (int64_t i = 0; i < count; ++i) RunForIsa<AddRow<A>>(rows + i * row_stride, sum, n);
  const int64_t stride = cpu::LastStride(to);
  const auto store = [&](auto* data) {
    for (int64_t i = 0; i < n; ++i) {
      const A before = accumulate ? static_cast<A>(data[i * stride]) : A{0};
      data[i * stride] = static_cast<std::decay_t<decltype(*data)>>(before + sum[i]);
    }
  };
  if (to.dtype() == kDTypeOf<T>) return store(OutputData<T>(to));
  if (to.dtype() == kDTypeOf<A>) return store(OutputData<A>(to));
  ThrowInvalid("the gradient of a weight for ", std::string(Name(kDTypeOf<T>)), " rows cannot be ",
               to.ToString());
}

// ---- rows outside the range of squares ----------------------------------------------------------

/// Mean squares that lose nothing to overflow or underflow, and the powers of two that bring larger
/// and smaller rows among them.
template <typename A>
struct SquareRange;
template <>
struct SquareRange<float> {
  static constexpr float kLeast = 0x1p-80f, kMost = 0x1p100f;
  static constexpr float kDown = 0x1p-100f, kUp = 0x1p100f;
  static constexpr float kSmall = 0x1p-40f, kLarge = 0x1p50f;  // Elements with such squares.
};
template <>
struct SquareRange<double> {
  static constexpr double kLeast = 0x1p-900, kMost = 0x1p900;
  static constexpr double kDown = 0x1p-600, kUp = 0x1p600;
  static constexpr double kSmall = 0x1p-450, kLarge = 0x1p450;
};

template <typename A>
SHARDMESH_ALWAYS_INLINE bool IsInRange(A mean_square) {
  return mean_square >= SquareRange<A>::kLeast && mean_square <= SquareRange<A>::kMost;
}

/// The factor for a row: 1 if its largest magnitude is in the range, or 0.
template <typename A>
SHARDMESH_ALWAYS_INLINE A ScaleOf(const A* x, int64_t n) {
  A largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
  if (largest > SquareRange<A>::kLarge) return SquareRange<A>::kDown;
  return largest != A{0} && largest < SquareRange<A>::kSmall ? SquareRange<A>::kUp : A{1};
}

/// 1 / sqrt(mean square of a row + eps), given that of the row times `scale`.
template <typename A>
SHARDMESH_ALWAYS_INLINE A InverseRoot(A scaled_mean_square, A scale, A eps) {
  if (scale > A{1} && eps > A{0}) {  // eps scale^2 could overflow; what vanishes is beside eps.
    return A{1} / std::sqrt(scaled_mean_square / scale / scale + eps);
  }
  const A scaled_eps = scale > A{1} ? A{0} : eps * scale * scale;
  return scale / std::sqrt(scaled_mean_square + scaled_eps);
}

// ---- RMSNorm ------------------------------------------------------------------------------------

template <typename A>
struct RmsNormRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* x, const A* w, double eps, A* y, A* inv_rms,
                                          int64_t n) {
    A mean_square = SumOfProducts(x, x, n) / static_cast<A>(n);
    A scale = 1;
    if (!IsInRange(mean_square)) {
      scale = ScaleOf(x, n);
      for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale;
      mean_square = SumOfProducts(y, y, n) / static_cast<A>(n);
    }
    const A inv = InverseRoot(mean_square, scale, static_cast<A>(eps));
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * inv * w[i];
    *inv_rms = inv;
  }
};

// With r = inv_rms and h = x r: dx = r (g w - h mean(g w h)), dw = sum over rows of g h. `h` is
// scratch; dx and dw may be null.
template <typename A>
struct RmsNormBackwardRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* g, const A* x, const A* w, A r, A* h, A* dx,
                                          A* dw, int64_t n) {
    for (int64_t i = 0; i < n; ++i) h[i] = x[i] * r;
    if (dx != nullptr) {
      const A slope = SumOfProducts(g, w, h, n) / static_cast<A>(n);
      for (int64_t i = 0; i < n; ++i) dx[i] = r * (g[i] * w[i] - h[i] * slope);
    }
    if (dw != nullptr) {
      for (int64_t i = 0; i < n; ++i) dw[i] += g[i] * h[i];
    }
  }
};

void RmsNorm(ExecutionContext& context, const Tensor& x, const Tensor& w, double eps, Tensor& y,
             Tensor& inv_rms) {
  const int64_t n = x.dim(-1);
  VisitFloating(x.dtype(), "rms_norm", [&]<typename T>() {
    using A = Accumulator<T>;
    Scratch shared(context);
    const A* weight = ReadVector<T>(w, shared, kWeight);
    ForRowTiles(context, RowsOf(x), RowsPerTile(n), [&](int64_t begin, int64_t end) {
      Scratch scratch(context);
      RowReader<T> xs(x, begin, scratch, kX);
      RowWriter<T> ys(y, begin, scratch, kOut);
      PerRow<A> inverses(OutputData<A>(inv_rms), inv_rms, begin);
      for (int64_t row = begin; row < end; ++row) {
        RunForIsa<RmsNormRow<A>>(xs.Next(), weight, eps, ys.Row(), &inverses.Next(), n);
        ys.Commit();
      }
    });
  });
}

void RmsNormBackward(ExecutionContext& context, const Tensor& grad, const Tensor& x,
                     const Tensor& w, const Tensor& inv_rms, Tensor& dx, bool accumulate_dw,
                     Tensor& dw) {
  const int64_t n = x.dim(-1), rows = RowsOf(x), per_tile = RowsPerPartial(n);
  VisitFloating(x.dtype(), "rms_norm backward", [&]<typename T>() {
    using A = Accumulator<T>;
    Scratch shared(context);
    const A* weight = ReadVector<T>(w, shared, kWeight);
    const int64_t tiles = (rows + per_tile - 1) / per_tile;
    A* partials = dw ? shared.Get<A>(kPartials, tiles * n) : nullptr;
    ForRowTiles(context, rows, per_tile, [&](int64_t begin, int64_t end) {
      Scratch scratch(context);
      RowReader<T> gs(grad, begin, scratch, kG), xs(x, begin, scratch, kX);
      std::optional<RowWriter<T>> dxs;
      if (dx) dxs.emplace(dx, begin, scratch, kOut);
      A* h = scratch.Get<A>(kY, n);
      PerRow<const A> inverses(inv_rms.data<A>(), inv_rms, begin);
      A* partial = dw ? partials + begin / per_tile * n : nullptr;
      if (dw) std::fill_n(partial, n, A{0});
      for (int64_t row = begin; row < end; ++row) {
        RunForIsa<RmsNormBackwardRow<A>>(gs.Next(), xs.Next(), weight, inverses.Next(), h,
                                         dxs ? dxs->Row() : nullptr, partial, n);
        if (dxs) dxs->Commit();
      }
    });
    if (dw) StoreSum<T>(partials, tiles, n, n, accumulate_dw, shared, dw);
  });
}

// ---- LayerNorm ----------------------------------------------------------------------------------

/// y = scale x - its mean, and the mean: what the first mean is rounded by is taken off y again.
template <typename A>
SHARDMESH_ALWAYS_INLINE A Center(const A* x, A scale, A* y, int64_t n) {
  if (scale != A{1}) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale;
    x = y;
  }
  const A mean = cpu::Sum(x, n) / static_cast<A>(n);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] - mean;
  const A rest = cpu::Sum(y, n) / static_cast<A>(n);
  for (int64_t i = 0; i < n; ++i) y[i] -= rest;
  return mean + rest;
}

template <typename A>
struct LayerNormRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* x, const A* w, const A* b, double eps, A* y,
                                          A* mean, A* inv_std, int64_t n) {
    A scale = 1;
    A center = Center(x, scale, y, n);
    A variance = SumOfProducts(y, y, n) / static_cast<A>(n);
    if (!IsInRange(variance)) {
      // By the deviations if they are small, else by the row: its sum may have overflowed.
      scale = variance < A{1} ? ScaleOf(y, n) : ScaleOf(x, n);
      center = Center(x, scale, y, n);
      variance = SumOfProducts(y, y, n) / static_cast<A>(n);
    }
    const A inv = InverseRoot(variance, scale, static_cast<A>(eps));
    const A scaled_inv = inv / scale;  // Of y, which is scaled.
    if (b != nullptr) {
      for (int64_t i = 0; i < n; ++i) y[i] = y[i] * scaled_inv * w[i] + b[i];
    } else {
      for (int64_t i = 0; i < n; ++i) y[i] = y[i] * scaled_inv * w[i];
    }
    *mean = center / scale;
    *inv_std = inv;
  }
};

// With h = (x - mean) inv_std: dx = inv_std (g w - mean(g w) - h mean(g w h)), dw = sum g h, db =
// sum g. What `mean` is rounded by is taken off h, and the mean of h being 0, off g w before it is
// multiplied. `h` and `gw` are scratch; dx, dw and db may be null.
template <typename A>
struct LayerNormBackwardRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* g, const A* x, const A* w, A mean, A inv, A* h,
                                          A* gw, A* dx, A* dw, A* db, int64_t n) {
    const A count = static_cast<A>(n);
    for (int64_t i = 0; i < n; ++i) h[i] = (x[i] - mean) * inv;
    const A rest = cpu::Sum(h, n) / count;
    for (int64_t i = 0; i < n; ++i) h[i] -= rest;
    if (dx != nullptr) {
      for (int64_t i = 0; i < n; ++i) gw[i] = g[i] * w[i];
      Center(gw, A{1}, gw, n);
      const A slope = SumOfProducts(gw, h, n) / count;
      for (int64_t i = 0; i < n; ++i) dx[i] = inv * (gw[i] - h[i] * slope);
    }
    if (dw != nullptr) {
      for (int64_t i = 0; i < n; ++i) dw[i] += g[i] * h[i];
    }
    if (db != nullptr) {
      for (int64_t i = 0; i < n; ++i) db[i] += g[i];
    }
  }
};

void LayerNorm(ExecutionContext& context, const Tensor& x, const Tensor& w, const Tensor& b,
               double eps, Tensor& y, Tensor& mean, Tensor& inv_std) {
  const int64_t n = x.dim(-1);
  VisitFloating(x.dtype(), "layer_norm", [&]<typename T>() {
    using A = Accumulator<T>;
    Scratch shared(context);
    const A* weight = ReadVector<T>(w, shared, kWeight);
    const A* bias = ReadVector<T>(b, shared, kBias);
    ForRowTiles(context, RowsOf(x), RowsPerTile(n), [&](int64_t begin, int64_t end) {
      Scratch scratch(context);
      RowReader<T> xs(x, begin, scratch, kX);
      RowWriter<T> ys(y, begin, scratch, kOut);
      PerRow<A> means(OutputData<A>(mean), mean, begin);
      PerRow<A> inverses(OutputData<A>(inv_std), inv_std, begin);
      for (int64_t row = begin; row < end; ++row) {
        RunForIsa<LayerNormRow<A>>(xs.Next(), weight, bias, eps, ys.Row(), &means.Next(),
                                   &inverses.Next(), n);
        ys.Commit();
      }
    });
  });
}

void LayerNormBackward(ExecutionContext& context, const Tensor& grad, const Tensor& x,
                       const Tensor& w, const Tensor& mean, const Tensor& inv_std, Tensor& dx,
                       bool accumulate, Tensor& dw, Tensor& db) {
  const int64_t n = x.dim(-1), rows = RowsOf(x), per_tile = RowsPerPartial(n);
  VisitFloating(x.dtype(), "layer_norm backward", [&]<typename T>() {
    using A = Accumulator<T>;
    Scratch shared(context);
    const A* weight = ReadVector<T>(w, shared, kWeight);
    const int64_t tiles = (rows + per_tile - 1) / per_tile;
    A* partials = shared.Get<A>(kPartials, tiles * 2 * n);  // Of dw, then of db.
    ForRowTiles(context, rows, per_tile, [&](int64_t begin, int64_t end) {
      Scratch scratch(context);
      RowReader<T> gs(grad, begin, scratch, kG), xs(x, begin, scratch, kX);
      std::optional<RowWriter<T>> dxs;
      if (dx) dxs.emplace(dx, begin, scratch, kOut);
      PerRow<const A> means(mean.data<A>(), mean, begin);
      PerRow<const A> inverses(inv_std.data<A>(), inv_std, begin);
      A *h = scratch.Get<A>(kY, n), *gw = scratch.Get<A>(kTemporary, n);
      A* partial = partials + begin / per_tile * 2 * n;
      std::fill_n(partial, 2 * n, A{0});
      for (int64_t row = begin; row < end; ++row) {
        RunForIsa<LayerNormBackwardRow<A>>(gs.Next(), xs.Next(), weight, means.Next(),
                                           inverses.Next(), h, gw, dxs ? dxs->Row() : nullptr,
                                           dw ? partial : nullptr, db ? partial + n : nullptr, n);
        if (dxs) dxs->Commit();
      }
    });
    if (dw) StoreSum<T>(partials, tiles, 2 * n, n, accumulate, shared, dw);
    if (db) StoreSum<T>(partials + n, tiles, 2 * n, n, accumulate, shared, db);
  });
}

}  // namespace

void FillRowsKernels(KernelTable& table) {
  table.softmax = Softmax;
  table.softmax_backward = SoftmaxBackward;
  table.rms_norm = RmsNorm;
  table.rms_norm_backward = RmsNormBackward;
  table.layer_norm = LayerNorm;
  table.layer_norm_backward = LayerNormBackward;
}

}  // namespace shardmesh
