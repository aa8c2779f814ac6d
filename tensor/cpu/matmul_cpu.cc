// SPDX-License-Identifier: Apache-2.0
//
// The matrix product: fixed tiles of the result, each one call of BLAS where operands allow it,
// else a loop over panels that are copied (and widened) first.
#include <algorithm>
#include <type_traits>

#include "shardmesh/base/check.h"
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/cpu/blas_cpu.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/rows_access_cpu.h"
#include "shardmesh/tensor/cpu/scratch_cpu.h"
#include "shardmesh/tensor/internal/output_data.h"

namespace shardmesh {
namespace {

using cpu::BlasOrderOf;
using cpu::MatrixView;
using cpu::Scratch;
using internal::OutputData;

// Slots of scratch.
enum Slot { kLeft, kRight, kSums };

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- tiles --------------------------------------------------------------------------------------

/// Extents of one tile of the result.
struct Tile {
  int64_t products, rows, cols;
};

/// Halves the longer side until a tile has about 32 million multiplications or there are 32 of
/// them. Small products of a batch share a tile. A function of the shape alone: where BLAS is cut,
/// roundings change.
Tile TileOf(int64_t batch, int64_t m, int64_t n, int64_t k) {
  constexpr double kEnough = 1 << 25;
  constexpr double kFew = 1 << 19;
  constexpr int64_t kLongest = int64_t{1} << 30;
  Tile tile{1, m, n};
  while (true) {
    const int64_t longer = std::max(tile.rows, tile.cols);
    const int64_t tiles = CeilDivide(m, tile.rows) * CeilDivide(n, tile.cols) * batch;
    const double work =
        static_cast<double>(tile.rows) * static_cast<double>(tile.cols) * static_cast<double>(k);
    const bool is_small = work <= kEnough || tiles >= 32 || longer <= 128;
    if (is_small && longer <= kLongest) {
      if (tiles == batch && work < kFew)
        tile.products = std::min<int64_t>(batch, kFew / (work + 1.0) + 1.0);
      return tile;
    }
    int64_t& side = tile.rows >= tile.cols ? tile.rows : tile.cols;
    side = CeilDivide(CeilDivide(side, 2), 16) * 16;
  }
}

// ---- one tile -----------------------------------------------------------------------------------

/// A block of the result.
template <typename Out>
struct Result {
  Out* data;
  int64_t row_stride, col_stride;
};

/// Copies a block, in the order it has in memory, into scratch.
template <typename T>
MatrixView<Accumulator<T>> Pack(const MatrixView<T>& from, int64_t rows, int64_t cols,
                                Scratch& scratch, int slot) {
  if (from.row_stride < from.col_stride)
    return Pack(from.Transposed(), cols, rows, scratch, slot).Transposed();
  auto* packed = scratch.Get<Accumulator<T>>(slot, rows * cols);
  for (int64_t i = 0; i < rows; ++i) {
    cpu::ConvertStrided(from.data + i * from.row_stride, from.col_stride, packed + i * cols, 1,
                        cols);
  }
  return {packed, cols, 1};
}

/// The block itself if BLAS can read it, else a copy.
template <typename T>
MatrixView<Accumulator<T>> Readable(const MatrixView<T>& from, int64_t rows, int64_t cols,
                                    Scratch& scratch, int slot) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    if (BlasOrderOf(rows, cols, from.row_stride, from.col_stride)) return from;
  }
  return Pack(from, rows, cols, scratch, slot);
}

/// to (+)= from[rows, cols], contiguous.
template <typename A, typename Out>
void StoreBlock(const A* from, int64_t rows, int64_t cols, bool accumulate, const Result<Out>& to) {
  for (int64_t i = 0; i < rows; ++i) {
    const A* sums = from + i * cols;
    Out* row = to.data + i * to.row_stride;
    if (!accumulate) {
      cpu::ConvertStrided(sums, 1, row, to.col_stride, cols);
      continue;
    }
    for (int64_t j = 0; j < cols; ++j) {
      Out& element = row[j * to.col_stride];
      element = static_cast<Out>(static_cast<A>(element) + sums[j]);
    }
  }
}

