// SPDX-License-Identifier: Apache-2.0
//
// Softmax and the norms: one row (run along the last dim) at a time, rows in tiles fixed by shape.
// Gradients of weights are sums over rows: one partial sum a tile, then the tiles in order.
#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/isa_cpu.h"
#include "shardmesh/tensor/cpu/lanes_cpu.h"
#include "shardmesh/tensor/cpu/math_cpu.h"
#include "shardmesh/tensor/cpu/rows_access_cpu.h"
#include "shardmesh/tensor/cpu/scratch_cpu.h"

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

// Slots of scratch. Up to kFirstShared they belong to a tile, the others to a whole kernel.
enum Slot { kX, kG, kY, kOut, kTemporary, kFirstShared, kWeight = kFirstShared, kBias, kPartials };

/// One value a row: statistics.
template <typename A>
class PerRow {
 public:
  PerRow(const Tensor& x, int64_t row) : data_(x.data<A>()), cursor_(x, row, /*dims_in_row=*/0) {}
  A& Next() {
    A& value = data_[cursor_.offset()];
    cursor_.Next();
    return value;
  }

 private:
  A* data_;
  cpu::RowCursor cursor_;
};

// The elements of a 1-d tensor in the accumulator's type; null for no tensor.
template <typename T>
const Accumulator<T>* Widened(const Tensor& w, int slot) {
  if (!w) return nullptr;
  auto* wide = Scratch<Accumulator<T>>(slot, w.dim(0));
  cpu::ConvertStrided(static_cast<const T*>(w.data<T>()), cpu::LastStride(w), wide, 1, w.dim(0));
  return wide;
}

// ---- softmax ------------------------------------------------------------------------------------

template <typename A>
struct SoftmaxRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* x, A* y, int64_t n, bool log) {
    const A max = cpu::Max(x, n);
    for (int64_t i = 0; i < n; ++i) y[i] = cpu::Exp(x[i] - max);
    const A sum = cpu::Sum(y, n);
    if (log) {
      const A log_sum = std::log(sum);
      for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - max) - log_sum;
    } else {
      const A inverse = A{1} / sum;
      for (int64_t i = 0; i < n; ++i) y[i] *= inverse;
    }
  }
};

// y = softmax: dx = y (g - sum g y). y = log softmax: dx = g - exp(y) sum g.
template <typename A>
struct SoftmaxBackwardRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* g, const A* y, A* dx, int64_t n, bool log) {
    if (log) {
      const A sum = cpu::Sum(g, n);
      for (int64_t i = 0; i < n; ++i) dx[i] = g[i] - cpu::Exp(y[i]) * sum;
    } else {
      const A sum = SumOfProducts(g, y, n);
      for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (g[i] - sum);
    }
  }
};

void Softmax(ExecutionContext& context, const Tensor& x, bool log, Tensor& out) {
  const int64_t n = x.dim(-1);
  if (x.NumElements() == 0) return;
  VisitFloating(x.dtype(), "softmax", [&]<typename T>() {
    using A = Accumulator<T>;
    ForRowTiles(context, RowsOf(x), RowsPerTile(n), [&](int64_t begin, int64_t end) {
      RowReader<T> xs(x, begin, Scratch<A>(kX, n));
      RowWriter<T> ys(out, begin, Scratch<A>(kOut, n));
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
      RowReader<T> gs(grad, begin, Scratch<A>(kG, n)), ys(y, begin, Scratch<A>(kY, n));
      RowWriter<T> dxs(out, begin, Scratch<A>(kOut, n));
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
              Tensor& to) {
  A* sum = Scratch<A>(kTemporary, n);
  std::fill_n(sum, n, A{0});
  for (int64_t i = 0; i < count; ++i) RunForIsa<AddRow<A>>(rows + i * row_stride, sum, n);
  const int64_t stride = cpu::LastStride(to);
  const auto store = [&](auto* data) {
    for (int64_t i = 0; i < n; ++i) {
      const A before = accumulate ? static_cast<A>(data[i * stride]) : A{0};
      data[i * stride] = static_cast<std::decay_t<decltype(*data)>>(before + sum[i]);
    }
  };
  if (to.dtype() == kDTypeOf<T>) return store(to.data<T>());
  if (to.dtype() == kDTypeOf<A>) return store(to.data<A>());
  ThrowInvalid("the gradient of a weight for ", std::string(Name(kDTypeOf<T>)), " rows cannot be ",
               to.ToString());
}

// ---- RMSNorm ------------------------------------------------------------------------------------

template <typename A>
struct RmsNormRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* x, const A* w, double eps, A* y, A* inv_rms,
                                          int64_t n) {
    const A mean_square = SumOfProducts(x, x, n) / static_cast<A>(n);
    const A inv = A{1} / std::sqrt(mean_square + static_cast<A>(eps));
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * inv * w[i];
    *inv_rms = inv;
  }
};

// With r = inv_rms: dx = r (g w - x r^2 mean(g w x)), dw = sum over rows of g x r. dx and dw may be
// null.
template <typename A>
struct RmsNormBackwardRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* g, const A* x, const A* w, A r, A* dx, A* dw,
                                          int64_t n) {
    if (dx != nullptr) {
      const A slope = SumOfProducts(g, w, x, n) / static_cast<A>(n) * r * r;
      for (int64_t i = 0; i < n; ++i) dx[i] = r * (g[i] * w[i] - x[i] * slope);
    }
    if (dw != nullptr) {
      for (int64_t i = 0; i < n; ++i) dw[i] += g[i] * (x[i] * r);
    }
  }
};

