// SPDX-License-Identifier: Apache-2.0
//
// Ops that rearrange, and tensors made of indices. Names, arguments and conventions are PyTorch's;
// dims count from the last where negative.
//
//   DTensor y = Roll(Pad(x, {1, 2}), {1}, {-1});
//
// Shards stay in every dim that an op leaves alone. A dim whose elements change places is gathered
// if it is sharded, by a move that the planner chooses; where that can be avoided, it says so here.
// A result that PyTorch calls a view aliases x where no data moves; where data moves, in-place ops
// on it are refused.
//
// Included by dtensor/ops.h, which states what is collective and what is an error.
#ifndef SHARDMESH_DTENSOR_OPS_SHAPE_H_
#define SHARDMESH_DTENSOR_OPS_SHAPE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

// ---- views of other shapes (ops/shape_views.cc) -------------------------------------------------
/// Dim i of the result is dim dims[i] of x; each dim once.
DTensor Permute(const DTensor& x, const std::vector<int>& dims);
/// Dim source[i] comes to stand at destination[i]; the others keep their order.
DTensor MoveDim(const DTensor& x, const std::vector<int>& source,
                const std::vector<int>& destination);
/// The transpose of a matrix; a vector or a number is left as it is.
DTensor T(const DTensor& x);
DTensor Unsqueeze(const DTensor& x, int dim);
/// Without dims of extent 1: all of them, or those among `dims`.
DTensor Squeeze(const DTensor& x);
DTensor Squeeze(const DTensor& x, const std::vector<int>& dims);
/// Dims start to end, both included, as one: a shard of the first survives where the number of
/// shards divides it (as in Reshape, also below). A number becomes a vector.
DTensor Flatten(const DTensor& x, int start = 0, int end = -1);
/// One dim.
DTensor Ravel(const DTensor& x);
/// `dim` as several, of which one extent may be -1.
DTensor Unflatten(const DTensor& x, int dim, const Dims& sizes);
/// Expand, where -1 keeps an extent.
DTensor BroadcastTo(const DTensor& x, const Dims& shape);
/// With leading dims of extent 1, as many as are missing.
DTensor AtLeast1d(const DTensor& x);
DTensor AtLeast2d(const DTensor& x);
/// [n] becomes [1, n, 1], and [n, m] becomes [n, m, 1].
DTensor AtLeast3d(const DTensor& x);
/// Shape: [.., c r r, h, w] -> [.., c, h r, w r], and back.
DTensor PixelShuffle(const DTensor& x, int64_t factor);
DTensor PixelUnshuffle(const DTensor& x, int64_t factor);

// ---- parts (ops/shape_parts.cc) -----------------------------------------------------------------
/// Slice, from the end of `dim` if `start` is negative.
DTensor Narrow(const DTensor& x, int dim, int64_t start, int64_t length);
/// Index `index` of `dim`, which goes. Along a sharded dim x stays: the ranks that have the index
/// give it, and the result is Partial.
DTensor Select(const DTensor& x, int dim, int64_t index);
/// Every index of `dim`, which goes.
std::vector<DTensor> Unbind(const DTensor& x, int dim = 0);
/// Parts of `size`; the last may be smaller.
std::vector<DTensor> SplitEvery(const DTensor& x, int64_t size, int dim = 0);
/// At most `chunks` parts of ceil(extent / chunks), as Shard cuts.
std::vector<DTensor> Chunk(const DTensor& x, int64_t chunks, int dim = 0);
/// `sections` parts; the first extent % sections are one longer.
std::vector<DTensor> TensorSplit(const DTensor& x, int64_t sections, int dim = 0);
/// Cut before each index, which may be negative or beyond the end.
std::vector<DTensor> TensorSplitAt(const DTensor& x, const std::vector<int64_t>& indices,
                                   int dim = 0);
/// Along the second dim (of a vector the first), the first, and the third; `sections` divides it.
std::vector<DTensor> HSplit(const DTensor& x, int64_t sections);
std::vector<DTensor> HSplitAt(const DTensor& x, const std::vector<int64_t>& indices);
std::vector<DTensor> VSplit(const DTensor& x, int64_t sections);
std::vector<DTensor> VSplitAt(const DTensor& x, const std::vector<int64_t>& indices);
std::vector<DTensor> DSplit(const DTensor& x, int64_t sections);
std::vector<DTensor> DSplitAt(const DTensor& x, const std::vector<int64_t>& indices);

// ---- joining (ops/shape_join.cc) ----------------------------------------------------------------
/// Tensors of one shape along a new dim.
DTensor Stack(const std::vector<DTensor>& parts, int dim = 0);
/// Concat along the second dim; of vectors along the first.
DTensor HStack(const std::vector<DTensor>& parts);
/// Concat of AtLeast2d along the first dim.
DTensor VStack(const std::vector<DTensor>& parts);
/// Concat of AtLeast3d along the third dim.
DTensor DStack(const std::vector<DTensor>& parts);
/// HStack where vectors are columns.
DTensor ColumnStack(const std::vector<DTensor>& parts);
/// Matrices along the diagonal of one matrix; a vector is a row.
DTensor BlockDiag(const std::vector<DTensor>& parts);
/// Which of the first two vectors varies along dim 0: the first (kMatrix, "ij" in PyTorch), or the
/// second (kCartesian, "xy").
enum class GridIndexing { kMatrix, kCartesian };
/// Vectors or numbers, each repeated along the dims of the others. Results cannot be written.
std::vector<DTensor> Meshgrid(const std::vector<DTensor>& vectors,
                              GridIndexing indexing = GridIndexing::kMatrix);
