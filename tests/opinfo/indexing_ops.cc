// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <utility>

#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

Results Pair(std::pair<DTensor, DTensor> pair) { return {pair.first, pair.second}; }

// Samples pass the table first.
Results Lookup(const Args& args) {
  if (args.Has(2, "padding_idx")) return {};
  return {Embedding(args.Tensor(1), args.Tensor(0))};
}

// What of a source that is larger than the index is written.
DTensor Corner(DTensor source, const DTensor& index) {
  for (int d = 0; d < index.num_dims(); ++d) {
    if (source.dim(d) != index.dim(d)) source = Slice(source, d, 0, index.dim(d));
  }
  return source;
}

OpFunction Scattering(DTensor (*op)(const DTensor&, int, const DTensor&, const DTensor&)) {
  return [op](const Args& a) {
    if (!a.IsTensor(3, "src")) return Results{};
    return Results{op(a.Tensor(0), a.Dim(1, "dim"), a.Tensor(2), Corner(a.Tensor(3), a.Tensor(2)))};
  };
}

Results ScatterReduced(const Args& a) {
  static const auto* reductions =
      new std::map<std::string, ScatterReduction>{{"sum", ScatterReduction::kSum},
                                                  {"prod", ScatterReduction::kProduct},
                                                  {"mean", ScatterReduction::kMean},
                                                  {"amax", ScatterReduction::kMax},
                                                  {"amin", ScatterReduction::kMin}};
  return {ScatterReduce(a.Tensor(0), a.Dim(1, "dim"), a.Tensor(2), Corner(a.Tensor(3), a.Tensor(2)),
                        reductions->at(a.Text(4, "reduce")), a.Flag(5, "include_self", true))};
}

Results Filled(const Args& a) {
  if (a.IsTensor(3, "value"))
    return {IndexFill(a.Tensor(0), a.Dim(1, "dim"), a.Tensor(2), a.Tensor(3))};
  return {IndexFill(a.Tensor(0), a.Dim(1, "dim"), a.Tensor(2), a.Number(3, "value"))};
}

Results MaskFilled(const Args& a) {
  if (a.IsTensor(2, "value")) return {Where(a.Tensor(1), a.Tensor(2), a.Tensor(0))};
  return {MaskedFill(a.Tensor(0), a.Tensor(1), a.Number(2, "value"))};
}

OpFunction Extremum(std::pair<DTensor, DTensor> (*along)(const DTensor&, int, bool),
                    DTensor (*all)(const DTensor&, const std::vector<int>&, bool),
                    DTensor (*of_two)(const DTensor&, const DTensor&)) {
  return [=](const Args& a) {
    if (a.IsTensor(1)) return Results{of_two(a.Tensor(0), a.Tensor(1))};
    if (!a.Has(1, "dim")) return Results{all(a.Tensor(0), {}, false)};
    return Pair(along(a.Tensor(0), a.Dim(1, "dim"), a.Flag(2, "keepdim", false)));
  };
}

// Samples pass the ids first. Where the last offset is the end, no bag begins there.
Results Bags(const Args& a) {
  const DTensor ids = a.Tensor(1), table = a.Tensor(0),
                weights = a.Tensor(-1, "per_sample_weights");
  const BagReduction reduction =
      a.Text(-1, "mode") == "sum" ? BagReduction::kSum : BagReduction::kMean;
  std::optional<int64_t> padding_id;
  if (a.Has(-1, "padding_idx")) padding_id = a.Int(-1, "padding_idx");
  DTensor offsets = a.Tensor(-1, "offsets");
  if (!offsets) return {EmbeddingBag(table, ids, reduction, weights, padding_id)};
  if (a.Flag(-1, "include_last_offset", false)) offsets = Slice(offsets, 0, 0, offsets.dim(0) - 1);
  return {EmbeddingBagAt(table, ids, offsets, reduction, weights, padding_id)};
}

OpFunction ArgExtremum(DTensor (*op)(const DTensor&, std::optional<int>, bool)) {
  return [op](const Args& a) {
    return Results{op(a.Tensor(0), a.Has(1, "dim") ? std::optional(a.Dim(1, "dim")) : std::nullopt,
                      a.Flag(2, "keepdim", false))};
  };
}

}  // namespace

