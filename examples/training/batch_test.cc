// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/batch.h"

#include <gtest/gtest.h>

#include "shardmesh/comm/run_ranks.h"

namespace shardmesh::examples {
namespace {

ByteText Counting() {
  std::string bytes;
  for (int i = 0; i < 1009; ++i) bytes.push_back(static_cast<char>(i * i % 251));
  return ByteText(bytes);
}

// Five rows: uneven on two ranks, and on a mesh of six some ranks have none.
TEST(MakeBatch, IsTheSameOnEveryMesh) {
  const ByteText text = Counting();
  const BatchShape shape = {.rows = 5, .sequence = 7};
  std::vector<int64_t> inputs, targets;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t start = text.WindowStart(/*seed=*/3, /*step=*/11, row, shape.sequence);
    for (int64_t i = 0; i < shape.sequence; ++i) {
      inputs.push_back(text[start + i]);
      targets.push_back(text[start + i + 1]);
    }
  }
  for (const MeshShape& mesh_shape : std::vector<MeshShape>{
           {{"dp", 1}},
           {{"tp", 2}},
           {{"dp", 2}, {"tp", 2}},
           {{"tp", 2}, {"dp", 3}},
           {{"dp_replicate", 2}, {"dp", 3}},
       }) {
    const auto status = RunRanks(static_cast<int>(mesh_shape.NumRanks()), [&](Communicator& world) {
      const DeviceMesh mesh = DeviceMesh::Create(world, mesh_shape);
      const Batch batch = MakeBatch(mesh, text, shape, /*seed=*/3, /*step=*/11);
      EXPECT_EQ(FullTensor(batch.inputs).ToVector<int64_t>(), inputs) << mesh_shape;
      EXPECT_EQ(FullTensor(batch.targets).ToVector<int64_t>(), targets) << mesh_shape;
      if (mesh_shape.Has("dp")) {
        EXPECT_LE(batch.inputs.local().dim(0), (5 + mesh.Size("dp") - 1) / mesh.Size("dp"));
      }
    });
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(BatchPlacements, ShardRowsOverAllAxesButTp) {
  const std::vector<Placement> expected = {Shard(0), Replicate(), Shard(0)};
  EXPECT_EQ(BatchPlacements({{"dp_replicate", 2}, {"tp", 2}, {"dp", 2}}), expected);
}

}  // namespace
}  // namespace shardmesh::examples
