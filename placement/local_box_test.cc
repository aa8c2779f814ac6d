// SPDX-License-Identifier: Apache-2.0
//
// The box mathematics, proved over all small cases: which rank holds which indices.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/placement/layout.h"

namespace shardmesh {
namespace {

using Rows = std::vector<int64_t>;

Rows Arange(int64_t n) {
  Rows rows(n);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

/// Chunk `index` of `rows` cut as torch.chunk does: by counting off ceil(size / count) rows at a
/// time.
Rows CountOff(const Rows& rows, int index, int count) {
  std::vector<Rows> chunks(count);
  const size_t chunk = (rows.size() + count - 1) / count;
  size_t current = 0;
  for (const int64_t row : rows) {
    if (chunks[current].size() == chunk) ++current;
    chunks[current].push_back(row);
  }
  return chunks[index];
}

/// The rows of the rank at `coord` by the definition of nested chunks, outermost split first.
Rows RowsByDefinition(const MeshShape& mesh, const std::vector<int>& order, int64_t n,
                      const Coord& coord) {
  Rows rows = Arange(n);
  for (const int axis : order) rows = CountOff(rows, coord[axis], mesh.size(axis));
  return rows;
}

Rows RowsOf(const Layout& layout, const Coord& coord) {
  const Box box = layout.LocalBox(coord);
  Rows rows(box.end[0] - box.begin[0]);
  std::iota(rows.begin(), rows.end(), box.begin[0]);
  return rows;
}

/// Placements that split dim 0 by the axes of `order`.
Layout SplitDim0(const MeshShape& mesh, const std::vector<int>& order, int64_t n) {
  Placements placements(mesh.num_axes(), Replicate());
  for (const int axis : order) placements[axis] = Shard(0);
  return Layout::Make(mesh, placements, {n}, order);
}

/// Checks a one-dim layout: no negative length, an empty box at n, and every index held once a
/// replica.
void CheckTiles(const Layout& layout, int64_t replicas) {
  const int64_t n = layout.global_shape()[0];
  std::vector<int64_t> holders(n, 0);
  const int64_t max_length = layout.MaxLocalShape()[0];
  for (int64_t rank = 0; rank < layout.mesh().NumRanks(); ++rank) {
    const Box box = layout.LocalBox(layout.mesh().CoordOf(rank));
    const int64_t length = box.end[0] - box.begin[0];
    ASSERT_GE(length, 0) << layout << " rank " << rank;
    ASSERT_LE(length, max_length) << layout << " rank " << rank;
    if (length == 0) {
      ASSERT_EQ(box.begin[0], n) << layout << " rank " << rank;
    }
    for (int64_t i = box.begin[0]; i < box.end[0]; ++i) ++holders[i];
  }
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(holders[i], replicas) << layout << " index " << i;
}

TEST(LocalBox, OneAxisTilesForEveryExtentAndSize) {
  for (int64_t n = 0; n <= 40; ++n) {
    for (int p = 1; p <= 11; ++p) {
      CheckTiles(Layout::Make({{"x", p}}, {Shard(0)}, {n}), 1);
      CheckTiles(Layout::Make({{"x", p}}, {Replicate()}, {n}), p);
      CheckTiles(Layout::Make({{"x", p}}, {Partial()}, {n}), p);
    }
  }
}

TEST(LocalBox, TwoNestedSplitsTileInBothOrders) {
  for (int64_t n = 0; n <= 40; ++n) {
    for (int p = 1; p <= 11; ++p) {
      for (int q = 1; q <= 11; ++q) {
        const MeshShape mesh = {{"x", p}, {"y", q}};
        CheckTiles(SplitDim0(mesh, {0, 1}, n), 1);
        CheckTiles(SplitDim0(mesh, {1, 0}, n), 1);
      }
    }
  }
}

TEST(LocalBox, EverySubsetOfThreeAxesTilesInEveryOrderOnceAReplica) {
  for (const std::vector<int>& sizes :
       std::vector<std::vector<int>>{{2, 3, 2}, {3, 2, 5}, {1, 4, 3}, {2, 2, 2}}) {
    const MeshShape mesh = {{"x", sizes[0]}, {"y", sizes[1]}, {"z", sizes[2]}};
    for (int64_t n = 0; n <= 40; ++n) {
      for (int subset = 0; subset < 8; ++subset) {
        std::vector<int> order;
        int64_t replicas = mesh.NumRanks();
        for (int axis = 0; axis < 3; ++axis) {
          if ((subset >> axis & 1) == 0) continue;
          order.push_back(axis);
          replicas /= mesh.size(axis);
        }
        do {
          const Layout layout = SplitDim0(mesh, order, n);
          CheckTiles(layout, replicas);
          for (int64_t rank = 0; rank < mesh.NumRanks(); ++rank) {
            const Coord coord = mesh.CoordOf(rank);
            ASSERT_EQ(RowsOf(layout, coord), RowsByDefinition(mesh, order, n, coord))
                << layout << " rank " << rank;
          }
        } while (std::next_permutation(order.begin(), order.end()));
      }
    }
  }
}

TEST(LocalBox, TwoDimsTileTogether) {
  const MeshShape mesh = {{"x", 2}, {"y", 3}, {"z", 2}};
  const Dims shape = {7, 5};
  const std::vector<Placement> choices = {Replicate(), Partial(), Shard(0), Shard(1)};
  for (int code = 0; code < 64; ++code) {
    const Placements placements = {choices[code & 3], choices[code >> 2 & 3], choices[code >> 4]};
    std::vector<int> order;
    int64_t replicas = mesh.NumRanks();
    for (int axis = 0; axis < 3; ++axis) {
      if (!placements[axis].IsShard()) continue;
      order.push_back(axis);
      replicas /= mesh.size(axis);
    }
    do {
      const Layout layout = Layout::Make(mesh, placements, shape, order);
      std::vector<int64_t> holders(shape.NumElements(), 0);
      for (int64_t rank = 0; rank < mesh.NumRanks(); ++rank) {
        const Box box = layout.LocalBox(mesh.CoordOf(rank));
        for (int64_t i = box.begin[0]; i < box.end[0]; ++i) {
          for (int64_t j = box.begin[1]; j < box.end[1]; ++j) ++holders[i * shape[1] + j];
        }
      }
      EXPECT_EQ(holders, std::vector<int64_t>(shape.NumElements(), replicas)) << layout;
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(LocalBox, FsdpAfterTpIsNestedChunksForEveryUnevenSize) {
  // Seen elsewhere: two representations of the split order that disagree for 43 of these layouts
  // and lose rows.
  for (int dp = 2; dp <= 5; ++dp) {
    for (int tp = 2; tp <= 4; ++tp) {
      const MeshShape mesh = {{"dp", dp}, {"tp", tp}};
      for (int64_t n = 0; n <= 40; ++n) {
        const Layout layout = Layout::Make(mesh, {Replicate(), Shard(0)}, {n}).With(0, Shard(0));
        CheckTiles(layout, 1);
        for (int64_t rank = 0; rank < mesh.NumRanks(); ++rank) {
          const Coord coord = mesh.CoordOf(rank);
          ASSERT_EQ(RowsOf(layout, coord), RowsByDefinition(mesh, {1, 0}, n, coord))
              << layout << " rank " << rank;
        }
      }
    }
  }
}

TEST(LocalBox, FewerRowsThanRanksLoseNoRow) {
  const MeshShape mesh = {{"dp", 4}, {"tp", 2}};
  // Rows of (dp, tp), as dp 0..3 of tp 0, then dp 0..3 of tp 1.
  const std::vector<std::vector<Rows>> want = {{{0}, {}, {}, {}, {}, {}, {}, {}},
                                               {{0}, {}, {}, {}, {1}, {}, {}, {}},
                                               {{0}, {1}, {}, {}, {2}, {}, {}, {}}};
  for (int64_t n = 1; n <= 3; ++n) {
    const Layout layout = Layout::Make(mesh, {Shard(0), Shard(0)}, {n}, {1, 0});
    CheckTiles(layout, 1);
    for (int tp = 0; tp < 2; ++tp) {
      for (int dp = 0; dp < 4; ++dp) {
        EXPECT_EQ(RowsOf(layout, {dp, tp}), want[n - 1][tp * 4 + dp])
            << layout << " dp " << dp << " tp " << tp;
      }
    }
  }
}

TEST(LocalBox, FsdpAfterTpOfFourSixAndFiveRows) {
  const MeshShape mesh = {{"dp", 2}, {"tp", 2}};
  struct Row {
    int64_t n;
    Rows at_00, at_10, at_01, at_11;  // (dp, tp)
  };
  for (const Row& row : std::vector<Row>{
           {4, {0}, {1}, {2}, {3}}, {6, {0, 1}, {2}, {3, 4}, {5}}, {5, {0, 1}, {2}, {3}, {4}}}) {
    const Layout layout = Layout::Make(mesh, {Shard(0), Shard(0)}, {row.n}, {1, 0});
    EXPECT_EQ(RowsOf(layout, {0, 0}), row.at_00) << layout;
    EXPECT_EQ(RowsOf(layout, {1, 0}), row.at_10) << layout;
    EXPECT_EQ(RowsOf(layout, {0, 1}), row.at_01) << layout;
    EXPECT_EQ(RowsOf(layout, {1, 1}), row.at_11) << layout;
  }
}

TEST(LocalBox, UnevenRowsAreTwoTwoOneNone) {
  const Layout layout = Layout::Make({{"x", 4}}, {Shard(0)}, {5, 10});
  EXPECT_EQ(layout.LocalBox({0}).ToString(), "[0:2, 0:10]");
  EXPECT_EQ(layout.LocalBox({1}).ToString(), "[2:4, 0:10]");
  EXPECT_EQ(layout.LocalBox({2}).ToString(), "[4:5, 0:10]");
  EXPECT_EQ(layout.LocalBox({3}).ToString(), "[5:5, 0:10]");
}

TEST(LocalBox, ExpectedShapesToHoldDeclaredShardsAgainst) {
  // 14 columns over 4 ranks are 4, 4, 4, 2: locals of 2, 3, 4, 5 columns do not fit that.
  const Layout columns = Layout::Make({{"x", 4}}, {Shard(1)}, {2, 14});
  const std::vector<Dims> want = {{2, 4}, {2, 4}, {2, 4}, {2, 2}};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(columns.LocalShape({i}), want[i]);
  // The global extent comes from the layout, never from one local extent: 5 elements on 2 ranks are
  // 3 and 2.
  const Layout five = Layout::Make({{"x", 2}}, {Shard(0)}, {5});
  EXPECT_EQ(five.LocalShape({0}), (Dims{3}));
  EXPECT_EQ(five.LocalShape({1}), (Dims{2}));
}

TEST(LocalBox, EmptyShardLiesAtTheEndOfTheDim) {
  const Layout layout = Layout::Make({{"x", 30}}, {Shard(0)}, {512});
  for (int i = 0; i < 28; ++i) EXPECT_EQ(layout.LocalBox({i}), (Box{{18 * i}, {18 * i + 18}}));
  EXPECT_EQ(layout.LocalBox({28}), (Box{{504}, {512}}));
  EXPECT_EQ(layout.LocalBox({29}), (Box{{512}, {512}}));
}

TEST(LocalBox, NoEmptyShardSharesItsOffsetWithARealOne) {
  // Nested: the empty piece of a piece in the middle lies at the end of the dim, not where its
  // neighbour begins.
  const Layout layout = Layout::Make({{"dp", 3}, {"tp", 2}}, {Shard(0), Shard(0)}, {4, 2}, {1, 0});
  EXPECT_EQ(layout.LocalBox({1, 0}).ToString(), "[1:2, 0:2]");
  EXPECT_EQ(layout.LocalBox({2, 0}).ToString(), "[4:4, 0:2]");
  EXPECT_EQ(layout.LocalBox({0, 1}).ToString(), "[2:3, 0:2]");
}

TEST(LocalBox, ScalarsAndEmptyTensors) {
  const MeshShape mesh = {{"x", 2}, {"y", 3}};
  EXPECT_EQ(Layout::Make(mesh, {Replicate(), Partial()}, {}).LocalBox({1, 2}).NumElements(), 1);
  EXPECT_EQ(Layout::Make(mesh, {Shard(0), Shard(1)}, {0, 3}).LocalBox({1, 2}).ToString(),
            "[0:0, 2:3]");
  EXPECT_EQ(Layout::Replicated({}, {5}).LocalBox({}).ToString(), "[0:5]");
}

}  // namespace
}  // namespace shardmesh
