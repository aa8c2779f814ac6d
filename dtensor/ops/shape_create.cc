// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/dtensor_impl.h"
#include "shardmesh/dtensor/internal/from_indices.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh {
namespace {

// Columns [first(row), last(row)) of each row, in row-major order: what Tril and Triu keep.
template <typename First, typename Last>
DTensor TriangleIndices(const DeviceMesh& mesh, int64_t rows, int64_t columns, First first,
                        Last last, const std::vector<Placement>& placements) {
  std::vector<int64_t> begin = {0};  // Where each row begins.
  const auto clamp = [&](int64_t column) { return std::clamp<int64_t>(column, 0, columns); };
  for (int64_t row = 0; row < rows; ++row)
    begin.push_back(begin.back() + std::max<int64_t>(clamp(last(row)) - clamp(first(row)), 0));
  return FromBoxes(mesh, {2, begin.back()}, DType::kI64, placements,
                   [&](const Box& box, Tensor& local) {
                     internal::FillFromIndices(
                         box,
                         [&](const Dims& index) {
                           const auto next = std::upper_bound(begin.begin(), begin.end(), index[1]);
                           const int64_t row = next - begin.begin() - 1;
                           if (index[0] == 0) return row;
                           return clamp(first(row)) + index[1] - begin[row];
                         },
                         local);
                   });
}

void CheckExtents(const char* op, int64_t rows, int64_t columns) {
  if (rows < 0 || columns < 0)
    ThrowInvalid(op, ": ", rows, " rows and ", columns, " columns, expected at least 0");
}

}  // namespace

DTensor Ones(const DeviceMesh& mesh, const Dims& shape, DType dtype,
             const std::vector<Placement>& placements) {
  return Full(mesh, shape, dtype, 1, placements);
}

DTensor FullLike(const DTensor& x, double value) {
  internal::CheckUsable("full_like", x);
  const Layout layout = x.layout().PartialAsReplicate();
  return DTensor(
      x.mesh(), layout,
      ops::Full(x.mesh().context(), layout.LocalShape(x.mesh().coord()), x.dtype(), value));
}

DTensor ZerosLike(const DTensor& x) { return FullLike(x, 0); }

DTensor OnesLike(const DTensor& x) { return FullLike(x, 1); }

DTensor Arange(const DeviceMesh& mesh, double start, double end, double step, DType dtype,
               const std::vector<Placement>& placements) {
  const double count = std::ceil((end - start) / step);
  if (step == 0 || !std::isfinite(count) || (end - start) / step < 0) {
    ThrowInvalid("arange: steps of ", step, " do not lead from ", start, " to ", end);
  }
  return FromBoxes(
      mesh, {static_cast<int64_t>(count)}, dtype, placements, [&](const Box& box, Tensor& local) {
        internal::FillFromIndices(
            box, [&](const Dims& index) { return start + static_cast<double>(index[0]) * step; },
            local);
      });
}

DTensor Linspace(const DeviceMesh& mesh, double start, double end, int64_t count, DType dtype,
                 const std::vector<Placement>& placements) {
  if (count < 0) ThrowInvalid("linspace: ", count, " numbers, expected at least 0");
  const double step = count > 1 ? (end - start) / static_cast<double>(count - 1) : 0;
  // From the nearer end, so that both are exact.
  const auto value = [&](const Dims& index) {
    const int64_t i = index[0];
    return 2 * i < count ? start + static_cast<double>(i) * step
                         : end - static_cast<double>(count - 1 - i) * step;
  };
  return FromBoxes(mesh, {count}, dtype, placements, [&](const Box& box, Tensor& local) {
    internal::FillFromIndices(box, value, local);
  });
}

DTensor Eye(const DeviceMesh& mesh, int64_t rows, int64_t columns, DType dtype,
            const std::vector<Placement>& placements) {
  CheckExtents("eye", rows, columns);
  return FromBoxes(mesh, {rows, columns}, dtype, placements, [](const Box& box, Tensor& local) {
    internal::FillFromIndices(
        box, [](const Dims& index) { return index[0] == index[1] ? 1.0 : 0.0; }, local);
  });
}

DTensor TrilIndices(const DeviceMesh& mesh, int64_t rows, int64_t columns, int64_t offset,
                    const std::vector<Placement>& placements) {
  CheckExtents("tril_indices", rows, columns);
  return TriangleIndices(
      mesh, rows, columns, [](int64_t) { return int64_t{0}; },
      [&](int64_t row) { return row + offset + 1; }, placements);
}

DTensor TriuIndices(const DeviceMesh& mesh, int64_t rows, int64_t columns, int64_t offset,
                    const std::vector<Placement>& placements) {
  CheckExtents("triu_indices", rows, columns);
  return TriangleIndices(
      mesh, rows, columns, [&](int64_t row) { return row + offset; },
      [&](int64_t) { return columns; }, placements);
}

}  // namespace shardmesh