template <typename Out>
void SetToZero(int64_t rows, int64_t cols, const Result<Out>& c) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) c.data[i * c.row_stride + j * c.col_stride] = Out(0.0f);
  }
}

/// Blocks of at most these extents are copied; without a copy there is no reason to cut.
struct Panel {
  int64_t rows, cols, depth;
};

// With c_leading > 0, c is row-major and BLAS adds up in it; else in scratch.
template <typename T, typename Out>
void MultiplyPanels(int64_t m, int64_t n, int64_t k, const MatrixView<T>& a, const MatrixView<T>& b,
                    bool accumulate, const Result<Out>& c, int64_t c_leading, const Panel& panel,
                    Scratch& scratch) {
  using A = Accumulator<T>;
  const bool in_place = c_leading > 0;
  for (int64_t i = 0; i < m; i += panel.rows) {
    const int64_t rows = std::min(panel.rows, m - i);
    for (int64_t j = 0; j < n; j += panel.cols) {
      const int64_t cols = std::min(panel.cols, n - j);
      const Result<Out> block{c.data + i * c.row_stride + j * c.col_stride, c.row_stride,
                              c.col_stride};
      A* sums = nullptr;
      if constexpr (std::is_same_v<A, Out>) sums = block.data;
      if (!in_place) sums = scratch.Get<A>(kSums, rows * cols);
      for (int64_t l = 0; l < k; l += panel.depth) {
        const int64_t depth = std::min(panel.depth, k - l);
        cpu::Gemm(rows, cols, depth, A{1}, Readable(a.Block(i, l), rows, depth, scratch, kLeft),
                  Readable(b.Block(l, j), depth, cols, scratch, kRight),
                  (in_place && accumulate) || l > 0, sums, in_place ? c_leading : cols);
      }
      if (!in_place) StoreBlock(sums, rows, cols, accumulate, block);
    }
  }
}

/// c (+)= a b for one tile.
template <typename T, typename Out>
void MultiplyTile(int64_t m, int64_t n, int64_t k, const MatrixView<T>& a, const MatrixView<T>& b,
                  bool accumulate, const Result<Out>& c, Scratch& scratch) {
  using A = Accumulator<T>;
  const auto order = BlasOrderOf(m, n, c.row_stride, c.col_stride);
  if (order && order->transposed) {  // c^T = b^T a^T.
    return MultiplyTile(n, m, k, b.Transposed(), a.Transposed(), accumulate,
                        Result<Out>{c.data, c.col_stride, c.row_stride}, scratch);
  }
  if (k == 0) {
    if (!accumulate) SetToZero(m, n, c);
    return;
  }
  const bool in_place = order && std::is_same_v<Out, A>;
  const bool reads_in_place = std::is_same_v<T, A> &&
                              BlasOrderOf(m, k, a.row_stride, a.col_stride) &&
                              BlasOrderOf(k, n, b.row_stride, b.col_stride);
  const Panel panel =
      in_place && reads_in_place ? Panel{m, n, int64_t{1} << 30} : Panel{256, 512, 1024};
  MultiplyPanels(m, n, k, a, b, accumulate, c, in_place ? order->leading : 0, panel, scratch);
}

// ---- the whole product --------------------------------------------------------------------------

/// Strides and first element of one operand, its batch dims apart.
template <typename T>
struct Batched {
  T* data;
  Dims batch_strides;
  int64_t row_stride, col_stride;

  Batched(T* first, const Tensor& x)
      : data(first),
        row_stride(x.strides()[x.num_dims() - 2]),
        col_stride(x.strides()[x.num_dims() - 1]) {
    for (int dim = 0; dim + 2 < x.num_dims(); ++dim) batch_strides.push_back(x.strides()[dim]);
  }
  T* At(const Dims& batch, int64_t index) const {
    int64_t offset = 0;
    for (int dim = batch.size() - 1; dim >= 0; --dim) {
      offset += index % batch[dim] * batch_strides[dim];
      index /= batch[dim];
    }
    return data + offset;
  }
};

