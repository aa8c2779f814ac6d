// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/mesh/mesh_shape.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/hash/hash.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

std::string MessageOf(absl::FunctionRef<void()> fn) { return std::string(Catch(fn).message()); }

TEST(MeshShape, AxesAreFoundByName) {
  const MeshShape mesh = {{"dp", 2}, {"tp", 4}};
  EXPECT_EQ(mesh.num_axes(), 2);
  EXPECT_EQ(mesh.NumRanks(), 8);
  EXPECT_EQ(mesh.Index("tp"), 1);
  EXPECT_EQ(mesh.Size("tp"), 4);
  EXPECT_EQ(mesh.size(0), 2);
  EXPECT_TRUE(mesh.Has("dp"));
  EXPECT_FALSE(mesh.Has("d"));
  EXPECT_EQ(MessageOf([&] { mesh.Size("cp"); }), "mesh [dp=2, tp=4] has no axis \"cp\"");
}

TEST(MeshShape, TextIsTheCanonicalForm) {
  EXPECT_EQ((MeshShape{{"dp_replicate", 3}, {"tp", 1}}).ToString(), "[dp_replicate=3, tp=1]");
  std::ostringstream out;
  out << MeshShape();
  EXPECT_EQ(out.str(), "[]");
}

TEST(MeshShape, RanksAreRowMajorWithTheFirstAxisOutermost) {
  const MeshShape mesh = {{"dp", 2}, {"cp", 3}, {"tp", 5}};
  EXPECT_EQ(mesh.CoordOf(0), (Coord{0, 0, 0}));
  EXPECT_EQ(mesh.CoordOf(1), (Coord{0, 0, 1}));
  EXPECT_EQ(mesh.CoordOf(5), (Coord{0, 1, 0}));
  EXPECT_EQ(mesh.CoordOf(29), (Coord{1, 2, 4}));
  EXPECT_EQ(mesh.RankOf({1, 0, 2}), 17);
  for (int64_t rank = 0; rank < mesh.NumRanks(); ++rank)
    EXPECT_EQ(mesh.RankOf(mesh.CoordOf(rank)), rank);
}

TEST(MeshShape, WithoutAxesHasOneRank) {
  const MeshShape mesh;
  EXPECT_EQ(mesh.NumRanks(), 1);
  EXPECT_EQ(mesh.CoordOf(0), Coord());
  EXPECT_EQ(mesh.RankOf({}), 0);
}

TEST(MeshShape, WhatIsOutsideTheMeshIsRefused) {
  const MeshShape mesh = {{"dp", 2}, {"tp", 4}};
  EXPECT_EQ(MessageOf([&] { mesh.CoordOf(8); }),
            "rank 8 is not in the mesh [dp=2, tp=4] of 8 ranks");
  EXPECT_EQ(MessageOf([&] { mesh.CoordOf(-1); }),
            "rank -1 is not in the mesh [dp=2, tp=4] of 8 ranks");
  EXPECT_EQ(MessageOf([&] {
              mesh.RankOf({1, 4});
            }),
            "coordinate (1, 4) is not in the mesh [dp=2, tp=4]");
  EXPECT_EQ(MessageOf([&] {
              mesh.RankOf({-1, 0});
            }),
            "coordinate (-1, 0) is not in the mesh [dp=2, tp=4]");
  EXPECT_EQ(MessageOf([&] { mesh.RankOf({1}); }), "coordinate (1) is not in the mesh [dp=2, tp=4]");
}

TEST(MeshShape, BadAxesAreRefusedByName) {
  struct Row {
    std::vector<MeshAxis> axes;
    std::string want;
  };
  for (const Row& row : std::vector<Row>{
           {{{"dp", 2}, {"", 2}},
            "mesh [dp=2, =2]: axis name \"\" is not made of letters, digits and '_'"},
           {{{"d p", 2}}, "mesh [d p=2]: axis name \"d p\" is not made of letters, digits and '_'"},
           {{{"dp+tp", 2}},
            "mesh [dp+tp=2]: axis name \"dp+tp\" is not made of letters, digits and '_'"},
           {{{"dp", 2}, {"tp", 3}, {"dp", 5}},
            "mesh [dp=2, tp=3, dp=5]: two axes are named \"dp\""},
           {{{"dp", 0}}, "mesh [dp=0]: axis dp has size 0, at least 1 is needed"},
           {{{"dp", -3}}, "mesh [dp=-3]: axis dp has size -3, at least 1 is needed"},
           {{{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}, {"g", 1}},
            "mesh [a=1, b=1, c=1, d=1, e=1, f=1, g=1]: has 7 axes, at most 6 fit"},
           {{{"a", 1 << 30}, {"b", 1 << 30}, {"c", 1 << 30}},
            "mesh [a=1073741824, b=1073741824, c=1073741824]: more than 2147483647 ranks"}}) {
    EXPECT_EQ(MessageOf([&] { MeshShape{row.axes}; }), row.want);
  }
}

TEST(MeshShape, EqualityAndHashLookAtNamesSizesAndOrder) {
  const MeshShape mesh = {{"dp", 2}, {"tp", 4}};
  const MeshShape same = {{"dp", 2}, {"tp", 4}};
  EXPECT_EQ(mesh, same);
  EXPECT_EQ(absl::HashOf(mesh), absl::HashOf(same));
  EXPECT_NE(mesh, (MeshShape{{"tp", 4}, {"dp", 2}}));
  EXPECT_NE(mesh, (MeshShape{{"dp", 4}, {"tp", 2}}));
  EXPECT_NE(mesh, (MeshShape{{"dp", 2}, {"cp", 4}}));
  EXPECT_NE(mesh, (MeshShape{{"dp", 2}}));
}

TEST(MeshShape, LinkIsPartOfAnAxis) {
  const MeshShape plain = {{"dp", 2}, {"tp", 4}};
  const MeshShape linked = {{"dp", 2, {20e-6, 1e9}}, {"tp", 4}};
  EXPECT_EQ(linked.ToString(), "[dp=2 (20 us, 1 GB/s), tp=4]");
  EXPECT_NE(plain, linked);
  EXPECT_EQ(plain, (MeshShape{{"dp", 2, LinkCost()}, {"tp", 4}}));
  EXPECT_THROW((MeshShape{{"dp", 2, {-1e-6, 1e9}}}), Error);
  EXPECT_THROW((MeshShape{{"dp", 2, {1e-6, 0}}}), Error);
}

}  // namespace
}  // namespace shardmesh
