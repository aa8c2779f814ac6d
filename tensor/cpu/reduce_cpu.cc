// SPDX-License-Identifier: Apache-2.0
//
// Reductions. The order of each sum is fixed by how many elements it has, whatever their strides
// and whichever loop is used. In row-major order of the reduced dims, elements
//   * are cut into blocks of kBlock; element i of a block goes to lane i mod kLaneCount;
//   * each lane is folded in order, starting from the identity; lane l then takes lane l + w, for
//     w = kLaneCount / 2, .., 1;
//   * blocks are folded in order, sums in f64: so the error of an f32 sum is that of about
//     kBlock / kLaneCount + log2 kLaneCount additions, however long it is.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "shardmesh/base/check.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/element_cpu.h"
#include "shardmesh/tensor/cpu/lanes_cpu.h"
#include "shardmesh/tensor/cpu/loops_cpu.h"
#include "shardmesh/tensor/cpu/scratch_cpu.h"
#include "shardmesh/tensor/internal/output_data.h"

namespace shardmesh {
namespace {

using cpu::kLanes;
using cpu::Lanes;
using internal::OutputData;

constexpr int64_t kBlock = 1024;
constexpr int64_t kColumns = 128;  // Outputs that one pass over rows serves.
constexpr int64_t kFewColumns = 8;

template <typename Acc>
constexpr int64_t kLaneCount = 4 * kLanes<Acc>;

// ---- operations --------------------------------------------------------------------------------

// How two values fold: numbers, or vectors of them.
struct AddInto {
  template <typename V>
  SHARDMESH_ALWAYS_INLINE void operator()(V& a, const V& b) const {
    if constexpr (std::is_integral_v<V>) {
      a = cpu::Plus(a, b);
    } else {
      a += b;
    }
  }
};
struct MultiplyInto {
  template <typename V>
  SHARDMESH_ALWAYS_INLINE void operator()(V& a, const V& b) const {
    if constexpr (std::is_integral_v<V>) {
      a = cpu::Product(a, b);
    } else {
      a *= b;
    }
  }
};
struct TakeLarger {
  template <typename V>
  SHARDMESH_ALWAYS_INLINE void operator()(V& a, const V& b) const {
    a = (a > b) | (a != a) ? a : b;
  }
};
struct TakeSmaller {
  template <typename V>
  SHARDMESH_ALWAYS_INLINE void operator()(V& a, const V& b) const {
    a = (a < b) | (a != a) ? a : b;
  }
};

// A reduction of elements of type T: `Acc` is what lanes hold, `Wide` what blocks are folded in;
// `Read` gives an element as an Acc.
template <typename T>
struct SumOf {
  using Fold = AddInto;
  using Acc = std::conditional_t<std::is_integral_v<T>, int64_t, Accumulator<T>>;
  using Wide = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
  static constexpr bool kReadsAsIs = true;
  static constexpr Acc kIdentity = 0;
  static SHARDMESH_ALWAYS_INLINE Acc Read(T x) { return static_cast<Acc>(x); }
};

template <typename T>
struct SumOfSquaresOf {
  using Fold = AddInto;
  using Acc = double;
  using Wide = double;
  static constexpr bool kReadsAsIs = false;
  static constexpr double kIdentity = 0;
  static SHARDMESH_ALWAYS_INLINE double Read(T x) {
    const double wide = static_cast<double>(cpu::Load(x));
    return wide * wide;
  }
};

template <typename T>
struct ProductOf {
  using Fold = MultiplyInto;
  using Acc = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
  using Wide = Acc;
  static constexpr bool kReadsAsIs = true;
  static constexpr Acc kIdentity = 1;
  static SHARDMESH_ALWAYS_INLINE Acc Read(T x) { return static_cast<Acc>(cpu::Load(x)); }
};

template <typename T, typename TheFold>
struct ExtremeOf {
  using Fold = TheFold;
  using Acc = std::conditional_t<std::is_same_v<T, bool>, int32_t, Accumulator<T>>;
  using Wide = Acc;
  static constexpr bool kReadsAsIs = true;
  static SHARDMESH_ALWAYS_INLINE Acc Read(T x) { return static_cast<Acc>(x); }
};
template <typename T>
struct MaxOf : ExtremeOf<T, TakeLarger> {
  using typename ExtremeOf<T, TakeLarger>::Acc;
  static constexpr Acc kIdentity = std::is_floating_point_v<Acc>
                                       ? -std::numeric_limits<Acc>::infinity()
                                       : static_cast<Acc>(std::numeric_limits<T>::lowest());
};
template <typename T>
struct MinOf : ExtremeOf<T, TakeSmaller> {
  using typename ExtremeOf<T, TakeSmaller>::Acc;
  static constexpr Acc kIdentity = std::is_floating_point_v<Acc>
                                       ? std::numeric_limits<Acc>::infinity()
                                       : static_cast<Acc>(std::numeric_limits<T>::max());
};

// ---- inner loops -------------------------------------------------------------------------------

// Folds one block of n <= kBlock elements that lie together.
template <typename Fold, typename TheAcc>
struct FoldLoop {
  using Acc = TheAcc;

