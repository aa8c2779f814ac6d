// SPDX-License-Identifier: Apache-2.0
//
// Embedding and the local parts of cross entropy. Each may hold a part of the vocabulary: ids and
// targets are global, those of other ranks contribute zeros.
#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/isa_cpu.h"
#include "shardmesh/tensor/cpu/lanes_cpu.h"
#include "shardmesh/tensor/cpu/math_cpu.h"
#include "shardmesh/tensor/cpu/rows_access_cpu.h"
#include "shardmesh/tensor/cpu/scratch_cpu.h"
#include "shardmesh/tensor/internal/output_data.h"

namespace shardmesh {
namespace {

using cpu::ForRowTiles;
using cpu::RowCursor;
using cpu::RowReader;
using cpu::RowsOf;
using cpu::RowsPerTile;
using cpu::RowWriter;
using cpu::RunForIsa;
using cpu::Scratch;
using internal::OutputData;

// Slots of scratch: of a tile, and of a whole kernel.
enum TileSlot { kX, kOut };
enum SharedSlot { kStarts, kPositions };

/// Calls visitor.template operator()<T>() with the type of indices.
template <typename Visitor>
decltype(auto) VisitIndex(const char* op, DType dtype, Visitor&& visitor) {
  if (dtype == DType::kI64) return visitor.template operator()<int64_t>();
  if (dtype == DType::kI32) return visitor.template operator()<int32_t>();
  ThrowInvalid(op, ": indices are i64 or i32, not ", std::string(Name(dtype)));
}

/// One index after another, in row-major order.
template <typename I>
class IndexReader {
 public:
  IndexReader(const Tensor& ids, int64_t first)
      : data_(ids.data<I>()), cursor_(ids, first, /*dims_in_row=*/0) {}
  int64_t Next() {
    const int64_t id = data_[cursor_.offset()];
    cursor_.Next();
    return id;
  }

 private:
  const I* data_;
  RowCursor cursor_;
};

std::optional<int64_t> FindOutOfRange(ExecutionContext&, const Tensor& ids, int64_t low,
                                      int64_t high, std::optional<int64_t> ignored) {
  return VisitIndex("indices", ids.dtype(), [&]<typename I>() -> std::optional<int64_t> {
    IndexReader<I> reader(ids, 0);
    for (int64_t left = ids.NumElements(); left > 0; --left) {
      const int64_t id = reader.Next();
      if ((id < low || id >= high) && id != ignored) return id;
    }
    return std::nullopt;
  });
}

// ---- embedding ----------------------------------------------------------------------------------

template <typename T, typename To>
void CopyRow(const T* from, int64_t from_stride, To* to, int64_t to_stride, int64_t n) {
  if constexpr (std::is_same_v<T, To>) {
    if (from_stride == 1 && to_stride == 1) {
      std::memcpy(to, from, n * sizeof(T));
      return;
    }
  }
  cpu::ConvertStrided(from, from_stride, to, to_stride, n);
}

template <typename T, typename To>
void LookUpRows(ExecutionContext& context, const Tensor& ids, const Tensor& table,
                int64_t first_row, Tensor& out) {
  const int64_t n = table.dim(1), rows = table.dim(0);
  VisitIndex("embedding", ids.dtype(), [&]<typename I>() {
    const int64_t table_stride = cpu::LastStride(table), out_stride = cpu::LastStride(out);
    const T zero{};
    ForRowTiles(context, ids.NumElements(), RowsPerTile(n), [&](int64_t begin, int64_t end) {
      IndexReader<I> indices(ids, begin);
      RowCursor to(out, begin);
      for (int64_t position = begin; position < end; ++position, to.Next()) {
        const int64_t row = indices.Next() - first_row;
        const bool is_local = 0 <= row && row < rows;
        const T* from = is_local ? table.data<T>() + row * table.strides()[0] : &zero;
        CopyRow(from, is_local ? table_stride : 0, OutputData<To>(out) + to.offset(), out_stride,
                n);
      }
    });
  });
}

void Embedding(ExecutionContext& context, const Tensor& ids, const Tensor& table, int64_t first_row,
               Tensor& out) {
  if (out.NumElements() == 0) return;
  VisitFloating(table.dtype(), "embedding", [&]<typename T>() {
    if (out.dtype() == table.dtype()) return LookUpRows<T, T>(context, ids, table, first_row, out);
    if constexpr (!std::is_same_v<T, Accumulator<T>>) {
      if (out.dtype() == DType::kF32)
        return LookUpRows<T, float>(context, ids, table, first_row, out);
    }
    ThrowInvalid("embedding: table ", table.ToString(), " into ", out.ToString());
  });
}

/// Positions of ids sorted by id, stable: those of row r are positions[starts[r] .. starts[r + 1]).
struct Buckets {
  const int64_t* starts;
  const int64_t* positions;
};

template <typename I>
Buckets SortPositions(const Tensor& ids, int64_t first_row, int64_t rows, Scratch& scratch) {
  const int64_t count = ids.NumElements();
  int64_t* starts = scratch.Get<int64_t>(kStarts, rows + 2);  // Shifted by one while it is filled.
  int64_t* positions = scratch.Get<int64_t>(kPositions, count);
  std::fill_n(starts, rows + 2, 0);
  IndexReader<I> counted(ids, 0);
  for (int64_t position = 0; position < count; ++position) {
    const int64_t row = counted.Next() - first_row;
    if (0 <= row && row < rows) ++starts[row + 2];
  }
  for (int64_t row = 0; row < rows; ++row) starts[row + 2] += starts[row + 1];
  IndexReader<I> placed(ids, 0);
  for (int64_t position = 0; position < count; ++position) {
    const int64_t row = placed.Next() - first_row;
    if (0 <= row && row < rows) positions[starts[row + 1]++] = position;
  }
  return {starts, positions};
}

template <typename A, typename T>
struct AddConvertedRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const T* x, A* sum, int64_t n) {
    for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<A>(x[i]);
  }
};

