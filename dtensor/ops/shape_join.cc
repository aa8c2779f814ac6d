// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/dtensor_impl.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh {
namespace {

void CheckSome(const char* op, const std::vector<DTensor>& parts) {
  if (parts.empty()) ThrowInvalid(op, ": no tensors");
  for (const DTensor& part : parts) internal::CheckUsable(op, part);
}

std::vector<DTensor> Each(const std::vector<DTensor>& parts, DTensor (*op)(const DTensor&)) {
  std::vector<DTensor> results;
  for (const DTensor& part : parts) results.push_back(op(part));
  return results;
}

DTensor AsColumn(const DTensor& x) { return x.num_dims() > 1 ? x : Unsqueeze(AtLeast1d(x), 1); }

}  // namespace

DTensor Stack(const std::vector<DTensor>& parts, int given) {
  CheckSome("stack", parts);
  const int dim = internal::DimOf("stack", parts[0], given, /*scalar_has_one=*/false, /*extra=*/1);
  std::vector<DTensor> rows;
  for (const DTensor& part : parts) {
    if (!(part.shape() == parts[0].shape()))
      ThrowInvalid("stack: ", parts[0].ToString(), " and ", part.ToString(), " differ in shape");
    rows.push_back(Unsqueeze(part, dim));
  }
  return Concat(rows, dim);
}

DTensor HStack(const std::vector<DTensor>& parts) {
  CheckSome("hstack", parts);
  const std::vector<DTensor> rows = Each(parts, AtLeast1d);
  return Concat(rows, rows[0].num_dims() == 1 ? 0 : 1);
}

DTensor VStack(const std::vector<DTensor>& parts) {
  CheckSome("vstack", parts);
  return Concat(Each(parts, AtLeast2d), 0);
}

DTensor DStack(const std::vector<DTensor>& parts) {
  CheckSome("dstack", parts);
  return Concat(Each(parts, AtLeast3d), 2);
}

DTensor ColumnStack(const std::vector<DTensor>& parts) {
  CheckSome("column_stack", parts);
  return Concat(Each(parts, AsColumn), 1);
}

DTensor BlockDiag(const std::vector<DTensor>& parts) {
  CheckSome("block_diag", parts);
  const std::vector<DTensor> blocks = Each(parts, AtLeast2d);
  int64_t width = 0;
  for (const DTensor& block : blocks) {
    if (block.num_dims() != 2)
      ThrowInvalid("block_diag: expected at most 2 dims, got ", block.ToString());
    width += block.dim(1);
  }
  std::vector<DTensor> rows;
  int64_t before = 0;
  for (const DTensor& block : blocks) {
    rows.push_back(Pad(block, {before, width - before - block.dim(1)}));
    before += block.dim(1);
  }
  return Concat(rows, 0);
}

std::vector<DTensor> Meshgrid(const std::vector<DTensor>& vectors, GridIndexing indexing) {
  CheckSome("meshgrid", vectors);
  const int count = static_cast<int>(vectors.size());
  std::vector<int> dims(count);  // The dim along which each varies.
  for (int i = 0; i < count; ++i) dims[i] = i;
  if (indexing == GridIndexing::kCartesian && count > 1) std::swap(dims[0], dims[1]);
  if (count > Dims::kMaxRank)
    ThrowInvalid("meshgrid: ", count, " tensors, expected at most ", Dims::kMaxRank);
  Dims shape = Dims::Filled(count, 1);
  for (int i = 0; i < count; ++i) {
    if (vectors[i].num_dims() > 1)
      ThrowInvalid("meshgrid: expected at most 1 dim, got ", vectors[i].ToString());
    shape[dims[i]] = vectors[i].NumElements();
  }
  std::vector<DTensor> grids;
  for (int i = 0; i < count; ++i) {
    Dims own = Dims::Filled(count, 1);
    own[dims[i]] = vectors[i].NumElements();
    grids.push_back(Expand(Reshape(vectors[i], own), shape));
  }
  return grids;
}

DTensor CartesianProd(const std::vector<DTensor>& vectors) {
  CheckSome("cartesian_prod", vectors);
  for (const DTensor& vector : vectors) {
    if (vector.num_dims() != 1)
      ThrowInvalid("cartesian_prod: expected 1 dim, got ", vector.ToString());
  }
  if (vectors.size() == 1) return vectors[0];
  return Stack(Each(Meshgrid(vectors), Ravel), 1);
}

}  // namespace shardmesh