  static SHARDMESH_ALWAYS_INLINE void Run(const Acc* x, int64_t n, Acc identity, Acc* result) {
    *result = One(x, n, identity);
  }

  static SHARDMESH_ALWAYS_INLINE Acc One(const Acc* x, int64_t n, Acc identity) {
    constexpr int64_t kWidth = kLanes<Acc>;
    const Fold fold;
    Lanes<Acc> start = {};
    start += identity;
    Lanes<Acc> folds[4] = {start, start, start, start};
    int64_t i = 0;
    for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
      for (int part = 0; part < 4; ++part) {
        Lanes<Acc> a;
        cpu::LoadLanes(x + i + part * kWidth, a);
        fold(folds[part], a);
      }
    }
    int part = 0;
    for (; i + kWidth <= n; ++part, i += kWidth) {
      Lanes<Acc> a;
      cpu::LoadLanes(x + i, a);
      fold(folds[part], a);
    }
    if (i < n) {
      Lanes<Acc> a;
      cpu::LoadLanes(x + i, n - i, identity, a);
      fold(folds[part], a);
    }
    if (n > kWidth) {  // Else they hold the identity.
      fold(folds[0], folds[2]);
      fold(folds[1], folds[3]);
      fold(folds[0], folds[1]);
    }
    Acc lanes[kWidth];
    __builtin_memcpy(lanes, &folds[0], sizeof(lanes));
    for (int64_t width = kWidth / 2; width > 0; width /= 2) {
      for (int64_t lane = 0; lane < width; ++lane) fold(lanes[lane], lanes[lane + width]);
    }
    return lanes[0];
  }
};

// Reads n elements that lie `stride` apart.
template <typename Op, typename T>
struct ReadLoop {
  using Acc = typename Op::Acc;