/// Whether the batch dims and the rows of x, as one dim, have one stride.
template <typename T>
bool RowsMerge(const Dims& batch, int64_t m, const Batched<T>& x) {
  int64_t stride = x.row_stride, extent = m;
  for (int dim = batch.size() - 1; dim >= 0; --dim) {
    if (batch[dim] != 1 && x.batch_strides[dim] != stride * extent) return false;
    extent *= batch[dim];
  }
  return true;
}

/// [.., m, k] x [k, n] is one product of more rows where memory allows to see it so.
template <typename T, typename Out>
bool IsOneProduct(const Dims& batch, int64_t m, const Batched<const T>& a,
                  const Batched<const T>& b, const Batched<Out>& c) {
  for (int dim = 0; dim < batch.size(); ++dim) {
    if (batch[dim] != 1 && b.batch_strides[dim] != 0) return false;
  }
  return RowsMerge(batch, m, a) && RowsMerge(batch, m, c);
}

template <typename T, typename Out>
void Multiply(ExecutionContext& context, const Tensor& x, const Tensor& y, bool accumulate,
              Tensor& out) {
  const Batched<const T> a(x.data<T>(), x), b(y.data<T>(), y);
  const Batched<Out> c(OutputData<Out>(out), out);
  Dims batch;
  for (int dim = 0; dim + 2 < out.num_dims(); ++dim) batch.push_back(out.dim(dim));
  int64_t products = batch.NumElements(), m = out.dim(-2);
  const int64_t n = out.dim(-1), k = x.dim(-1);
  if (products == 0 || m == 0 || n == 0) return;
  if (IsOneProduct(batch, m, a, b, c)) {
    m *= products;
    products = 1;
    batch = {};
  }
  const Tile tile = TileOf(products, m, n, k);
  const int64_t tiles_down = CeilDivide(m, tile.rows), tiles_across = CeilDivide(n, tile.cols);
  context.ParallelFor(
      CeilDivide(products, tile.products) * tiles_down * tiles_across, [&](int64_t index) {
        const int64_t j = index % tiles_across * tile.cols;
        const int64_t i = index / tiles_across % tiles_down * tile.rows;
        const int64_t first = index / tiles_across / tiles_down * tile.products;
        Scratch scratch(context);
        for (int64_t p = first; p < std::min(first + tile.products, products); ++p) {
          const MatrixView<T> left{a.At(batch, p) + i * a.row_stride, a.row_stride, a.col_stride};
          const MatrixView<T> right{b.At(batch, p) + j * b.col_stride, b.row_stride, b.col_stride};
          Out* result = c.At(batch, p) + i * c.row_stride + j * c.col_stride;
          MultiplyTile(std::min(tile.rows, m - i), std::min(tile.cols, n - j), k, left, right,
                       accumulate, Result<Out>{result, c.row_stride, c.col_stride}, scratch);
        }
      });
}

void MatMul(ExecutionContext& context, const Tensor& a, const Tensor& b, bool accumulate,
            Tensor& out) {
  cpu::PrepareBlas();
  VisitFloating(a.dtype(), "matmul", [&]<typename T>() {
    if (out.dtype() == a.dtype()) return Multiply<T, T>(context, a, b, accumulate, out);
    if constexpr (!std::is_same_v<T, Accumulator<T>>) {
      if (out.dtype() == DType::kF32) return Multiply<T, float>(context, a, b, accumulate, out);
    }
    ThrowInvalid("matmul: operands ", a.ToString(), " and result ", out.ToString());
  });
}

}  // namespace

void FillMatmulKernels(KernelTable& table) { table.matmul = MatMul; }

}  // namespace shardmesh