void RmsNorm(ExecutionContext& context, const Tensor& x, const Tensor& w, double eps, Tensor& y,
             Tensor& inv_rms) {
  const int64_t n = x.dim(-1);
  VisitFloating(x.dtype(), "rms_norm", [&]<typename T>() {
    using A = Accumulator<T>;
    const A* weight = Widened<T>(w, kWeight);
    ForRowTiles(context, RowsOf(x), RowsPerTile(n), [&](int64_t begin, int64_t end) {
      RowReader<T> xs(x, begin, Scratch<A>(kX, n));
      RowWriter<T> ys(y, begin, Scratch<A>(kOut, n));
      PerRow<A> inverses(inv_rms, begin);
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
    const A* weight = Widened<T>(w, kWeight);
    const int64_t tiles = (rows + per_tile - 1) / per_tile;
    A* partials = dw ? Scratch<A>(kPartials, tiles * n) : nullptr;
    ForRowTiles(context, rows, per_tile, [&](int64_t begin, int64_t end) {
      RowReader<T> gs(grad, begin, Scratch<A>(kG, n)), xs(x, begin, Scratch<A>(kX, n));
      std::optional<RowWriter<T>> dxs;
      if (dx) dxs.emplace(dx, begin, Scratch<A>(kOut, n));
      PerRow<A> inverses(inv_rms, begin);
      A* partial = dw ? partials + begin / per_tile * n : nullptr;
      if (dw) std::fill_n(partial, n, A{0});
      for (int64_t row = begin; row < end; ++row) {
        RunForIsa<RmsNormBackwardRow<A>>(gs.Next(), xs.Next(), weight, inverses.Next(),
                                         dxs ? dxs->Row() : nullptr, partial, n);
        if (dxs) dxs->Commit();
      }
    });
    if (dw) StoreSum<T>(partials, tiles, n, n, accumulate_dw, dw);
  });
}

// ---- LayerNorm ----------------------------------------------------------------------------------

template <typename A>
struct LayerNormRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* x, const A* w, const A* b, double eps, A* y,
                                          A* mean, A* inv_std, int64_t n) {
    const A center = cpu::Sum(x, n) / static_cast<A>(n);
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] - center;
    const A variance = SumOfProducts(y, y, n) / static_cast<A>(n);
    const A inv = A{1} / std::sqrt(variance + static_cast<A>(eps));
    if (b != nullptr) {
      for (int64_t i = 0; i < n; ++i) y[i] = y[i] * inv * w[i] + b[i];
    } else {
      for (int64_t i = 0; i < n; ++i) y[i] = y[i] * inv * w[i];
    }
    *mean = center;
    *inv_std = inv;
  }
};

// With h = (x - mean) inv_std: dx = inv_std (g w - mean(g w) - h mean(g w h)), dw = sum g h, db =
// sum g. `h` and `gw` are scratch; dx, dw and db may be null.
template <typename A>
struct LayerNormBackwardRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* g, const A* x, const A* w, A mean, A inv, A* h,
                                          A* gw, A* dx, A* dw, A* db, int64_t n) {
    for (int64_t i = 0; i < n; ++i) h[i] = (x[i] - mean) * inv;
    if (dx != nullptr) {
      for (int64_t i = 0; i < n; ++i) gw[i] = g[i] * w[i];
      const A mean_gw = cpu::Sum(gw, n) / static_cast<A>(n);
      const A mean_gwh = SumOfProducts(gw, h, n) / static_cast<A>(n);
      for (int64_t i = 0; i < n; ++i) dx[i] = inv * (gw[i] - mean_gw - h[i] * mean_gwh);
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
    const A *weight = Widened<T>(w, kWeight), *bias = Widened<T>(b, kBias);
    ForRowTiles(context, RowsOf(x), RowsPerTile(n), [&](int64_t begin, int64_t end) {
      RowReader<T> xs(x, begin, Scratch<A>(kX, n));
      RowWriter<T> ys(y, begin, Scratch<A>(kOut, n));
      PerRow<A> means(mean, begin), inverses(inv_std, begin);
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
    const A* weight = Widened<T>(w, kWeight);
    const int64_t tiles = (rows + per_tile - 1) / per_tile;
    A* partials = Scratch<A>(kPartials, tiles * 2 * n);  // Of dw, then of db.
    ForRowTiles(context, rows, per_tile, [&](int64_t begin, int64_t end) {
      RowReader<T> gs(grad, begin, Scratch<A>(kG, n)), xs(x, begin, Scratch<A>(kX, n));
      std::optional<RowWriter<T>> dxs;
      if (dx) dxs.emplace(dx, begin, Scratch<A>(kOut, n));
      PerRow<A> means(mean, begin), inverses(inv_std, begin);
      A *h = Scratch<A>(kY, n), *gw = Scratch<A>(kTemporary, n);
      A* partial = partials + begin / per_tile * 2 * n;
      std::fill_n(partial, 2 * n, A{0});
      for (int64_t row = begin; row < end; ++row) {
        RunForIsa<LayerNormBackwardRow<A>>(gs.Next(), xs.Next(), weight, means.Next(),
                                           inverses.Next(), h, gw, dxs ? dxs->Row() : nullptr,
                                           dw ? partial : nullptr, db ? partial + n : nullptr, n);
        if (dxs) dxs->Commit();
      }
    });
    if (dw) StoreSum<T>(partials, tiles, 2 * n, n, accumulate, dw);
    if (db) StoreSum<T>(partials + n, tiles, 2 * n, n, accumulate, db);
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