  static SHARDMESH_ALWAYS_INLINE void Run(const T* x, int64_t stride, Acc* out, int64_t n) {
    if (stride == 1) {
      for (int64_t i = 0; i < n; ++i) out[i] = Op::Read(x[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = Op::Read(x[i * stride]);
    }
  }
};

// Folds one block of n <= kBlock elements, `stride` apart, for each of `width` outputs, whose
// elements begin `step` apart.
template <typename Op, typename T>
struct FoldRowsLoop {
  using Acc = typename Op::Acc;

  static SHARDMESH_ALWAYS_INLINE void Run(const T* x, int64_t step, int64_t width, int64_t stride,
                                          int64_t n, Acc* results) {
    using Fold = FoldLoop<typename Op::Fold, Acc>;
    alignas(64) Acc buffer[kBlock];
    for (int64_t i = 0; i < width; ++i, x += step) {
      if constexpr (std::is_same_v<T, Acc> && Op::kReadsAsIs) {
        if (stride == 1) {
          results[i] = Fold::One(x, n, Op::kIdentity);
          continue;
        }
      }
      ReadLoop<Op, T>::Run(x, stride, buffer, n);
      results[i] = Fold::One(buffer, n, Op::kIdentity);
    }
  }
};

// Folds one block of `rows` <= kBlock rows of n <= kColumns elements, column by column. lanes:
// kLaneCount times kColumns; the result is in the first row of it.
template <typename Op, typename T>
struct FoldColumnsLoop {
  using Acc = typename Op::Acc;

  static SHARDMESH_ALWAYS_INLINE void Run(const T* x, const int64_t* row_offsets, int64_t rows,
                                          int64_t n, Acc* lanes) {
    const typename Op::Fold fold;
    const int64_t used = std::min(rows, kLaneCount<Acc>);
    for (int64_t lane = 0; lane < used; ++lane) {
      std::fill_n(lanes + lane * kColumns, n, Op::kIdentity);
    }
    for (int64_t row = 0; row < rows; ++row) {
      Acc* lane = lanes + row % kLaneCount<Acc> * kColumns;
      const T* x_row = x + row_offsets[row];
      SHARDMESH_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) fold(lane[i], Op::Read(x_row[i]));
    }
    for (int64_t width = kLaneCount<Acc> / 2; width > 0; width /= 2) {
      for (int64_t lane = 0; lane < width && lane + width < used; ++lane) {
        Acc* a = lanes + lane * kColumns;
        const Acc* b = a + width * kColumns;
        SHARDMESH_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) fold(a[i], b[i]);
      }
    }
  }
};

// Of integers, the baseline's version will do.
template <typename Loop, typename... Args>
SHARDMESH_ALWAYS_INLINE void RunLoop(Args... args) {
  if constexpr (std::is_floating_point_v<typename Loop::Acc>) {
    cpu::RunForIsa<Loop>(args...);
  } else {
    cpu::RunBaseline<Loop>(args...);
  }
}

// ---- geometry ----------------------------------------------------------------------------------

// Not inlined: the loops are many, and this is the same in all of them.

// Dims in row-major order, those that follow one another merged.
struct DimList {
  int rank = 0;
  int64_t extents[Dims::kMaxRank];
  int64_t strides[Dims::kMaxRank];      // Of x.
  int64_t out_strides[Dims::kMaxRank];  // 0 for reduced dims.

  [[gnu::noinline]] void Append(int64_t extent, int64_t stride, int64_t out_stride) {
    if (extent == 1) return;
    const int last = rank - 1;
    if (rank > 0 && strides[last] == extent * stride && out_strides[last] == extent * out_stride) {
      extents[last] *= extent;
    } else {
      extents[rank++] = extent;
    }
    strides[rank - 1] = stride;
    out_strides[rank - 1] = out_stride;
  }

  void Erase(int dim) {
    for (int i = dim; i + 1 < rank; ++i) {
      extents[i] = extents[i + 1];
      strides[i] = strides[i + 1];
      out_strides[i] = out_strides[i + 1];
    }
    --rank;
  }

  int64_t NumElements() const {
    int64_t product = 1;
    for (int dim = 0; dim < rank; ++dim) product *= extents[dim];
    return product;
  }
  int64_t LastExtent() const { return rank == 0 ? 1 : extents[rank - 1]; }
  int64_t LastStride() const { return rank == 0 ? 1 : strides[rank - 1]; }

