// SPDX-License-Identifier: Apache-2.0
//
// Scans, sorting, and reading and writing at indices along one dim.
#include <algorithm>
#include <numeric>
#include <type_traits>

#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/element_functions_cpu.h"
#include "shardmesh/tensor/cpu/loops_cpu.h"
#include "shardmesh/tensor/cpu/scratch_cpu.h"
#include "shardmesh/tensor/internal/output_data.h"

namespace shardmesh {
namespace {

using cpu::Load;
using cpu::Store;
using internal::OutputData;

// The lines along `dim` of a contiguous tensor: element i of line (o, j) is at o * n * inner +
// i * inner + j.
struct Lines {
  Lines(const Tensor& x, int dim) : n(x.num_dims() == 0 ? 1 : x.dim(dim)) {
    for (int d = dim + 1; d < x.num_dims(); ++d) inner *= x.dim(d);
    count = n == 0 ? 0 : x.NumElements() / n;
  }
  int64_t First(int64_t line) const { return line / inner * n * inner + line % inner; }

  // fn(first): the index of a line's first element; the others follow at distances of `inner`.
  template <typename F>
  void ForEach(ExecutionContext& context, const F& fn) const {
    const int64_t tile = std::max<int64_t>(1, cpu::kTileElements / std::max<int64_t>(1, n));
    cpu::ForTiles(context, count, tile, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) fn(First(line));
    });
  }

  int64_t n = 1, inner = 1, count = 0;
};

template <typename A>
A Combine(ScanOp op, A sum, A x) {
  switch (op) {
    case ScanOp::kSum:
      return cpu::Plus(sum, x);
    case ScanOp::kProduct:
      return cpu::Product(sum, x);
    case ScanOp::kLogSumExp:
      if constexpr (std::is_floating_point_v<A>) return cpu::element::LogAddExp(sum, x);
      break;
    case ScanOp::kMax:
    case ScanOp::kMin:
      break;
  }
  return x;
}

// Whether x takes the place of the extremum so far: nan does, and of equal ones the later.
template <typename A>
bool Takes(ScanOp op, A x, A so_far) {
  if (x != x) return true;
  return op == ScanOp::kMax ? x >= so_far : x <= so_far;
}

template <typename T>
void ScanLines(ExecutionContext& context, ScanOp op, const Tensor& x, int dim, bool reverse,
               Tensor& out, Tensor& indices) {
  using A = Accumulator<T>;
  const Lines lines(x, dim);
  const T* in = x.data<T>();
  T* to = OutputData<T>(out);
  int64_t* places = indices ? OutputData<int64_t>(indices) : nullptr;
  lines.ForEach(context, [&](int64_t first) {
    A sum{};
    int64_t place = 0;
    for (int64_t k = 0; k < lines.n; ++k) {
      const int64_t i = reverse ? lines.n - 1 - k : k;
      const int64_t at = first + i * lines.inner;
      const A value = Load(in[at]);
      if (places == nullptr) {
        sum = k == 0 ? value : Combine(op, sum, value);
      } else if (k == 0 || (sum == sum && Takes(op, value, sum)) || (value != value)) {
        sum = value;
        place = i;
      }
      to[at] = Store<T>(sum);
      if (places != nullptr) places[at] = place;
    }
  });
}

void Scan(ExecutionContext& context, ScanOp op, const Tensor& x, int dim, bool reverse, Tensor& out,
          Tensor& indices) {
  VisitDType(x.dtype(),
             [&]<typename T>() { ScanLines<T>(context, op, x, dim, reverse, out, indices); });
}

// d y_i / d x_k is the product of the x_j up to i but x_k's. Without zeros that is y_i / x_k.
template <typename T>
void CumulativeProductGradient(cpu::Scratch& scratch, const T* g, const T* x, T* out, int64_t n,
                               int64_t step) {
  using A = Accumulator<T>;
  bool has_zero = false;
  for (int64_t i = 0; i < n; ++i) has_zero |= Load(x[i * step]) == A{0};
  if (!has_zero) {
    A* products = scratch.Get<A>(0, n);
    A product{1};
    for (int64_t i = 0; i < n; ++i) products[i] = product = product * Load(x[i * step]);
    A sum{0};
    for (int64_t k = n - 1; k >= 0; --k) {
      sum += Load(g[k * step]) * products[k];
      out[k * step] = Store<T>(sum / Load(x[k * step]));
    }
    return;
  }
  A before{1};
  for (int64_t k = 0; k < n; ++k) {
    A product = before, sum{0};
    for (int64_t i = k; i < n; ++i) {
      if (i > k) product *= Load(x[i * step]);
      sum += Load(g[i * step]) * product;
    }
    out[k * step] = Store<T>(sum);
    before *= Load(x[k * step]);
  }
}

