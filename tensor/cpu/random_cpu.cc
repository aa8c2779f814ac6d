// SPDX-License-Identifier: Apache-2.0
//
// Random numbers and dropout: runs of consecutive global indices, in chunks of a fixed number of
// Philox blocks. What they compute is in tensor/philox.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/isa_cpu.h"
#include "shardmesh/tensor/cpu/rows_access_cpu.h"
#include "shardmesh/tensor/internal/output_data.h"
#include "shardmesh/tensor/philox.h"

namespace shardmesh {
namespace {

using cpu::RowCursor;
using cpu::RunForIsa;
using internal::OutputData;

constexpr int64_t kChunk = 1024;  // Elements that are worked on at a time.

// ---- runs of global indices ---------------------------------------------------------------------

/// A box as runs of consecutive global indices, all of one length.
struct Runs {
  int64_t count = 1, length = 1;
  int outer_dims = 0;  ///< Those of the box that a run does not cover.
};

Runs RunsOf(const Dims& shape, const RandomBox& box) {
  Runs runs;
  runs.outer_dims = shape.size();
  bool whole = true;  // All dims so far, from the last, are whole: the next one continues the run.
  while (runs.outer_dims > 0 && whole) {
    const int dim = --runs.outer_dims;
    runs.length *= shape[dim];
    whole = shape[dim] == box.global_shape[dim];
  }
  for (int dim = 0; dim < runs.outer_dims; ++dim) runs.count *= shape[dim];
  return runs;
}

/// Global index of the first element of a run.
uint64_t BeginOfRun(const Dims& shape, const RandomBox& box, const Runs& runs, int64_t run) {
  uint64_t index = 0, stride = 1;
  for (int dim = shape.size() - 1; dim >= 0; --dim) {
    int64_t position = box.begin[dim];
    if (dim < runs.outer_dims) {
      position += run % shape[dim];
      run /= shape[dim];
    }
    index += static_cast<uint64_t>(position) * stride;
    stride *= static_cast<uint64_t>(box.global_shape[dim]);
  }
  return index;
}

struct WordsLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(RandomKey key, uint64_t first_block, uint32_t* words,
                                          int64_t blocks) {
    for (int64_t i = 0; i < blocks; ++i) {
      const PhiloxWords block =
          Philox(key.seed, key.stream, first_block + static_cast<uint64_t>(i));
      for (int j = 0; j < 4; ++j) words[4 * i + j] = block.word[j];
    }
  }
};

/// Calls fn(words, skip, first, count) for chunks of the box: `count` elements from local position
/// `first` (row-major) on, whose words begin `skip` after `words`, which is the beginning of a
/// block.
template <typename Fn>
void ForChunks(ExecutionContext& context, RandomKey key, const RandomBox& box, const Dims& shape,
               const Fn& fn) {
  constexpr int64_t kPerTile = 16 * kChunk;
  if (shape.NumElements() == 0) return;
  const Runs runs = RunsOf(shape, box);
  const int64_t tiles_in_run = (runs.length + kPerTile - 1) / kPerTile;
  const int64_t runs_in_tile = std::max<int64_t>(1, kPerTile / 4 / runs.length);
  const int64_t groups = (runs.count + runs_in_tile - 1) / runs_in_tile;
  context.ParallelFor(groups * tiles_in_run, [&](int64_t tile) {
    alignas(64) uint32_t words[kChunk + 4];
    const int64_t first_run = tile / tiles_in_run * runs_in_tile;
    const int64_t begin = tile % tiles_in_run * kPerTile,
                  end = std::min(begin + kPerTile, runs.length);
    for (int64_t run = first_run; run < std::min(first_run + runs_in_tile, runs.count); ++run) {
      const uint64_t global = BeginOfRun(shape, box, runs, run);
      for (int64_t i = begin; i < end; i += kChunk) {
        const uint64_t index = global + static_cast<uint64_t>(i);
        const int64_t skip = static_cast<int64_t>(index % 4), count = std::min(kChunk, end - i);
        RunForIsa<WordsLoop>(key, index / 4, static_cast<uint32_t*>(words), (skip + count + 3) / 4);
        fn(static_cast<const uint32_t*>(words), skip, run * runs.length + i, count);
      }
    }
  });
}

// ---- conversion of values -----------------------------------------------------------------------

template <typename T>
SHARDMESH_ALWAYS_INLINE T Rounded(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return static_cast<T>(static_cast<float>(value));
  }
}

/// out[first ..] = values, where `first` is a row-major position.
template <typename T>
void Write(const T* values, int64_t first, int64_t count, Tensor& out, bool contiguous) {
  T* to = OutputData<T>(out);
  if (contiguous) {
    std::copy_n(values, count, to + first);
    return;
  }
  RowCursor cursor(out, first, /*dims_in_row=*/0);
  for (int64_t i = 0; i < count; ++i, cursor.Next()) to[cursor.offset()] = values[i];
}

// ---- uniform ------------------------------------------------------------------------------------

