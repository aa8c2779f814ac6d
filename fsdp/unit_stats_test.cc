// SPDX-License-Identifier: Apache-2.0
//
// The statistics of units against what CommTrace and the allocator count.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/testing/tower.h"

namespace shardmesh::fsdp::testing {
namespace {

using ::testing::HasSubstr;

constexpr Strategy kStrategies[] = {Strategy::kFullShard, Strategy::kShardGradOp,
                                    Strategy::kOptimizerState, Strategy::kReplicate};

UnitStats Total(const std::vector<UnitStats>& units) {
  UnitStats total;
  for (const UnitStats& unit : units) {
    total.gathers += unit.gathers;
    total.gather_bytes_sent += unit.gather_bytes_sent;
    total.gather_bytes_received += unit.gather_bytes_received;
    total.reductions += unit.reductions;
    total.reduce_bytes_sent += unit.reduce_bytes_sent;
    total.gathered_bytes += unit.gathered_bytes;
  }
  return total;
}

TEST(UnitStats, AddUpToWhatTheTraceCounts) {
  for (const Strategy strategy : kStrategies) {
    SCOPED_TRACE(static_cast<int>(strategy));
    LabOptions options;
    options.fsdp.strategy = strategy;
    OnEachMesh(options, [](Lab& lab) {
      for (int step = 0; step < 2; ++step) {
        ResetUnitStats(*lab.tower);
        CommTrace trace(lab.mesh);
        const DTensor loss = lab.Loss(step);
        EXPECT_EQ(Total(GetUnitStats(*lab.tower)).gathered_bytes,
                  lab.Bytes(MemoryCategory::kUnshardedParameters));
        Backward(loss);
        const UnitStats total = Total(GetUnitStats(*lab.tower));
        EXPECT_EQ(total.gathers, trace.Count("", "", "fsdp_gather"));
        EXPECT_EQ(total.gather_bytes_sent, trace.Bytes("", "", "fsdp_gather"));
        EXPECT_EQ(total.reduce_bytes_sent, trace.Bytes("", "", "fsdp_reduce"));
        EXPECT_EQ(total.reductions, 4);
        EXPECT_EQ(total.gathered_bytes, lab.Bytes(MemoryCategory::kUnshardedParameters));
        SgdStep(*lab.tower, 0.1);
      }
    });
  }
}

TEST(UnitStats, OfEachUnit) {
  OnEachMesh({}, [](Lab& lab) {
    const int p = lab.mesh.Size("dp");
    for (int step = 0; step < 2; ++step) Backward(lab.Loss(step));
    const std::vector<UnitStats> units = GetUnitStats(*lab.tower);
    ASSERT_EQ(units.size(), 4u);
    const char* const names[] = {"", "block0", "block1", "block2"};
    nn::Module* const modules[] = {&lab.tower->head, &lab.block(0), &lab.block(1), &lab.block(2)};
    for (int i = 0; i < 4; ++i) {
      const UnitStats& unit = units[i];
      EXPECT_EQ(unit.module, names[i]);
      const int64_t all = GatheredBytes(lab, *modules[i]);
      int64_t own = 0;
      for (const nn::Parameter& parameter : modules[i]->Parameters())
        own += parameter.data().local().Bytes();
      const int gathers = p == 1 ? 0 : i == 0 ? 2 : 4;  // The root keeps its own until backward.
      EXPECT_EQ(unit.gathers, gathers);
      EXPECT_EQ(unit.gather_bytes_sent, gathers * (p - 1) * own);
      EXPECT_EQ(unit.gather_bytes_received, gathers * (all - own));
      EXPECT_EQ(unit.reductions, 2);
      if (lab.mesh.shape().num_axes() == 1) {
        EXPECT_EQ(unit.reduce_bytes_sent, 2 * (all - own));
      } else {  // What gradients arrive as, there, is the choice of the ops.
        EXPECT_GT(unit.reduce_bytes_sent, 0);
      }
      EXPECT_EQ(unit.gathered_bytes, 0);
      EXPECT_EQ(unit.peak_gathered_bytes, all) << unit.module;
    }
    EXPECT_EQ(GetUnitStats(lab.block(1)).size(), 1u);
  });
}

TEST(UnitStats, OnAMeshWithoutAxes) {
  LabOptions options;
  options.fsdp.shard_axes.emplace();
  ExpectSameOn({{MeshShape{}, /*releases_on_one_rank=*/true}}, options,
               [](Lab& lab, Numbers& seen) {
                 Backward(lab.Loss(0));
                 seen.Gradients(lab);
                 if (!lab.is_sharded) return;
                 EXPECT_EQ(Total(GetUnitStats(*lab.tower)).gathers, 0);
                 EXPECT_EQ(Total(GetUnitStats(*lab.tower)).reductions, 4);
               });
}

TEST(UnitStats, BeginAgainWhenReset) {
  OnEachMesh({}, [](Lab& lab) {
    Backward(lab.Loss(0));
    const DTensor loss = lab.Loss(1);  // Keeps the root's.
    ResetUnitStats(*lab.tower);
    for (const UnitStats& unit : GetUnitStats(*lab.tower)) {
      const int64_t now = unit.module.empty() ? GatheredBytes(lab, lab.tower->head) : 0;
      EXPECT_EQ(unit.gathers + unit.reductions + unit.gather_bytes_sent + unit.reduce_bytes_sent +
                    unit.gather_bytes_received,
                0);
      EXPECT_EQ(unit.gathered_bytes, now);
      EXPECT_EQ(unit.peak_gathered_bytes, now);
      EXPECT_EQ(unit.gather_wait_seconds + unit.reduce_wait_seconds, 0);
    }
  });
}

// The other ranks wait for one that is late.
TEST(UnitStats, TellHowLongARankHasWaited) {
  static constexpr double kLate = 0.05;
  OnLabMesh({{{"dp", 2}}}, {}, [](Lab& lab) {
    Backward(lab.Loss(0));
    ResetUnitStats(*lab.tower);
    const bool is_late = lab.mesh.LocalRank("dp") == 1;
    lab.block(1).in_forward = [&] {
      if (is_late) std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
    };
    Backward(lab.Loss(1));
    double gathers = 0, reductions = 0;
    for (const UnitStats& unit : GetUnitStats(*lab.tower)) {
      gathers += unit.gather_wait_seconds;
      reductions += unit.reduce_wait_seconds;
    }
    EXPECT_GT(reductions, 0);
    EXPECT_GT(gathers, is_late ? 0 : kLate / 2);
  });
}

TEST(UnitStats, OfAModuleWithoutUnitsAreRefused) {
  OnLabMesh({{{"dp", 2}}}, {}, [](Lab& lab) {
    const auto message = [](const std::function<void()>& fn) {
      return std::string(Catch(fn).message());
    };
    EXPECT_THAT(message([&] { GetUnitStats(lab.tower->head); }),
                HasSubstr("GetUnitStats: head has no FullyShard unit at or below it"));
    EXPECT_THAT(message([&] { ResetUnitStats(lab.tower->head); }), HasSubstr("ResetUnitStats"));
  });
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
