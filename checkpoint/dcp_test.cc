// SPDX-License-Identifier: Apache-2.0
//
// Directories that PyTorch's distributed checkpoint has written from four ranks
// (tests/testdata/golden/README.md), read on other meshes.
#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/safetensors_file.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kGolden = "tests/testdata/golden/dcp/";

void OnRanks(const MeshShape& mesh, const std::function<void(const DeviceMesh&)>& fn) {
  EXPECT_EQ(RunRanks(static_cast<int>(mesh.NumRanks()),
                     [&](Communicator& world) { fn(DeviceMesh::Create(world, mesh)); }),
            absl::OkStatus())
      << mesh.ToString();
}

// All tensors of the case, of the shapes that one rank wrote, without values.
StateDict StateOf(const DeviceMesh& mesh, const SafetensorsFile& whole) {
  StateDict state;
  size_t number = 0;
  for (const StoredTensor& stored : whole.tensors()) {
    UnsetTensor unset;
    unset.mesh = mesh;
    unset.dtype = *stored.dtype;
    const Dims shape(stored.shape);
    unset.layout = Layout::Replicated(mesh.shape(), shape);
    for (int axis = 0; axis < mesh.shape().num_axes() && shape.size() > 0; ++axis, ++number)
      unset.layout = unset.layout.With(axis, Shard(static_cast<int>(number) % shape.size()));
    state.Add(stored.name, unset);
  }
  return state;
}

void ExpectWhole(const StateDict& state, const SafetensorsFile& whole) {
  ASSERT_FALSE(state.empty());
  for (const StateEntry& entry : state.entries()) {
    const auto* x = std::get_if<DTensor>(&entry.value);
    ASSERT_NE(x, nullptr) << entry.name;
    const Box box = x->layout().LocalBox(x->mesh().coord());
    Tensor expected = Tensor::Empty(x->mesh().context(), box.Extents(), x->dtype());
    ASSERT_EQ(whole.ReadBox(entry.name, box, expected), absl::OkStatus());
    const std::vector<double> got = x->local().ToVector<double>();
    const std::vector<double> want = expected.ToVector<double>();
    ASSERT_EQ(got.size(), want.size());
    // What one rank has computed differs by rounding: the bounds of make_dcp.py.
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-6 + 1e-5 * std::abs(want[i])) << entry.name;
  }
}

TEST(Dcp, LoadsOnAnyMesh) {
  for (const std::string name : {"fsdp", "fsdp_tp"}) {
    const auto whole = SafetensorsFile::Open(kGolden + name + "/whole/expected.safetensors");
    ASSERT_TRUE(whole.ok()) << whole.status();
    const std::vector<MeshShape> meshes = {
        {{"dp", 1}}, {{"dp", 2}}, {{"dp", 3}}, {{"dp", 2}, {"tp", 2}}};
    for (const MeshShape& shape : meshes) {
      OnRanks(shape, [&](const DeviceMesh& mesh) {
        StateDict state = StateOf(mesh, *whole);
        EXPECT_EQ(Load(kGolden + name, state), absl::OkStatus());
        ExpectWhole(state, *whole);
      });
    }
  }
}

TEST(Dcp, BoxesThatDoNotCoverATensorAreRefusedByName) {
  const auto whole = SafetensorsFile::Open(kGolden + "fsdp/whole/expected.safetensors");
  ASSERT_TRUE(whole.ok()) << whole.status();
  const absl::StatusOr<Contents> contents = Contents::Open(kGolden + "incomplete");
  ASSERT_FALSE(contents.ok());
  EXPECT_EQ(contents.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(contents.status().message()),
      AllOf(HasSubstr("dcp/incomplete'"), HasSubstr("array '"), HasSubstr("no file has box")));
  OnRanks({{"dp", 2}}, [&](const DeviceMesh& mesh) {
    StateDict state = StateOf(mesh, *whole);
    EXPECT_EQ(Load(kGolden + "incomplete", state).code(), absl::StatusCode::kDataLoss);
  });
}

TEST(Dcp, PicklesAreRefusedWithHowToConvertThem) {
  const std::string folder = ::testing::TempDir() + "/pickles";
  std::filesystem::create_directories(folder);
  for (const char* name : {"__0_0.distcp", "pytorch_model.bin", "model.pt"}) {
    const std::string path = absl::StrCat(folder, "/", name);
    std::filesystem::copy_file(kGolden + "fsdp/whole/expected.safetensors", path);
    EXPECT_THAT(std::string(Contents::Open(path).status().message()),
                AllOf(HasSubstr(name), HasSubstr("pickle"), HasSubstr("save_file")));
    EXPECT_THAT(std::string(Contents::Open(folder).status().message()),
                AllOf(HasSubstr(name), HasSubstr("pickle")));
    std::filesystem::remove(path);
  }
}

// What Save writes is what this reader, which knows nothing of the index, finds in the files.
TEST(Dcp, SavedFilesAloneSayWhereTheirBoxesAre) {
  const std::string path = ::testing::TempDir() + "/without_index";
  const auto whole = SafetensorsFile::Open(kGolden + "fsdp/whole/expected.safetensors");
  ASSERT_TRUE(whole.ok()) << whole.status();
  OnRanks({{"dp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) {
    StateDict state = StateOf(mesh, *whole);
    EXPECT_EQ(Load(kGolden + "fsdp", state), absl::OkStatus());
    EXPECT_EQ(Save(path, state), absl::OkStatus());
  });
  std::filesystem::remove(path + "/" + kIndexName);
  OnRanks({{"dp", 3}}, [&](const DeviceMesh& mesh) {
    StateDict state = StateOf(mesh, *whole);
    EXPECT_EQ(Load(path, state), absl::OkStatus());
    ExpectWhole(state, *whole);
  });
}

}  // namespace
}  // namespace shardmesh::checkpoint
