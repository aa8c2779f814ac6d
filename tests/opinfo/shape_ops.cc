// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

// f(x, shape).
OpFunction ToShape(DTensor (*op)(const DTensor&, const Dims&)) {
  return [op](const Args& args) { return Results{op(args.Tensor(0), args.Shape(1, "size"))}; };
}

// f(x, counts).
OpFunction ByCounts(DTensor (*op)(const DTensor&, const std::vector<int64_t>&)) {
  return [op](const Args& args) { return Results{op(args.Tensor(0), args.Ints(1, "dims"))}; };
}

// f(x, offset).
OpFunction WithOffset(DTensor (*op)(const DTensor&, int64_t)) {
  return [op](const Args& args) {
    return Results{op(args.Tensor(0), args.Int(1, "diagonal", args.Int(-1, "offset", 0)))};
  };
}

// f(x, offset, dim0, dim1).
OpFunction OfDiagonal(DTensor (*op)(const DTensor&, int64_t, int, int), int dim0, int dim1) {
  return [=](const Args& args) {
    return Results{op(args.Tensor(0), args.Int(1, "offset", 0), args.Dim(2, "dim1", dim0),
                      args.Dim(3, "dim2", dim1))};
  };
}

// f([x, ..], dim).
OpFunction OfListAlongDim(DTensor (*op)(const std::vector<DTensor>&, int)) {
  return [op](const Args& args) { return Results{op(args.Tensors(0), args.Dim(1, "dim", 0))}; };
}

// f(x, number), or f(x, list).
OpFunction Splitting(std::vector<DTensor> (*by_number)(const DTensor&, int64_t),
                     std::vector<DTensor> (*by_list)(const DTensor&, const std::vector<int64_t>&)) {
  return [=](const Args& args) {
    return args.IsList(1) ? by_list(args.Tensor(0), args.Ints(1, ""))
                          : by_number(args.Tensor(0), args.Int(1, ""));
  };
}

// The same along a dim.
OpFunction SplittingDim(std::vector<DTensor> (*by_number)(const DTensor&, int64_t, int),
                        std::vector<DTensor> (*by_list)(const DTensor&, const std::vector<int64_t>&,
                                                        int)) {
  return [=](const Args& args) -> Results {
    const int dim = args.Dim(2, "dim", 0);
    if (args.IsList(1)) return by_list(args.Tensor(0), args.Ints(1, ""), dim);
    if (!args.IsTensor(1)) return by_number(args.Tensor(0), args.Int(1, ""), dim);
    // A tensor of one number, or a list of them.
    const std::vector<int64_t> values = args.Ints(1, "");
    return args.Tensor(1).num_dims() == 0 ? by_number(args.Tensor(0), values[0], dim)
                                          : by_list(args.Tensor(0), values, dim);
  };
}

PadMode ModeOf(const std::string& name) {
  if (name == "constant") return PadMode::kConstant;
  if (name == "reflect") return PadMode::kReflect;
  if (name == "replicate") return PadMode::kReplicate;
  if (name == "circular") return PadMode::kCircular;
  ThrowInvalid("unknown mode ", name);
}

Results Padded(const Args& args) {
  return {Pad(args.Tensor(0), args.Ints(1, "pad"), ModeOf(args.Text(2, "mode", "constant")),
              args.Number(3, "value", 0))};
}

// The vectors are one list, or arguments one by one.
Results Grids(const Args& args) {
  std::vector<DTensor> vectors;
  for (int i = 0; i < args.size(); ++i) {
    for (const DTensor& vector : args.Tensors(i)) vectors.push_back(vector);
  }
  return Meshgrid(vectors, args.Text(-1, "indexing") == "xy" ? GridIndexing::kCartesian
                                                             : GridIndexing::kMatrix);
}

std::vector<DTensor> Arguments(const Args& args) {
  std::vector<DTensor> tensors;
  for (int i = 0; i < args.size(); ++i) tensors.push_back(args.Tensor(i));
  return tensors;
}

Results Repeated(const Args& args) {
  const std::optional<int> dim =
      args.Has(2, "dim") ? std::optional<int>(args.Dim(2, "dim")) : std::nullopt;
  return {RepeatInterleave(args.Tensor(0), args.Ints(1, "repeats"), dim)};
}

Results Rolled(const Args& args) {
  if (!args.Has(2, "dims")) return {Roll(args.Tensor(0), args.Int(1, "shifts"))};
  return {Roll(args.Tensor(0), args.Ints(1, "shifts"), args.DimList(2, "dims"))};
}

Results Rotated(const Args& args) {
  const std::vector<int> dims = args.Has(2, "dims") ? args.DimList(2, "dims") : std::vector{0, 1};
  return {Rot90(args.Tensor(0), args.Int(1, "k", 1), dims[0], dims[1])};
}

Results Squeezed(const Args& args) {
  if (!args.Has(1, "dim")) return {Squeeze(args.Tensor(0))};
  return {Squeeze(args.Tensor(0), args.DimList(1, "dim"))};
}

std::optional<int64_t> Bound(const Args& args, int position, const char* name) {
  return args.Has(position, name) ? std::optional<int64_t>(args.Int(position, name)) : std::nullopt;
}

