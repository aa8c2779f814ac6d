// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/constants.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/ops/indexing.h"

namespace shardmesh {
namespace {

constexpr char kIndexPut[] = "index_put", kMaskedScatter[] = "masked_scatter";

void CheckIndices(const DTensor& x, const std::vector<DTensor>& indices) {
  internal::CheckUsable(kIndexPut, x);
  if (indices.empty() || static_cast<int>(indices.size()) > x.num_dims()) {
    ThrowInvalid(kIndexPut, ": expected 1 to ", x.num_dims(), " indices for ", x.ToString(),
                 ", got ", indices.size());
  }
  for (const DTensor& index : indices) {
    internal::CheckUsable(kIndexPut, index);
    if (index.dtype() != DType::kI64 && index.dtype() != DType::kI32)
      ThrowInvalid(kIndexPut, ": expected indices of i64 or i32, got ", index.ToString());
  }
}

// The row-major number of the place that the indices name, -1 if one of them is outside its dim.
DTensor PlaceOf(const DTensor& x, const std::vector<DTensor>& indices) {
  DTensor place, is_inside;
  for (size_t i = 0; i < indices.size(); ++i) {
    const auto extent = static_cast<double>(x.dim(static_cast<int>(i)));
    const DTensor given =
        indices[i].dtype() == DType::kI32 ? Cast(indices[i], DType::kI64) : indices[i];
    const DTensor index = Where(Compare(CompareOp::kLess, given, 0.0), Add(given, extent), given);
    const DTensor fits = LogicalAnd(Compare(CompareOp::kGreaterEqual, index, 0.0),
                                    Compare(CompareOp::kLess, index, extent));
    place = i == 0 ? index : Add(Mul(place, extent), index);
    is_inside = i == 0 ? fits : LogicalAnd(is_inside, fits);
  }
  return Where(is_inside, place, internal::ScalarLike(place, -1));
}

}  // namespace

DTensor IndexPut(const DTensor& x, const std::vector<DTensor>& indices, const DTensor& values,
                 bool accumulate) {
  CheckIndices(x, indices);
  internal::CheckUsable(kIndexPut, values);
  internal::CheckSameDType(kIndexPut, x, values);
  const DTensor place = PlaceOf(x, indices);
  Dims flat = {1}, written = place.shape(), rows = {place.shape().NumElements()};
  for (int d = 0; d < x.num_dims(); ++d) {
    if (d < static_cast<int>(indices.size())) {
      flat[0] *= x.dim(d);
      continue;
    }
    flat.push_back(x.dim(d));
    rows.push_back(x.dim(d));
    written.push_back(x.dim(d));
  }
  if (!(BroadcastShapes(values.shape(), written, kIndexPut) == written)) {
    ThrowInvalid(kIndexPut, ": values ", values.ToString(), " do not broadcast to the shape ",
                 written.ToString(), " of what the indices of ", x.ToString(), " name");
  }
  const DTensor source = Reshape(Expand(values, written), rows);
  const DTensor start = Reshape(x, flat), index = Reshape(place, {rows[0]});
  return Reshape(
      accumulate ? IndexAdd(start, 0, index, source) : IndexCopy(start, 0, index, source),
      x.shape());
}

DTensor MaskedScatter(const DTensor& x, const DTensor& mask, const DTensor& source) {
  internal::CheckUsable(kMaskedScatter, x);
  internal::CheckUsable(kMaskedScatter, mask);
  internal::CheckUsable(kMaskedScatter, source);
  if (mask.dtype() != DType::kBool)
    ThrowInvalid(kMaskedScatter, ": expected a mask of bool, got ", mask.ToString());
  internal::CheckSameDType(kMaskedScatter, x, source);
  const Dims shape = BroadcastShapes(x.shape(), mask.shape(), kMaskedScatter);
  const DTensor wide_mask = Expand(mask, shape);
  // Element 0 is for places that are not masked.
  const DTensor zero = internal::FilledLike(source, {1}, 0);
  const DTensor elements = Concat({zero, Reshape(source, {-1})}, 0);
  const DTensor count = CumSum(Cast(Reshape(wide_mask, {-1}), DType::kI64), 0);
  const DTensor place = Where(Reshape(wide_mask, {-1}), count, internal::ScalarLike(count, 0));
  const DTensor taken = Reshape(Gather(elements, 0, place), shape);
  return Where(wide_mask, taken, Expand(x, shape));
}

}  // namespace shardmesh
