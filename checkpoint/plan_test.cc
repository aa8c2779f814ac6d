// SPDX-License-Identifier: Apache-2.0
//
// Planning what a rank saves and loads: right, and cheap however many ranks there are.
#include <time.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/internal/read_plan.h"
#include "shardmesh/checkpoint/internal/save_plan.h"
#include "shardmesh/checkpoint/testing/plan_sample.h"

namespace shardmesh::checkpoint {
namespace {

using internal::PlanRead;
using internal::ReadPart;
using ::testing::HasSubstr;
using testing::LayoutOf;
using testing::SavedBy;

StoredArray ArrayOf(const Dims& shape, const std::vector<Box>& boxes) {
  StoredArray array;
  array.name = "x";
  array.file_dtype = "F32";
  array.dtype = DType::kF32;
  array.shape = shape;
  for (const Box& box : boxes) array.pieces.push_back({0, box, 0, 0, {}});
  Contents contents;
  contents.arrays.push_back(array);
  EXPECT_EQ(contents.Arrange(), absl::OkStatus());
  return contents.arrays[0];
}

TEST(PlanRead, FindsWhatALookAtEveryBoxFinds) {
  const Contents saved = SavedBy({{"dp", 7}, {"tp", 5}}, /*num_tensors=*/8);
  const MeshShape other = {{"dp", 3}, {"tp", 11}};
  for (int i = 0; i < 8; ++i) {
    const auto array =
        std::find_if(saved.arrays.begin(), saved.arrays.end(),
                     [&](const StoredArray& a) { return a.name == testing::NameOf(i); });
    ASSERT_EQ(CheckCoverage(array->shape, array->pieces), absl::OkStatus());
    for (int rank = 0; rank < other.NumRanks(); ++rank) {
      const Box wanted = LayoutOf(other, i).LocalBox(other.CoordOf(rank));
      std::vector<ReadPart> parts;
      ASSERT_EQ(PlanRead(*array, wanted, parts), absl::OkStatus());
      size_t expected = 0;
      for (const StoredPiece& piece : array->pieces) {
        const Box part = Intersect(wanted, piece.box);
        if (part.IsEmpty()) continue;
        ASSERT_LT(expected, parts.size());
        EXPECT_EQ(parts[expected].piece, &piece);
        EXPECT_EQ(parts[expected++].box, part);
      }
      EXPECT_EQ(expected, parts.size());
    }
  }
}

// Boxes that are no grid, and of very different sizes.
TEST(PlanRead, FindsBoxesOfAnySize) {
  std::vector<Box> boxes = {{{0, 0}, {1, 60}}, {{1, 0}, {60, 1}}, {{1, 1}, {60, 31}}};
  for (int row = 1; row < 60; ++row) {
    for (int column = 31; column < 60; ++column)
      boxes.push_back({{row, column}, {row + 1, column + 1}});
  }
  const StoredArray array = ArrayOf({60, 60}, boxes);
  for (int row = 0; row < 60; row += 7) {
    for (int column = 0; column < 60; column += 3) {
      std::vector<ReadPart> parts;
      const Box wanted = {{row, column}, {60, column + 1}};
      EXPECT_EQ(PlanRead(array, wanted, parts), absl::OkStatus());
      int64_t elements = 0;
      for (const ReadPart& part : parts) elements += part.box.NumElements();
      EXPECT_EQ(elements, wanted.NumElements());
    }
  }
}

TEST(PlanRead, RefusesHolesAndOverlapsInTheBoxThatIsWanted) {
  const StoredArray hole = ArrayOf({8, 4}, {{{0, 0}, {2, 4}}, {{2, 0}, {4, 3}}, {{4, 0}, {8, 4}}});
  std::vector<ReadPart> parts;
  EXPECT_EQ(PlanRead(hole, {{0, 0}, {8, 3}}, parts), absl::OkStatus());
  const absl::Status of_hole = PlanRead(hole, {{1, 2}, {6, 4}}, parts);
  EXPECT_EQ(of_hole.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(of_hole.message()),
              HasSubstr("array 'x' F32[8,4]: no file has box [2:4, 3:4]"));
  const StoredArray twice = ArrayOf({8}, {{{0}, {5}}, {{4}, {8}}});
  EXPECT_EQ(PlanRead(twice, {{0}, {4}}, parts), absl::OkStatus());
  EXPECT_THAT(std::string(PlanRead(twice, {{0}, {8}}, parts).message()), HasSubstr("overlaps"));
  EXPECT_THAT(std::string(PlanRead(ArrayOf({8}, {}), {{0}, {8}}, parts).message()),
              HasSubstr("no file has box [0:8]"));
}

// A rank of n looks at a number of boxes that does not grow with n.
TEST(PlanRead, LooksAtTheBoxesOfOneRankAlone) {
  for (const int ranks : {64, 256, 1024}) {
    const MeshShape mesh = {{"dp", ranks / 8}, {"tp", 8}};
    const Contents saved = SavedBy(mesh, /*num_tensors=*/4);
    for (int i = 0; i < 4; ++i) {
      const StoredArray& array = saved.arrays[i];
      int64_t examined = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<ReadPart> parts;
        const Box wanted = LayoutOf(mesh, i).LocalBox(mesh.CoordOf(rank));
        ASSERT_EQ(PlanRead(array, wanted, parts, &examined), absl::OkStatus());
      }
      // A replica on all ranks reads all boxes, which its ranks share; here one of few bytes.
      EXPECT_LE(examined, ranks * (i == 2 ? 8 : 2)) << ranks << " ranks, tensor " << i;
    }
  }
}

// Of this thread: other programs do not count.
double CpuSeconds() {
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// The fastest of several runs.
double SecondsOfSave(const MeshShape& mesh, int num_tensors) {
  const std::vector<internal::TensorToSave> tensors = testing::TensorsOf(mesh, num_tensors, 5);
  double best = 1e9;
  for (int i = 0; i < 7; ++i) {
    const double begin = CpuSeconds();
    EXPECT_TRUE(internal::PlanSave(tensors, 5, static_cast<int>(mesh.NumRanks()), {}).ok());
    best = std::min(best, CpuSeconds() - begin);
  }
  return best;
}

// Proportional growth would give ratios of 8; growth with a square, of 64.
TEST(PlanSave, DoesNotGrowWithTheSquareOfTensorsOrRanks) {
  const MeshShape few = {{"dp", 16}, {"tp", 8}}, many = {{"dp", 128}, {"tp", 8}};
  EXPECT_LT(SecondsOfSave(many, 4000), 24 * SecondsOfSave(many, 500));
  EXPECT_LT(SecondsOfSave(many, 2000), 4 * SecondsOfSave(few, 2000));
}

}  // namespace
}  // namespace shardmesh::checkpoint