Results SliceScattered(const Args& args) {
  return {SliceScatter(args.Tensor(0), args.Tensor(1), args.Dim(2, "dim", 0),
                       Bound(args, 3, "start"), Bound(args, 4, "end"), args.Int(5, "step", 1))};
}

}  // namespace

void AddShapeOps(OpTable& table) {
  table.Add("atleast_1d", Unary(AtLeast1d));
  table.Add("atleast_2d", Unary(AtLeast2d));
  table.Add("block_diag", [](const Args& args) { return Results{BlockDiag(Arguments(args))}; });
  table.Add("broadcast_to", ToShape(BroadcastTo));
  table.Add("cartesian_prod",
            [](const Args& args) { return Results{CartesianProd(Arguments(args))}; });
  table.Add("cat", OfListAlongDim(Concat));
  table.Add("chunk", SplittingDim(Chunk, nullptr));
  table.Add("column_stack", OfList(ColumnStack));
  table.Add("diag", WithOffset(Diag));
  table.Add("diag_embed", OfDiagonal(DiagEmbed, -2, -1));
  table.Add("diagonal", OfDiagonal(Diagonal, 0, 1));
  table.Add("diagonal_scatter", [](const Args& args) {
    return Results{DiagonalScatter(args.Tensor(0), args.Tensor(1), args.Int(2, "offset", 0))};
  });
  table.Add("dstack", OfList(DStack));
  table.Add("expand", ToShape(BroadcastTo));
  table.Add("flatten", [](const Args& args) {
    return Results{
        Flatten(args.Tensor(0), args.Dim(1, "start_dim", 0), args.Dim(2, "end_dim", -1))};
  });
  table.Add("flip", [](const Args& args) {
    return Results{Flip(args.Tensor(0), args.DimList(1, "dims"))};
  });
  table.Add("fliplr", Unary(FlipLr));
  table.Add("flipud", Unary(FlipUd));
  table.Add("hsplit", Splitting(HSplit, HSplitAt));
  table.Add("hstack", OfList(HStack));
  table.Add("meshgrid", Grids);
  table.Add("movedim", [](const Args& args) {
    return Results{
        MoveDim(args.Tensor(0), args.DimList(1, "source"), args.DimList(2, "destination"))};
  });
  table.Add("narrow", [](const Args& args) {
    return Results{
        Narrow(args.Tensor(0), args.Dim(1, "dim"), args.Int(2, "start"), args.Int(3, "length"))};
  });
  table.Add("nn.functional.pad", Padded);
  table.Add("nn.functional.pixel_shuffle", [](const Args& args) {
    return Results{PixelShuffle(args.Tensor(0), args.Int(1, "upscale_factor"))};
  });
  table.Add("nn.functional.pixel_unshuffle", [](const Args& args) {
    return Results{PixelUnshuffle(args.Tensor(0), args.Int(1, "downscale_factor"))};
  });
  table.Add("permute", [](const Args& args) {
    return Results{Permute(args.Tensor(0), args.DimList(1, "dims"))};
  });
  table.Add("ravel", Unary(Ravel));
  table.Add("repeat", ByCounts(Repeat));
  table.Add("repeat_interleave", Repeated);
  table.Add("reshape", ToShape(Reshape));
  table.Add("roll", Rolled);
  table.Add("rot90", Rotated);
  table.Add("select", [](const Args& args) {
    return Results{Select(args.Tensor(0), args.Dim(1, "dim"), args.Int(2, "index"))};
  });
  table.Add("select_scatter", [](const Args& args) {
    return Results{
        SelectScatter(args.Tensor(0), args.Tensor(1), args.Dim(2, "dim"), args.Int(3, "index"))};
  });
  table.Add("slice_scatter", SliceScattered);
  table.Add("split", SplittingDim(SplitEvery, Split));
  table.Add("split_with_sizes", SplittingDim(nullptr, Split));
  table.Add("squeeze", Squeezed);
  table.Add("stack", OfListAlongDim(Stack));
  table.Add("t", Unary(T));
  table.Add("tensor_split", SplittingDim(TensorSplit, TensorSplitAt));
  table.Add("tile", ByCounts(Tile));
  table.Add("transpose", [](const Args& args) {
    return Results{Transpose(args.Tensor(0), args.Dim(1, "dim0"), args.Dim(2, "dim1"))};
  });
  table.Add("tril", WithOffset(Tril));
  table.Add("triu", WithOffset(Triu));
  table.Add("unbind",
            [](const Args& args) { return Unbind(args.Tensor(0), args.Dim(1, "dim", 0)); });
  table.Add("unflatten", [](const Args& args) {
    return Results{Unflatten(args.Tensor(0), args.Dim(1, "dim"), args.Shape(2, "sizes"))};
  });
  table.Add("unfold", [](const Args& args) {
    return Results{
        Unfold(args.Tensor(0), args.Dim(1, "dimension"), args.Int(2, "size"), args.Int(3, "step"))};
  });
  table.Add("unsqueeze", AlongDim(Unsqueeze));
  table.Add("view", ToShape(Reshape));
  table.Add("vsplit", Splitting(VSplit, VSplitAt));
  table.Add("vstack", OfList(VStack));
}

}  // namespace shardmesh::testing
