// SPDX-License-Identifier: Apache-2.0
//
// What is gathered at most, and what stays: the root and the largest pair of adjacent units, to the
// byte, whatever is frozen, unused or called in another order.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>

#include "shardmesh/dtensor/ops.h"
#include "shardmesh/fsdp/testing/tower.h"
#include "shardmesh/optim/sgd.h"

namespace shardmesh::fsdp::testing {
namespace {

const std::vector<int64_t> kWidths = {11, 5, 29, 13, 7, 17, 3, 19};

int64_t RootBytes(const Lab& lab) { return GatheredBytes(lab, lab.tower->head); }

int64_t LargestPair(const Lab& lab) {
  int64_t largest = 0;
  for (size_t i = 0; i + 1 < kWidths.size(); ++i) {
    largest =
        std::max(largest, GatheredBytes(lab, lab.block(i)) + GatheredBytes(lab, lab.block(i + 1)));
  }
  return largest;
}

struct Row {
  const char* name;
  std::function<void(Lab&)> prepare;
};

void Freeze(nn::Module& module) {
  for (nn::Parameter parameter : module.Parameters()) parameter.set_requires_grad(false);
}

const Row kRowsOfTable[] = {
    {"all trainable", [](Lab&) {}},
    {"base frozen, head trainable",
     [](Lab& lab) {
       for (auto& block : lab.tower->blocks) Freeze(*block);
     }},
    {"last half frozen",
     [](Lab& lab) {
       for (int i = 4; i < 8; ++i) Freeze(lab.block(i));
     }},
    {"first half frozen",
     [](Lab& lab) {
       for (int i = 0; i < 4; ++i) Freeze(lab.block(i));
     }},
    {"adapters: one small parameter a unit",
     [](Lab& lab) {
       for (auto& block : lab.tower->blocks) {
         Freeze(*block);
         nn::Parameter(block->up.bias()).set_requires_grad(true);
       }
     }},
    {"one parameter a unit unused",
     [](Lab& lab) {
       // The hidden values do not reach the output, so that neither up.weight nor up.bias is used.
       for (auto& block : lab.tower->blocks) {
         block->down.AddForwardPreHook(
             [](nn::Module&, nn::Inputs& inputs) { inputs[0] = inputs[0].Detach(); });
       }
     }},
};

TEST(GatheredMemory, IsTheRootAndTheLargestPairWhateverIsTrained) {
  for (const Row& row : kRowsOfTable) {
    LabOptions options;
    options.widths = kWidths;
    OnEachMesh(options, [&](Lab& lab) {
      SCOPED_TRACE(std::string(row.name) + " on " + lab.mesh.ToString());
      row.prepare(lab);
      const int64_t expected = RootBytes(lab) + LargestPair(lab);
      Allocator& memory = *lab.mesh.context().allocator();
      for (int step = 0; step < 4; ++step) {
        memory.ResetPeaks();
        Backward(lab.Loss(step));
        EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
        EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedGradients), 0);
        SgdStep(*lab.tower, 0.1);
        if (step == 0) continue;  // The order of units is not known yet.
        EXPECT_EQ(lab.Peak(MemoryCategory::kUnshardedParameters), expected);
        EXPECT_LE(lab.Peak(MemoryCategory::kUnshardedGradients), expected);
      }
    });
  }
}

TEST(GatheredMemory, WhatAForwardDoesNotUseAfterAllIsReleased) {
  LabOptions options;
  options.widths = kWidths;
  OnEachMesh(options, [](Lab& lab) {
    const int64_t bound = RootBytes(lab) + 2 * LargestPair(lab);
    Allocator& memory = *lab.mesh.context().allocator();
    const std::vector<int> orders[] = {{0, 1, 2, 3, 4, 5, 6, 7},
                                       {7, 6, 5, 4, 3, 2, 1, 0},
                                       {0, 2, 4, 6},
                                       {3},
                                       {3, 3, 3},
                                       {6, 1, 6, 1},
                                       {},
                                       {0, 1, 2, 3, 4, 5, 6, 7}};
    for (const std::vector<int>& order : orders) {
      lab.tower->route = order;
      memory.ResetPeaks();
      const NoGrad no_grad(lab.mesh);
      lab.Loss(0);
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0) << order.size();
      EXPECT_LE(lab.Peak(MemoryCategory::kUnshardedParameters), bound);
    }
    for (int i : {5, 4, 3, 2, 1, 0}) {  // Without the root.
      const NoGrad no_grad(lab.mesh);
      lab.block(i)(lab.Batch(0));
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0) << "block " << i;
    }
  });
}

// After a recorded forward only the root's own parameters wait for backward.
TEST(GatheredMemory, BetweenForwardAndBackwardIsTheRoot) {
  LabOptions options;
  options.widths = kWidths;
  OnEachMesh(options, [](Lab& lab) {
    for (int step = 0; step < 3; ++step) {
      const DTensor loss = lab.Loss(step);
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), RootBytes(lab));
      if (step < 2) Backward(loss);
    }
  });
}

TEST(GatheredMemory, AGraphThatIsDroppedReleasesWhatItsBackwardWouldHaveUsed) {
  OnEachMesh({}, [](Lab& lab) {
    for (int step = 0; step < 3; ++step) {
      DTensor a = lab.Loss(0), b = lab.Loss(1);
      a = DTensor();
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), RootBytes(lab));
      if (step == 1) Backward(b);
      b = DTensor();
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
      // As a forward that fails does, where no unit contains the place.
      EXPECT_THROW(
          {
            const DTensor loss = lab.Loss(2);
            throw std::runtime_error("after the model");
          },
          std::runtime_error);
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
    }
  });
}

// A block that no unit contains is no root: it is released after forward.
TEST(GatheredMemory, UnitsWithoutARootUnitAreReleasedToo) {
  LabOptions options;
  options.widths = kWidths;
  options.has_root_unit = false;
  OnEachMesh(options, [](Lab& lab) {
    Allocator& memory = *lab.mesh.context().allocator();
    for (int step = 0; step < 3; ++step) {
      memory.ResetPeaks();
      const DTensor loss = lab.Loss(step);
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
      Backward(loss);
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
      EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedGradients), 0);
      EXPECT_LE(lab.Peak(MemoryCategory::kUnshardedParameters), LargestPair(lab));
    }
  });
}

TEST(GatheredMemory, AnExplicitFalseKeepsUnitsWithoutABackwardToo) {
  LabOptions options;
  options.fsdp.reshard_after_forward = false;
  OnEachMesh(options, [](Lab& lab) {
    const int64_t all = GatheredBytes(lab, *lab.tower);
    {
      const NoGrad no_grad(lab.mesh);
      for (int i = 0; i < 3; ++i) {
        lab.Loss(i);
        EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), all);
      }
    }
    lab.Loss(3);  // Recorded, and its graph dropped.
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), all);
    Reshard(lab.block(1));
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters),
              all - GatheredBytes(lab, lab.block(1)));
    Unshard(*lab.tower);
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), all);
    Backward(lab.Loss(4));
    EXPECT_EQ(lab.Bytes(MemoryCategory::kUnshardedParameters), 0);
  });
}

}  // namespace
}  // namespace shardmesh::fsdp::testing