/// Row by row of the table: what was there or zero, plus the gradients in the order of their
/// positions.
template <typename T, typename D>
void AddGradients(ExecutionContext& context, const Tensor& grad, const Buckets& buckets,
                  bool accumulate, Tensor& dtable) {
  using A = Accumulator<T>;
  const int64_t n = dtable.dim(1), rows = dtable.dim(0);
  const int64_t grad_stride = cpu::LastStride(grad), table_stride = cpu::LastStride(dtable);
  ForRowTiles(context, rows, RowsPerTile(n), [&](int64_t begin, int64_t end) {
    Scratch scratch(context);
    A* sum = scratch.Get<A>(kOut, n);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = buckets.starts[row], last = buckets.starts[row + 1];
      if (accumulate && first == last) continue;
      D* to = OutputData<D>(dtable) + row * dtable.strides()[0];
      if (accumulate) {
        cpu::ConvertStrided<A, D>(to, table_stride, sum, 1, n);
      } else {
        std::fill_n(sum, n, A{0});
      }
      for (int64_t i = first; i < last; ++i) {
        const T* from = grad.data<T>() + RowCursor(grad, buckets.positions[i]).offset();
        if (grad_stride == 1) {
          RunForIsa<AddConvertedRow<A, T>>(from, sum, n);
        } else {
          for (int64_t j = 0; j < n; ++j) sum[j] += static_cast<A>(from[j * grad_stride]);
        }
      }
      cpu::ConvertStrided<D, A>(sum, 1, to, table_stride, n);
    }
  });
}

void EmbeddingBackward(ExecutionContext& context, const Tensor& grad, const Tensor& ids,
                       int64_t first_row, bool accumulate, Tensor& dtable) {
  if (dtable.NumElements() == 0) return;
  Scratch shared(context);
  const Buckets buckets = VisitIndex("embedding backward", ids.dtype(), [&]<typename I>() {
    return SortPositions<I>(ids, first_row, dtable.dim(0), shared);
  });
  VisitFloating(grad.dtype(), "embedding backward", [&]<typename T>() {
    if (dtable.dtype() == grad.dtype())
      return AddGradients<T, T>(context, grad, buckets, accumulate, dtable);
    if constexpr (!std::is_same_v<T, Accumulator<T>>) {
      if (dtable.dtype() == DType::kF32)
        return AddGradients<T, float>(context, grad, buckets, accumulate, dtable);
    }
    ThrowInvalid("embedding backward: gradient ", grad.ToString(), " into ", dtable.ToString());
  });
}

// ---- cross entropy ------------------------------------------------------------------------------

template <typename A>
struct SumExpRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* x, A max, A* exponentials, A* sum, int64_t n) {
    for (int64_t i = 0; i < n; ++i) exponentials[i] = cpu::Exp(x[i] - max);
    *sum = cpu::Sum(exponentials, n);
  }
};

