// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/export.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/checkpoint_reader.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/testing/failing_files.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void OnRanks(const MeshShape& mesh, const std::function<void(const DeviceMesh&)>& fn) {
  EXPECT_EQ(RunRanks(static_cast<int>(mesh.NumRanks()),
                     [&](Communicator& world) { fn(DeviceMesh::Create(world, mesh)); }),
            absl::OkStatus())
      << mesh.ToString();
}

DTensor RandomOn(const DeviceMesh& mesh, const Layout& layout, DType dtype, uint64_t stream) {
  const Box box = layout.LocalBox(mesh.coord());
  Tensor local = Tensor::Empty(mesh.context(), box.Extents(), dtype);
  ops::RandomNormal(mesh.context(), {.seed = 3, .stream = stream},
                    {layout.global_shape(), box.begin}, 0.0, 100.0, local);
  return DTensor(mesh, layout, std::move(local));
}

// Rows, columns, both, replicas; prime extents, an empty tensor, a scalar.
StateDict StateOn(const DeviceMesh& mesh) {
  StateDict state;
  const int axes = mesh.shape().num_axes();
  uint64_t stream = 0;
  const auto add = [&](const std::string& name, const Dims& shape, DType dtype, bool reversed) {
    Layout layout = Layout::Replicated(mesh.shape(), shape);
    for (int axis = 0; axis < axes && shape.size() > 0; ++axis)
      layout = layout.With(reversed ? axes - 1 - axis : axis, Shard(axis % shape.size()));
    state.Add(name, RandomOn(mesh, layout, dtype, stream++));
  };
  add("a", {13, 7}, DType::kF32, false);
  add("b", {7, 13}, DType::kF32, true);
  add("c", {5, 3, 11}, DType::kF64, true);
  add("d", {0, 3}, DType::kF32, false);
  add("e", {}, DType::kF32, false);
  add("f", {11}, DType::kBF16, false);
  add("large", {301, 211}, DType::kF32, true);
  state.Add("copies",
            RandomOn(mesh, Layout::Replicated(mesh.shape(), {17, 3}), DType::kF32, stream++));
  state.Add("step", int64_t{5});
  return state;
}

// By name.
std::vector<std::pair<std::string, std::string>> FilesIn(const std::string& directory) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files.emplace_back(entry.path().filename().string(),
                       std::string{std::istreambuf_iterator<char>(file), {}});
  }
  std::sort(files.begin(), files.end());
  return files;
}

const std::vector<MeshShape> kMeshes = {{{"dp", 2}},
                                        {{"dp", 3}},
                                        {{"dp", 2}, {"tp", 2}},
                                        {{"dp", 2}, {"tp", 3}},
                                        {{"dp_replicate", 2}, {"dp", 2}}};

TEST(Export, HasTheBytesOfOneRankOnEveryMesh) {
  const std::string folder = TestFolder();
  std::vector<ExportOptions> variants(3);
  variants[1].max_file_bytes = 20000;
  variants[1].texts = {{"config.json", "{}\n"}};
  variants[2].dtype = DType::kBF16;
  for (size_t v = 0; v < variants.size(); ++v) {
    const std::string expected = absl::StrCat(folder, "/one-", v);
    OnRanks({{"dp", 1}}, [&](const DeviceMesh& mesh) {
      EXPECT_EQ(ExportHuggingFace(expected, StateOn(mesh), variants[v]), absl::OkStatus());
    });
    for (size_t m = 0; m < kMeshes.size(); ++m) {
      const std::string path = absl::StrCat(folder, "/mesh-", v, "-", m);
      OnRanks(kMeshes[m], [&](const DeviceMesh& mesh) {
        EXPECT_EQ(ExportHuggingFace(path, StateOn(mesh), variants[v]), absl::OkStatus());
      });
      EXPECT_EQ(FilesIn(path), FilesIn(expected)) << kMeshes[m].ToString();
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, bytes] : FilesIn(folder + "/one-1")) names.push_back(name);
  EXPECT_THAT(names,
              ElementsAre("config.json", "model-00001-of-00003.safetensors",
                          "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
                          "model.safetensors.index.json"));
}

TEST(Export, IsReadAsAModelAndAsAState) {
  const std::string path = TestFolder() + "/exported";
  OnRanks({{"dp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) {
    ExportOptions options;
    options.max_file_bytes = 1000;
    EXPECT_EQ(ExportHuggingFace(path, StateOn(mesh), options), absl::OkStatus());
  });
  const auto reader = CheckpointReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_GT(reader->files().size(), 2u);
  OnRanks({{"dp", 3}}, [&](const DeviceMesh& mesh) {
    StateDict state = StateOn(mesh);
    StateDict expected = StateOn(mesh);
    for (const StateEntry& entry : state.entries()) {
      if (const auto* x = std::get_if<DTensor>(&entry.value)) {
        Tensor local = x->local();
        ops::Fill(mesh.context(), local, 0.0);
      }
    }
    EXPECT_EQ(Load(path, state, {.allow_missing = true}), absl::OkStatus());
    for (const StateEntry& entry : state.entries()) {
      const auto* x = std::get_if<DTensor>(&entry.value);
      if (x == nullptr) continue;
      EXPECT_EQ(x->local().ToVector<double>(),
                std::get<DTensor>(expected.Find(entry.name)->value).local().ToVector<double>())
          << entry.name;
    }
  });
}

TEST(Export, ThatFailsLeavesNothing) {
  const std::string folder = TestFolder();
  for (int at = 0;; ++at) {
    testing::FailingFiles files(testing::Failure::kNoSpace, at);
    const std::string path = absl::StrCat(folder, "/new-", at);
    absl::Status status;
    OnRanks({{"dp", 2}}, [&](const DeviceMesh& mesh) {
      ExportOptions options;
      options.save.files = &files;
      options.max_file_bytes = 20000;
      const absl::Status mine = ExportHuggingFace(path, StateOn(mesh), options);
      if (mesh.LocalRank("dp") == 0) status = mine;
    });
    if (!files.has_failed()) break;
    if (status.ok()) continue;
    EXPECT_THAT(std::string(status.message()), ::testing::ContainsRegex("^rank [01]: cannot "));
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      EXPECT_NE(entry.path().filename().string()[0], '.') << at;
  }
}

TEST(Export, RefusesNamesAndDTypesThatDoNotFit) {
  const std::string path = TestFolder() + "/refused";
  OnRanks({{"dp", 2}}, [&](const DeviceMesh& mesh) {
    ExportOptions options;
    options.dtype = DType::kI32;
    EXPECT_THAT(std::string(ExportHuggingFace(path, StateOn(mesh), options).message()),
                HasSubstr("i32 is not floating-point"));
    options.dtype.reset();
    options.texts = {{"model.safetensors", "x"}};
    EXPECT_THAT(std::string(ExportHuggingFace(path, StateOn(mesh), options).message()),
                HasSubstr("'model.safetensors' is no name for a further file"));
  });
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace shardmesh::checkpoint
