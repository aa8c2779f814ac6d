// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/batch.h"

namespace shardmesh::examples {

std::vector<Placement> BatchPlacements(const MeshShape& mesh) {
  std::vector<Placement> placements;
  for (const MeshAxis& axis : mesh.axes()) {
    placements.push_back(axis.name == "tp" ? Replicate() : Shard(0));
  }
  return placements;
}

Batch MakeBatch(const DeviceMesh& mesh, const ByteText& text, BatchShape shape, uint64_t seed,
                int64_t step) {
  const auto bytes_from = [&](int64_t shift) {
    const auto fill = [&, shift](const Box& box, Tensor& local) {
      int64_t* out = local.mutable_data<int64_t>();
      for (int64_t row = box.begin[0]; row < box.end[0]; ++row) {
        const int64_t start = text.WindowStart(seed, step, row, shape.sequence) + shift;
        for (int64_t i = box.begin[1]; i < box.end[1]; ++i) *out++ = text[start + i];
      }
    };
    return FromBoxes(mesh, {shape.rows, shape.sequence}, DType::kI64, BatchPlacements(mesh.shape()),
                     fill);
  };
  return {.inputs = bytes_from(0), .targets = bytes_from(1)};
}

}  // namespace shardmesh::examples