  [[gnu::noinline]] int64_t Offset(int64_t index, const int64_t* along) const {
    int64_t offset = 0;
    for (int dim = rank - 1; dim >= 0 && index > 0; --dim) {
      offset += index % extents[dim] * along[dim];
      index /= extents[dim];
    }
    return offset;
  }
};

// The outputs are cut into units: up to kColumns along one kept dim, the width dim. By columns it
// is one that is contiguous in x, and rows of it are read; else it is the last kept one, and the
// elements of one output are read after those of another.
struct Geometry {
  DimList kept, reduced;  // Kept: without the width dim.
  bool by_columns = false;
  int64_t width_extent = 1, width_stride = 0, width_out_stride = 0;
  int64_t unit_width = 1;
  int64_t width_units = 1;  // Units along the width dim.
  int64_t units = 0;
  int64_t count = 0;  // Elements that each output is reduced from, in `blocks` blocks.
  int64_t blocks = 0;

  [[gnu::noinline]] Geometry(const Tensor& x, uint32_t mask, const Tensor& out) {
    for (int dim = 0; dim < x.num_dims(); ++dim) {
      if (mask >> dim & 1) {
        reduced.Append(x.dim(dim), x.strides()[dim], 0);
      } else {
        kept.Append(x.dim(dim), x.strides()[dim], out.strides()[dim]);
      }
    }
    count = reduced.NumElements();
    blocks = (count + kBlock - 1) / kBlock;
    ChooseWidth();
    width_units = (width_extent + unit_width - 1) / unit_width;
    units = kept.NumElements() * width_units;
  }

  void ChooseWidth() {
    if (kept.rank == 0) return;
    int width_dim = kept.rank - 1;
    if (reduced.rank == 0 || reduced.LastStride() != 1) {
      for (int dim = kept.rank - 1; dim >= 0 && !by_columns; --dim) {
        by_columns = kept.strides[dim] == 1 && kept.extents[dim] >= kFewColumns;
        if (by_columns) width_dim = dim;
      }
    }
    width_extent = kept.extents[width_dim];
    width_stride = kept.strides[width_dim];
    width_out_stride = kept.out_strides[width_dim];
    const int64_t in_tile = std::max<int64_t>(1, cpu::kTileElements / std::max<int64_t>(1, count));
    unit_width = by_columns ? kColumns : std::min(kColumns, in_tile);
    kept.Erase(width_dim);
  }

  int64_t Width(int64_t unit) const {
    return std::min(unit_width, width_extent - unit % width_units * unit_width);
  }
  [[gnu::noinline]] int64_t Offset(int64_t unit) const {
    return kept.Offset(unit / width_units, kept.strides) +
           unit % width_units * unit_width * width_stride;
  }
  [[gnu::noinline]] int64_t OutOffset(int64_t unit) const {
    return kept.Offset(unit / width_units, kept.out_strides) +
           unit % width_units * unit_width * width_out_stride;
  }
  // Calls fn(offset, length) for the parts of reduced elements [begin, begin + n) that lie along
  // the last reduced dim.
  template <typename Fn>
  void ForEachPart(int64_t begin, int64_t n, const Fn& fn) const {
    const int64_t extent = reduced.LastExtent();
    for (int64_t done = 0; done < n;) {
      const int64_t at = begin + done;
      const int64_t length = std::min(n - done, extent - at % extent);
      fn(reduced.Offset(at, reduced.strides), length);
      done += length;
    }
  }
};

// ---- one block ---------------------------------------------------------------------------------

template <typename Op, typename T>
class BlockFolder {
 public:
  using Acc = typename Op::Acc;
  using Wide = typename Op::Wide;

  BlockFolder(const Tensor& x, const Geometry& geometry)
      : x_(x.data<T>()), geometry_(geometry), stride_(geometry.reduced.LastStride()) {}

  /// Into result[0 .. geometry.Width(unit)).
  void Fold(int64_t unit, int64_t block, Wide* result) const {
    const int64_t begin = block * kBlock;
    const int64_t n = std::min(kBlock, geometry_.count - begin);
    const T* x = x_ + geometry_.Offset(unit);
    if (geometry_.by_columns) {
      FoldColumns(x, begin, n, geometry_.Width(unit), result);
    } else {
      FoldRows(x, begin, n, geometry_.Width(unit), result);
    }
  }