template <typename T>
struct UniformLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(const uint32_t* words, double low, double width, T* out,
                                          int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = Rounded<T>(low + UniformOf(words[i]) * width);
  }
};

/// The largest value below `high`, or `low` if there is none from there on.
template <typename T>
T Below(T high, T low) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::max(std::nextafter(high, -std::numeric_limits<T>::infinity()), low);
  } else {  // Of two bytes: neighbours differ by one in the bits.
    if (!(static_cast<float>(low) < static_cast<float>(high))) return low;
    T below = high;
    const bool is_zero = (below.bits & 0x7fff) == 0, is_negative = (below.bits & 0x8000) != 0;
    below.bits = is_zero ? 0x8001 : is_negative ? below.bits + 1 : below.bits - 1;
    return below;
  }
}

void RandomUniform(ExecutionContext& context, RandomKey key, const RandomBox& box, double low,
                   double high, Tensor& out) {
  VisitFloating(out.dtype(), "uniform", [&]<typename T>() {
    using A = Accumulator<T>;
    const bool contiguous = out.IsContiguous();
    const T limit = Rounded<T>(high), below = Below(limit, Rounded<T>(low));
    ForChunks(context, key, box, out.shape(),
              [&](const uint32_t* words, int64_t skip, int64_t first, int64_t count) {
                T values[kChunk];
                RunForIsa<UniformLoop<T>>(words + skip, low, high - low, static_cast<T*>(values),
                                          count);
                for (int64_t i = 0; i < count; ++i) {  // Rounding may have reached the upper limit.
                  if (!(static_cast<A>(values[i]) < static_cast<A>(limit))) values[i] = below;
                }
                Write(static_cast<const T*>(values), first, count, out, contiguous);
              });
  });
}

// ---- normal -------------------------------------------------------------------------------------

template <typename T>
struct NormalLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(const uint32_t* words, double mean, double stddev, T* out,
                                          int64_t pairs) {
    for (int64_t i = 0; i < pairs; ++i) {
      const NormalPair normals = NormalsOf(words[2 * i], words[2 * i + 1]);
      out[2 * i] = Rounded<T>(mean + stddev * static_cast<double>(normals.even));
      out[2 * i + 1] = Rounded<T>(mean + stddev * static_cast<double>(normals.odd));
    }
  }
};

void RandomNormal(ExecutionContext& context, RandomKey key, const RandomBox& box, double mean,
                  double stddev, Tensor& out) {
  VisitFloating(out.dtype(), "normal", [&]<typename T>() {
    const bool contiguous = out.IsContiguous();
    ForChunks(context, key, box, out.shape(),
              [&](const uint32_t* words, int64_t skip, int64_t first, int64_t count) {
                T values[kChunk + 4];
                RunForIsa<NormalLoop<T>>(words, mean, stddev, static_cast<T*>(values),
                                         (skip + count + 1) / 2);
                Write(values + skip, first, count, out, contiguous);
              });
  });
}

// ---- dropout ------------------------------------------------------------------------------------

template <typename T>
struct DropoutLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(const uint32_t* words, int32_t threshold,
                                          Accumulator<T> scale, const T* x, T* out, int64_t n) {
    using A = Accumulator<T>;
    for (int64_t i = 0; i < n; ++i) {
      const A scaled = static_cast<A>(x[i]) * scale;
      out[i] = static_cast<T>(static_cast<int32_t>(words[i] >> 8) >= threshold ? scaled : A{0});
    }
  }
};

void Dropout(ExecutionContext& context, RandomKey key, const RandomBox& box, const Tensor& x,
             double p, Tensor& out) {
  VisitFloating(x.dtype(), "dropout", [&]<typename T>() {
    const bool x_contiguous = x.IsContiguous(), out_contiguous = out.IsContiguous();
    const int32_t threshold = KeepThreshold(p);
    const auto scale = static_cast<Accumulator<T>>(p < 1.0 ? 1.0 / (1.0 - p) : 0.0);
    ForChunks(context, key, box, out.shape(),
              [&](const uint32_t* words, int64_t skip, int64_t first, int64_t count) {
                T values[kChunk];
                const T* from = x.data<T>() + first;
                if (!x_contiguous) {
                  RowCursor cursor(x, first, /*dims_in_row=*/0);
                  for (int64_t i = 0; i < count; ++i, cursor.Next())
                    values[i] = x.data<T>()[cursor.offset()];
                  from = values;
                }
                T* to = out_contiguous ? OutputData<T>(out) + first : static_cast<T*>(values);
                RunForIsa<DropoutLoop<T>>(words + skip, threshold, scale, from, to, count);
                if (!out_contiguous)
                  Write(static_cast<const T*>(values), first, count, out, /*contiguous=*/false);
              });
  });
}

}  // namespace

void FillRandomKernels(KernelTable& table) {
  table.random_uniform = RandomUniform;
  table.random_normal = RandomNormal;
  table.dropout = Dropout;
}

}  // namespace shardmesh