void AddIndexingOps(OpTable& table) {
  table.Add("argmax", ArgExtremum(ArgMax));
  table.Add("argmin", ArgExtremum(ArgMin));
  table.Add("argsort", [](const Args& a) {
    return Results{ArgSort(a.Tensor(0), a.Dim(1, "dim", -1), a.Flag(2, "descending", false))};
  });
  table.Add("bucketize", [](const Args& a) {
    return Results{Bucketize(a.Tensor(0), a.Tensor(1), a.Flag(-1, "right", false))};
  });
  table.Add("cummax", [](const Args& a) { return Pair(CumMax(a.Tensor(0), a.Dim(1, "dim"))); });
  table.Add("cummin", [](const Args& a) { return Pair(CumMin(a.Tensor(0), a.Dim(1, "dim"))); });
  table.Add("cumprod", AlongDim(CumProd));
  table.Add("cumsum", AlongDim(CumSum));
  table.Add("gather", [](const Args& a) {
    return Results{Gather(a.Tensor(0), a.Dim(1, "dim"), a.Tensor(2))};
  });
  table.Add("index_add", [](const Args& a) {
    return Results{
        IndexAdd(a.Tensor(0), a.Dim(1, "dim"), a.Tensor(2), a.Tensor(3), a.Number(4, "alpha", 1))};
  });
  table.Add("index_copy", [](const Args& a) {
    return Results{IndexCopy(a.Tensor(0), a.Dim(1, "dim"), a.Tensor(2), a.Tensor(3))};
  });
  table.Add("index_fill", Filled);
  table.Add("index_select", [](const Args& a) {
    return Results{IndexSelect(a.Tensor(0), a.Dim(1, "dim"), a.Tensor(2))};
  });
  table.Add("index_put", [](const Args& a) {
    const std::vector<DTensor> indices = a.Tensors(1, "indices");
    if (indices[0].dtype() == DType::kBool) return Results{};
    return Results{IndexPut(a.Tensor(0), indices, a.Tensor(2), a.Flag(3, "accumulate", false))};
  });
  table.Add("kthvalue", [](const Args& a) {
    return Pair(
        KthValue(a.Tensor(0), a.Int(1, "k"), a.Dim(2, "dim", -1), a.Flag(3, "keepdim", false)));
  });
  table.Add("logcumsumexp", AlongDim(LogCumSumExp));
  table.Add("masked_fill", MaskFilled);
  table.Add("masked_scatter", [](const Args& a) {
    return Results{MaskedScatter(a.Tensor(0), a.Tensor(1), a.Tensor(2))};
  });
  table.Add("max", Extremum(MaxAlong, Max, Maximum));
  table.Add("median", [](const Args& a) {
    if (!a.Has(1, "dim")) return Results{Median(a.Tensor(0))};
    return Pair(MedianAlong(a.Tensor(0), a.Dim(1, "dim"), a.Flag(2, "keepdim", false)));
  });
  table.Add("min", Extremum(MinAlong, Min, Minimum));
  table.Add("msort", [](const Args& a) { return Results{Sort(a.Tensor(0), 0).first}; });
  table.Add("nn.functional.embedding", Lookup);
  table.Add("nn.functional.embedding_bag", Bags);
  table.Add("nn.functional.one_hot", [](const Args& a) {
    const int64_t classes = a.Int(1, "num_classes", -1);
    return classes < 0 ? Results{} : Results{OneHot(a.Tensor(0), classes)};
  });
  table.Add("scatter", Scattering(Scatter));
  table.Add("scatter_add", Scattering(ScatterAdd));
  table.Add("scatter_reduce", ScatterReduced);
  table.Add("searchsorted", [](const Args& a) {
    const DTensor values = a.IsTensor(1) ? a.Tensor(1)
                                         : Full(a.mesh(), {}, a.real(), a.Number(1, "values"),
                                                std::vector<Placement>(a.placements().size()));
    return Results{SearchSorted(a.Tensor(0), values, a.Flag(-1, "right", false))};
  });
  table.Add("sort", [](const Args& a) {
    return Pair(Sort(a.Tensor(0), a.Dim(1, "dim", -1), a.Flag(2, "descending", false)));
  });
  table.Add("take", [](const Args& a) { return Results{Take(a.Tensor(0), a.Tensor(1))}; });
  table.Add("take_along_dim", [](const Args& a) {
    if (!a.Has(2, "dim")) return Results{Take(a.Tensor(0), Reshape(a.Tensor(1), {-1}))};
    return Results{TakeAlongDim(a.Tensor(0), a.Tensor(1), a.Dim(2, "dim"))};
  });
  table.Add("topk", [](const Args& a) {
    return Pair(TopK(a.Tensor(0), a.Int(1, "k"), a.Dim(2, "dim", -1), a.Flag(3, "largest", true)));
  });
}

}  // namespace shardmesh::testing