 private:
  void FoldRows(const T* x, int64_t begin, int64_t n, int64_t width, Wide* result) const {
    Acc folds[kColumns];
    const int64_t extent = geometry_.reduced.LastExtent();
    if (begin % extent + n <= extent) {  // All of the block lies along the last reduced dim.
      const int64_t offset = geometry_.reduced.Offset(begin, geometry_.reduced.strides);
      RunLoop<FoldRowsLoop<Op, T>>(x + offset, geometry_.width_stride, width, stride_, n,
                                   static_cast<Acc*>(folds));
    } else {
      for (int64_t i = 0; i < width; ++i) {
        folds[i] = FoldParts(x + i * geometry_.width_stride, begin, n);
      }
    }
    for (int64_t i = 0; i < width; ++i) result[i] = static_cast<Wide>(folds[i]);
  }

  [[gnu::noinline]] Acc FoldParts(const T* x, int64_t begin, int64_t n) const {
    alignas(64) Acc buffer[kBlock];
    int64_t read = 0;
    geometry_.ForEachPart(begin, n, [&](int64_t offset, int64_t length) {
      RunLoop<ReadLoop<Op, T>>(x + offset, stride_, buffer + read, length);
      read += length;
    });
    Acc folded;
    RunLoop<FoldLoop<typename Op::Fold, Acc>>(static_cast<const Acc*>(buffer), n, Op::kIdentity,
                                              &folded);
    return folded;
  }

  void FoldColumns(const T* x, int64_t begin, int64_t rows, int64_t n, Wide* result) const {
    alignas(64) Acc lanes[kLaneCount<Acc> * kColumns];
    int64_t row_offsets[kBlock];
    int64_t row = 0;
    geometry_.ForEachPart(begin, rows, [&](int64_t offset, int64_t length) {
      for (int64_t i = 0; i < length; ++i) row_offsets[row++] = offset + i * stride_;
    });
    RunLoop<FoldColumnsLoop<Op, T>>(x, static_cast<const int64_t*>(row_offsets), rows, n,
                                    static_cast<Acc*>(lanes));
    for (int64_t i = 0; i < n; ++i) result[i] = static_cast<Wide>(lanes[i]);
  }

  const T* x_;
  const Geometry& geometry_;
  int64_t stride_;
};

// ---- blocks into results -----------------------------------------------------------------------

template <typename Wide, typename To>
void StoreAs(const Wide* values, int64_t n, char* out, int64_t stride) {
  To* to = reinterpret_cast<To*>(out);
  for (int64_t i = 0; i < n; ++i) to[i * stride] = ConvertTo<To>(values[i]);
}

template <typename Fold, typename Wide>
class Folder {
 public:
  using BlockFn = absl::FunctionRef<void(int64_t unit, int64_t block, Wide* result)>;

  Folder(const Geometry& geometry, Wide identity, Tensor& out)
      : geometry_(geometry),
        identity_(identity),
        out_(static_cast<char*>(OutputData(out))),
        out_item_(SizeOf(out.dtype())),
        store_(
            VisitDType(out.dtype(), []<typename To>() -> StoreFn { return StoreAs<Wide, To>; })) {}