template <typename A>
struct ScaledProbabilitiesRow {
  static SHARDMESH_ALWAYS_INLINE void Run(const A* x, A max, A inverse_sum, A scale, A* dx,
                                          int64_t n) {
    for (int64_t i = 0; i < n; ++i) dx[i] = cpu::Exp(x[i] - max) * inverse_sum * scale;
  }
};

void CrossEntropyTerms(ExecutionContext& context, const Tensor& x, const Tensor& targets,
                       int64_t first_class, const Tensor& max, Tensor& sum_exp, Tensor& picked) {
  const int64_t n = x.dim(-1);
  VisitFloating(x.dtype(), "cross_entropy", [&]<typename T>() {
    VisitIndex("cross_entropy", targets.dtype(), [&]<typename I>() {
      using A = Accumulator<T>;
      ForRowTiles(context, RowsOf(x), RowsPerTile(n), [&](int64_t begin, int64_t end) {
        Scratch scratch(context);
        RowReader<T> xs(x, begin, scratch, kX);
        IndexReader<I> classes(targets, begin);
        RowCursor max_at(max, begin, 0), sum_at(sum_exp, begin, 0), picked_at(picked, begin, 0);
        A* exponentials = scratch.Get<A>(kOut, n);
        for (int64_t row = begin; row < end; ++row) {
          const A* values = xs.Next();
          const A row_max = max.data<A>()[max_at.offset()];
          RunForIsa<SumExpRow<A>>(values, row_max, exponentials,
                                  OutputData<A>(sum_exp) + sum_at.offset(), n);
          const int64_t target = classes.Next() - first_class;
          const bool is_local = 0 <= target && target < n;
          OutputData<A>(picked)[picked_at.offset()] = is_local ? values[target] - row_max : A{0};
          max_at.Next(), sum_at.Next(), picked_at.Next();
        }
      });
    });
  });
}

void CrossEntropyBackward(ExecutionContext& context, const Tensor& x, const Tensor& targets,
                          int64_t first_class, const Tensor& max, const Tensor& sum_exp,
                          const Tensor& scale, int64_t ignore_index, Tensor& dx) {
  const int64_t n = x.dim(-1);
  if (x.NumElements() == 0) return;
  VisitFloating(x.dtype(), "cross_entropy backward", [&]<typename T>() {
    VisitIndex("cross_entropy backward", targets.dtype(), [&]<typename I>() {
      using A = Accumulator<T>;
      ForRowTiles(context, RowsOf(x), RowsPerTile(n), [&](int64_t begin, int64_t end) {
        Scratch scratch(context);
        RowReader<T> xs(x, begin, scratch, kX);
        RowWriter<T> dxs(dx, begin, scratch, kOut);
        IndexReader<I> classes(targets, begin);
        RowCursor max_at(max, begin, 0), sum_at(sum_exp, begin, 0), scale_at(scale, begin, 0);
        for (int64_t row = begin; row < end; ++row) {
          const A* values = xs.Next();
          A* gradient = dxs.Row();
          const int64_t target = classes.Next();
          if (target == ignore_index) {
            std::fill_n(gradient, n, A{0});
          } else {
            const A row_max = max.data<A>()[max_at.offset()];
            const A inverse_sum = A{1} / sum_exp.data<A>()[sum_at.offset()];
            const A factor = scale.data<A>()[scale_at.offset()];
            const int64_t local = target - first_class;
            const bool is_local = 0 <= local && local < n;
            RunForIsa<ScaledProbabilitiesRow<A>>(values, row_max, inverse_sum, factor, gradient, n);
            if (is_local) {
              const A probability = cpu::Exp(values[local] - row_max) * inverse_sum;
              gradient[local] = (probability - A{1}) * factor;
            }
          }
          dxs.Commit();
          max_at.Next(), sum_at.Next(), scale_at.Next();
        }
      });
    });
  });
}

}  // namespace

void FillLookupKernels(KernelTable& table) {
  table.find_out_of_range = FindOutOfRange;
  table.embedding = Embedding;
  table.embedding_backward = EmbeddingBackward;
  table.cross_entropy_terms = CrossEntropyTerms;
  table.cross_entropy_backward = CrossEntropyBackward;
}

}  // namespace shardmesh
