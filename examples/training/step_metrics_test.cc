// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/step_metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/match.h"

namespace shardmesh::examples {
namespace {

StepMetrics Example() {
  StepMetrics metrics;
  metrics.step = 7;
  metrics.loss = 2.5;
  metrics.grad_norm = 0.75;
  metrics.lr = 0.001;
  metrics.tokens_per_s = 4096;
  metrics.step_ms = 500;
  metrics.peak_bytes = {1000, 1001};
  metrics.traffic = {{{"tp", "all_reduce", "linear"}, {.count = 2, .bytes = 64}},
                     {{"tp", "all_reduce", "embedding"}, {.count = 1, .bytes = 36}},
                     {{"dp+tp", "all_gather", "linear"}, {.count = 1, .bytes = 5}}};
  metrics.phases = {{"forward", 1.0}};
  return metrics;
}

TEST(StepMetrics, AreOneJsonObjectWithOpsAddedUp) {
  EXPECT_EQ(Example().ToJson(),
            R"({"step":7,"loss":2.5,"grad_norm":0.75,"lr":0.001,"tokens_per_s":4096.0,)"
            R"("step_ms":500.0,"peak_bytes":[1000,1001],"collectives":{)"
            R"("dp+tp":{"all_gather":{"count":1,"bytes":5}},)"
            R"("tp":{"all_reduce":{"count":3,"bytes":100}}}})");
}

TEST(StepMetrics, AreJsonWithoutCollectivesAndWithALossThatIsNoNumber) {
  StepMetrics metrics = Example();
  metrics.loss = std::nan("");
  metrics.traffic.clear();
  EXPECT_TRUE(absl::StrContains(metrics.ToJson(), R"("loss":null,)")) << metrics.ToJson();
  EXPECT_TRUE(absl::StrContains(metrics.ToJson(), R"("collectives":{}})")) << metrics.ToJson();
}

}  // namespace
}  // namespace shardmesh::examples