  [[gnu::noinline]] void Run(ExecutionContext& context, BlockFn fold_block) const {
    const Geometry& g = geometry_;
    if (g.units == 0) return;
    const int64_t tasks_wanted = context.threads() > 1 ? 4 * context.threads() : 1;
    if (g.units < tasks_wanted && g.blocks > 1) return RunSplit(context, fold_block);
    const int64_t per_unit = std::max<int64_t>(1, g.count * g.unit_width);
    const int64_t tile = std::max<int64_t>(1, cpu::kTileElements / per_unit);
    cpu::ForTiles(context, g.units, tile, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        Wide folds[kColumns], block_folds[kColumns];
        std::fill_n(folds, g.Width(unit), identity_);
        for (int64_t block = 0; block < g.blocks; ++block) {
          fold_block(unit, block, block_folds);
          FoldInto(g.Width(unit), block_folds, folds);
        }
        Store(unit, folds);
      }
    });
  }

 private:
  using StoreFn = void (*)(const Wide* values, int64_t n, char* out, int64_t stride);

  // Few units of many blocks: all blocks side by side, then folded in the order that Run has.
  void RunSplit(ExecutionContext& context, BlockFn fold_block) const {
    const Geometry& g = geometry_;
    const int64_t width = std::min(g.unit_width, g.width_extent);
    cpu::Scratch scratch(context);
    Wide* block_folds = scratch.Get<Wide>(/*slot=*/0, g.units * g.blocks * width);
    const int64_t tile = std::max<int64_t>(1, cpu::kTileElements / (kBlock * width));
    cpu::ForTiles(context, g.units * g.blocks, tile, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        fold_block(i / g.blocks, i % g.blocks, block_folds + i * width);
      }
    });
    for (int64_t unit = 0; unit < g.units; ++unit) {
      Wide folds[kColumns];
      std::fill_n(folds, width, identity_);
      for (int64_t block = 0; block < g.blocks; ++block) {
        FoldInto(g.Width(unit), block_folds + (unit * g.blocks + block) * width, folds);
      }
      Store(unit, folds);
    }
  }

  static void FoldInto(int64_t n, const Wide* from, Wide* to) {
    for (int64_t i = 0; i < n; ++i) Fold()(to[i], from[i]);
  }

  void Store(int64_t unit, const Wide* values) const {
    store_(values, geometry_.Width(unit), out_ + geometry_.OutOffset(unit) * out_item_,
           geometry_.width_out_stride);
  }

  const Geometry& geometry_;
  Wide identity_;
  char* out_;
  int64_t out_item_;
  StoreFn store_;
};

// ---- kernels -----------------------------------------------------------------------------------

template <typename Op, typename T>
void Run(ExecutionContext& context, const Tensor& x, uint32_t mask, Tensor& out) {
  const Geometry geometry(x, mask, out);
  const BlockFolder<Op, T> folder(x, geometry);
  using Wide = typename Op::Wide;
  Folder<typename Op::Fold, Wide>(geometry, Op::kIdentity, out)
      .Run(context,
           [&](int64_t unit, int64_t block, Wide* result) { folder.Fold(unit, block, result); });
}

void Reduce(ExecutionContext& context, ReduceOp op, const Tensor& x, uint32_t reduced,
            Tensor& out) {
  for (int dim = 0; dim < x.num_dims(); ++dim) {
    if (out.dim(dim) == 1 && x.dim(dim) != 1) reduced |= 1u << dim;
  }
  VisitDType(x.dtype(), [&]<typename T>() {
    switch (op) {
      case ReduceOp::kSum:
        return Run<SumOf<T>, T>(context, x, reduced, out);
      case ReduceOp::kMin:
        return Run<MinOf<T>, T>(context, x, reduced, out);
      case ReduceOp::kMax:
        return Run<MaxOf<T>, T>(context, x, reduced, out);
      case ReduceOp::kProduct:
        return Run<ProductOf<T>, T>(context, x, reduced, out);
    }
  });
}

void SumOfSquares(ExecutionContext& context, const Tensor& x, Tensor& out) {
  SHARDMESH_CHECK(out.NumElements() == 1) << "the sum of squares is one number";
  const uint32_t all = (1u << x.num_dims()) - 1;
  VisitFloating(x.dtype(), "sum_of_squares",
                [&]<typename T>() { Run<SumOfSquaresOf<T>, T>(context, x, all, out); });
}

}  // namespace

void FillReduceKernels(KernelTable& table) {
  table.reduce = Reduce;
  table.sum_of_squares = SumOfSquares;
}

}  // namespace shardmesh
