// SPDX-License-Identifier: Apache-2.0
//
// Many tensors, and one of 4 GiB in a file without blocks.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/internal/part_reader.h"
#include "shardmesh/checkpoint/internal/read_plan.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/checkpoint/save.h"
#include "shardmesh/checkpoint/testing/safetensors_builder.h"
#include "shardmesh/checkpoint/testing/watched_files.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::checkpoint {
namespace {

using testing::WatchedFiles;

TEST(Scale, TenThousandSmallTensorsOverThreeRanks) {
  constexpr int kTensors = 10'000;
  const std::string path = absl::StrCat(TestFolder(), "/many");
  const auto state_on = [&](const DeviceMesh& mesh, bool has_values) {
    StateDict state;
    for (int i = 0; i < kTensors; ++i) {
      const Placement placement = i % 3 == 0 ? Placement(Replicate()) : Placement(Shard(0));
      state.Add(absl::StrCat("layers.", i, ".weight"),
                Full(mesh, {i % 7 + 1, 3}, DType::kF32, has_values ? i + 0.5 : 0.0, {placement}));
    }
    return state;
  };
  const absl::Status saved = RunRanks(3, [&](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 3}});
    EXPECT_EQ(Save(path, state_on(mesh, /*has_values=*/true), {.sync = false}), absl::OkStatus());
  });
  ASSERT_EQ(saved, absl::OkStatus());
  for (const bool share : {false, true}) {
    const absl::Status loaded = RunRanks(3, [&](Communicator& world) {
      const DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 3}});
      StateDict state = state_on(mesh, /*has_values=*/false);
      WatchedFiles files;
      EXPECT_EQ(Load(path, state, {.share_reads = share, .files = &files}), absl::OkStatus());
      for (int i = 0; i < kTensors; ++i) {
        const Tensor local = std::get<DTensor>(state.entries()[i].value).local();
        const float* const data = local.data<float>();
        ASSERT_TRUE(std::all_of(data, data + local.NumElements(), [&](float x) {
          return x == static_cast<float>(i) + 0.5F;
        })) << i;
      }
      // Neighbours in a file are read together: 300 kB in all.
      EXPECT_LT(files.reads(), 100) << share;
    });
    ASSERT_EQ(loaded, absl::OkStatus());
  }
  EXPECT_EQ(Verify(path), absl::OkStatus());
}

// ---- beyond 2^32 bytes --------------------------------------------------------------------------

constexpr int64_t kRows = 16 * 1024 + 1, kColumns = 64 * 1024;

// f32, 4 GiB and a row. Zero but for some elements, whose values are their numbers.
std::string SparseFile(const std::vector<int64_t>& marks, int64_t& data_begin) {
  const std::string header = absl::StrCat(R"({"w":{"dtype":"F32","shape":[)", kRows, ",", kColumns,
                                          R"(],"data_offsets":[0,)", kRows * kColumns * 4, "]}}");
  const std::string path = WriteTestFile("model.safetensors", SafetensorsBytes(header, ""));
  data_begin = static_cast<int64_t>(8 + header.size());
  EXPECT_EQ(::truncate(path.c_str(), data_begin + kRows * kColumns * 4), 0);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  for (int64_t index : marks) {
    const auto value = static_cast<float>(index);
    file.seekp(data_begin + 4 * index);
    file.write(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return path;
}

int64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

TEST(Scale, BoxesOfATensorOfFourGigabytes) {
  const std::vector<int64_t> marks = {0, kColumns + 1,
                                      (int64_t{1} << 30) - 1,  // The last before 2^32 bytes.
                                      int64_t{1} << 30, kRows * kColumns - 1};
  int64_t data_begin = 0;
  const std::string path = SparseFile(marks, data_begin);
  struct stat status;
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  ASSERT_GT(status.st_size, int64_t{1} << 32);
  if (status.st_blocks * 512 > (64 << 20)) GTEST_SKIP() << "no sparse files on " << path;

  const int64_t peak_before = PeakBytes();
  const absl::StatusOr<Contents> contents = Contents::Open(TestFolder());
  ASSERT_TRUE(contents.ok()) << contents.status();
  ASSERT_EQ(contents->arrays.size(), 1u);
  const StoredArray& array = contents->arrays[0];
  // What some ranks of large meshes hold: rows, columns, and both.
  const MeshShape rows = {{"dp", 4096}}, columns = {{"tp", 4096}}, grid = {{"dp", 97}, {"tp", 89}};
  const Dims shape = {kRows, kColumns};
  struct Case {
    Layout layout;
    int64_t rank;
  };
  for (const auto& [layout, rank] :
       std::vector<Case>{{Layout::Make(rows, {Shard(0)}, shape), 0},
                         {Layout::Make(rows, {Shard(0)}, shape), 3276},
                         {Layout::Make(columns, {Shard(1)}, shape), 0},
                         {Layout::Make(columns, {Shard(1)}, shape), 4095},
                         {Layout::Make(grid, {Shard(0), Shard(1)}, shape), 96 * 89 + 88}}) {
    SCOPED_TRACE(absl::StrCat(layout.ToString(), " rank ", rank));
    const Box box = layout.LocalBox(layout.mesh().CoordOf(rank));
    std::vector<float> values(static_cast<size_t>(box.NumElements()), -1);
    std::vector<internal::ReadPart> plan;
    ASSERT_EQ(internal::PlanRead(array, box, plan), absl::OkStatus());
    std::vector<internal::PartToRead> parts;
    for (const internal::ReadPart& part : plan) {
      parts.push_back({&array, part.piece, part.box, DType::kF32,
                       reinterpret_cast<char*>(values.data()), box.Extents(),
                       Relative(part.box, box)});
    }
    WatchedFiles watched;
    internal::PieceFiles files(*contents, &watched);
    ASSERT_EQ(internal::ReadParts(files, parts, {.threads = 2}), absl::OkStatus());
    std::vector<float> expected(values.size(), 0);
    for (int64_t mark : marks) {
      const Box at = {{mark / kColumns, mark % kColumns},
                      {mark / kColumns + 1, mark % kColumns + 1}};
      if (!box.Contains(at)) continue;
      const Box local = Relative(at, box);
      expected[static_cast<size_t>(local.begin[0] * box.Extents()[1] + local.begin[1])] =
          static_cast<float>(mark);
    }
    EXPECT_TRUE(values == expected);
    EXPECT_EQ(watched.bytes(), box.NumElements() * 4);
  }
  EXPECT_LT(PeakBytes() - peak_before, 64 << 20);
}

}  // namespace
}  // namespace shardmesh::checkpoint