/// One row per combination of elements; of a single vector, itself.
DTensor CartesianProd(const std::vector<DTensor>& vectors);

// ---- elements in other places (ops/shape_take.cc, ops/shape_pad.cc) -----------------------------
DTensor Flip(const DTensor& x, const std::vector<int>& dims);
DTensor FlipLr(const DTensor& x);  ///< Dim 1.
DTensor FlipUd(const DTensor& x);  ///< Dim 0.
/// Elements move by shifts[i] along dims[i]; those that leave at the end come in at the beginning.
DTensor Roll(const DTensor& x, const std::vector<int64_t>& shifts, const std::vector<int>& dims);
/// Of all elements as one dim.
DTensor Roll(const DTensor& x, int64_t shift);
/// Rotated `times` times by 90 degrees, from dim0 towards dim1.
DTensor Rot90(const DTensor& x, int64_t times = 1, int dim0 = 0, int dim1 = 1);
/// The whole tensor side by side, counts[d] times along dim d; more counts than dims give new
/// leading dims.
DTensor Repeat(const DTensor& x, const std::vector<int64_t>& counts);
/// Repeat, where missing leading counts are 1.
DTensor Tile(const DTensor& x, const std::vector<int64_t>& counts);
/// Each element `repeats` times in a row along `dim`, or along all elements as one dim. A shard
/// stays where the number of shards divides the extent.
DTensor RepeatInterleave(const DTensor& x, int64_t repeats, std::optional<int> dim = std::nullopt);
/// Index i of `dim` repeats[i] times. `repeats` is the same on all ranks.
DTensor RepeatInterleave(const DTensor& x, const std::vector<int64_t>& repeats,
                         std::optional<int> dim = std::nullopt);
/// Windows of `size` every `step` along `dim`: `dim` counts them, a new last dim is within them. A
/// copy.
DTensor Unfold(const DTensor& x, int dim, int64_t size, int64_t step);
/// x with [start, end) of `dim`, every `step`, replaced by `source`. Ends are those of Python's
/// slices. x is not gathered.
DTensor SliceScatter(const DTensor& x, const DTensor& source, int dim = 0,
                     std::optional<int64_t> start = std::nullopt,
                     std::optional<int64_t> end = std::nullopt, int64_t step = 1);
/// x with index `index` of `dim` replaced by `source`, which lacks the dim.
DTensor SelectScatter(const DTensor& x, const DTensor& source, int dim, int64_t index);

enum class PadMode { kConstant, kReflect, kReplicate, kCircular };
/// Padded by pads = {before, after} in the last dim, {.., before, after} in the last but one, and
/// so on. Negative pads crop. kReflect does not repeat the edge, and pads by less than the extent;
/// kCircular by the extent at most. `value` is for kConstant.
DTensor Pad(const DTensor& x, const std::vector<int64_t>& pads, PadMode mode = PadMode::kConstant,
            double value = 0);

// ---- triangles and diagonals (ops/shape_diagonal.cc) --------------------------------------------
/// Zero above (Tril) or below (Triu) diagonal `offset` of the last two dims, which may be sharded.
DTensor Tril(const DTensor& x, int64_t offset = 0);
DTensor Triu(const DTensor& x, int64_t offset = 0);
/// Elements [i, i + offset] of two dims as the last dim. Where these dims are sharded x stays, and
/// the result is Partial. A copy.
DTensor Diagonal(const DTensor& x, int64_t offset = 0, int dim0 = 0, int dim1 = 1);
/// The last dim as diagonal of two new dims, zero elsewhere.
DTensor DiagEmbed(const DTensor& x, int64_t offset = 0, int dim0 = -2, int dim1 = -1);
/// DiagEmbed of a vector, Diagonal of a matrix.
DTensor Diag(const DTensor& x, int64_t offset = 0);
/// x with Diagonal(x) replaced by `source`. x is not gathered.
DTensor DiagonalScatter(const DTensor& x, const DTensor& source, int64_t offset = 0, int dim0 = 0,
                        int dim1 = 1);

// ---- creation (ops/shape_create.cc) -------------------------------------------------------------
// Each rank makes its box: the same bits on any mesh. Local. Partial placements are an error.
DTensor Ones(const DeviceMesh& mesh, const Dims& shape, DType dtype,
             const std::vector<Placement>& placements);
/// Of x's shape, dtype and layout (Partial read as Replicate).
DTensor FullLike(const DTensor& x, double value);
DTensor ZerosLike(const DTensor& x);
DTensor OnesLike(const DTensor& x);
/// start, start + step, .. before `end`.
DTensor Arange(const DeviceMesh& mesh, double start, double end, double step, DType dtype,
               const std::vector<Placement>& placements);
/// `count` numbers from `start` to `end`, both included.
DTensor Linspace(const DeviceMesh& mesh, double start, double end, int64_t count, DType dtype,
                 const std::vector<Placement>& placements);
/// 1 where row and column are equal.
DTensor Eye(const DeviceMesh& mesh, int64_t rows, int64_t columns, DType dtype,
            const std::vector<Placement>& placements);
/// i64[2, n]: rows and columns of what Tril and Triu keep of a matrix, row by row.
DTensor TrilIndices(const DeviceMesh& mesh, int64_t rows, int64_t columns, int64_t offset,
                    const std::vector<Placement>& placements);
DTensor TriuIndices(const DeviceMesh& mesh, int64_t rows, int64_t columns, int64_t offset,
                    const std::vector<Placement>& placements);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_SHAPE_H_