void CumulativeProductBackward(ExecutionContext& context, const Tensor& grad, const Tensor& x,
                               int dim, Tensor& out) {
  VisitFloating(x.dtype(), "cumprod", [&]<typename T>() {
    const Lines lines(x, dim);
    const T* g = grad.data<T>();
    const T* in = x.data<T>();
    T* to = OutputData<T>(out);
    lines.ForEach(context, [&](int64_t first) {
      cpu::Scratch scratch(context);
      CumulativeProductGradient(scratch, g + first, in + first, to + first, lines.n, lines.inner);
    });
  });
}

void Sort(ExecutionContext& context, const Tensor& x, int dim, bool descending, Tensor& values,
          Tensor& indices) {
  VisitDType(x.dtype(), [&]<typename T>() {
    const Lines lines(x, dim);
    const T* in = x.data<T>();
    T* to = OutputData<T>(values);
    int64_t* places = OutputData<int64_t>(indices);
    lines.ForEach(context, [&](int64_t first) {
      const auto at = [&](int64_t i) { return Load(in[first + i * lines.inner]); };
      // nan is larger than all.
      const auto less = [&](int64_t a, int64_t b) {
        const auto u = at(a), v = at(b);
        return v != v ? u == u : u < v;
      };
      cpu::Scratch scratch(context);
      int64_t* order = scratch.Get<int64_t>(0, lines.n);
      std::iota(order, order + lines.n, int64_t{0});
      std::sort(order, order + lines.n, [&](int64_t a, int64_t b) {
        if (descending ? less(b, a) : less(a, b)) return true;
        return !(descending ? less(a, b) : less(b, a)) && a < b;  // Equal ones keep their order.
      });
      for (int64_t i = 0; i < lines.n; ++i) {
        const int64_t from = order[i];
        to[first + i * lines.inner] = in[first + from * lines.inner];
        places[first + i * lines.inner] = from;
      }
    });
  });
}

// For each element of `index`, in row-major order, the offset in `x` of its coordinates with that
// along `dim` replaced by the index.
template <typename F>
void ForEachIndex(const Tensor& index, const Tensor& x, int dim, const F& fn) {
  const int64_t* ids = index.data<int64_t>();
  const int64_t count = index.NumElements();
  const int rank = index.num_dims();
  Dims at;
  for (int d = 0; d < rank; ++d) at.push_back(0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t offset = 0;
    for (int d = 0; d < rank; ++d) offset += (d == dim ? ids[i] : at[d]) * x.strides()[d];
    fn(i, offset);
    for (int d = rank - 1; d >= 0 && ++at[d] == index.dim(d); --d) at[d] = 0;
  }
}

void Gather(ExecutionContext&, const Tensor& x, int dim, const Tensor& index, Tensor& out) {
  VisitDType(x.dtype(), [&]<typename T>() {
    const T* in = x.data<T>();
    T* to = OutputData<T>(out);
    ForEachIndex(index, x, dim, [&](int64_t i, int64_t offset) { to[i] = in[offset]; });
  });
}

template <typename T>
T Scattered(ScatterOp op, T old, T x) {
  using A = Accumulator<T>;
  switch (op) {
    case ScatterOp::kSet:
      break;
    case ScatterOp::kAdd:
      return Store<T>(cpu::Plus(Load(old), Load(x)));
    case ScatterOp::kProduct:
      return Store<T>(cpu::Product(Load(old), Load(x)));
    case ScatterOp::kMax:
      return Store<T>(cpu::Maximum<A>(Load(old), Load(x)));
    case ScatterOp::kMin:
      return Store<T>(cpu::Minimum<A>(Load(old), Load(x)));
  }
  return x;
}

// In row-major order of the index: of several writes to one element, the last holds.
void Scatter(ExecutionContext&, ScatterOp op, int dim, const Tensor& index, const Tensor& source,
             Tensor& out) {
  VisitDType(out.dtype(), [&]<typename T>() {
    const T* from = source.data<T>();
    T* to = OutputData<T>(out);
    ForEachIndex(index, out, dim, [&](int64_t i, int64_t offset) {
      to[offset] = Scattered(op, to[offset], from[i]);
    });
  });
}

}  // namespace

void FillIndexingKernels(KernelTable& table) {
  table.scan = Scan;
  table.cumulative_product_backward = CumulativeProductBackward;
  table.sort = Sort;
  table.gather = Gather;
  table.scatter = Scatter;
}

}  // namespace shardmesh
