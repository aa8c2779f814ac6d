// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh::examples {
namespace {

// p = {0.1, 0.2, 0.7}
const std::vector<double> kLogits = {std::log(1.0), std::log(2.0), std::log(7.0)};

TEST(PickIndex, CutsTheUnitIntervalByProbabilities) {
  const struct {
    double u;
    int64_t index;
  } kCases[] = {{0, 0}, {0.0999, 0}, {0.1001, 1}, {0.2999, 1}, {0.3001, 2}, {1 - 0x1p-53, 2}};
  for (const auto& c : kCases) EXPECT_EQ(PickIndex(kLogits, /*temperature=*/1, c.u), c.index);
}

TEST(PickIndex, SharpensAsTheTemperatureFalls) {
  EXPECT_EQ(PickIndex(kLogits, /*temperature=*/0.1, 0.05), 2);
  EXPECT_EQ(PickIndex(kLogits, /*temperature=*/100, 0.32), 0);
  EXPECT_EQ(PickIndex(kLogits, /*temperature=*/0, 0), 2);
}

TEST(PickIndex, TakesTheFirstOfTheLargest) {
  EXPECT_EQ(PickIndex(std::vector<double>{-3, 5, 5, 1}, /*temperature=*/0, 0.9), 1);
}

TEST(PickIndex, DoesNotOverflowAndStaysInRangeForLogitsThatAreNoNumbers) {
  EXPECT_EQ(PickIndex(std::vector<double>{1000, -1000}, /*temperature=*/0.01, 0.5), 0);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const int64_t index = PickIndex(std::vector<double>{nan, nan, nan}, /*temperature=*/1, 0.5);
  EXPECT_GE(index, 0);
  EXPECT_LT(index, 3);
}

// Its logits for the byte after b are largest at b + 1, and it knows nothing of other bytes.
class Successor : public nn::Module {
 public:
  explicit Successor(const DeviceMesh& mesh) {
    std::vector<float> table(256 * 256, 0.0f);
    for (int byte = 0; byte < 256; ++byte) table[byte * 256 + (byte + 1) % 256] = 10.0f;
    table_ =
        Distribute(mesh, Tensor::FromValues<float>(mesh.context(), {256, 256}, table), {Shard(0)});
  }

 protected:
  Outputs Forward(const Inputs& inputs) override { return Embedding(inputs[0], table_); }

 private:
  DTensor table_;
};

TEST(Sample, GoesOnFromTheLastByteAlsoBeyondOneSequence) {
  const absl::Status status = RunRanks(3, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"tp", 3}});
    Successor model(mesh);
    const auto sample = [&](std::string_view prompt, int64_t bytes, int64_t sequence) {
      const SampleOptions options = {.bytes = bytes, .sequence = sequence, .temperature = 0};
      return Sample(model, mesh, prompt, options, [] { return true; });
    };
    EXPECT_EQ(sample("xa", 7, 4), "bcdefgh");
    EXPECT_EQ(sample("a", 3, 1), "bcd");
    EXPECT_EQ(sample("much longer than a sequence: 0", 2, 5), "12");
    EXPECT_EQ(sample("\xfe", 2, 4), std::string("\xff\0", 2));
    EXPECT_EQ(sample("a", 0, 4), "");
    EXPECT_TRUE(model.training());
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Sample, EndsWhenAskedTo) {
  const absl::Status status = RunRanks(2, [](Communicator& world) {
    const DeviceMesh mesh = DeviceMesh::Create(world, {{"tp", 2}});
    Successor model(mesh);
    int asked = 0;
    const auto keep_going = [&] { return ++asked <= 2; };
    const SampleOptions options = {.bytes = 9, .sequence = 4, .temperature = 0};
    EXPECT_EQ(Sample(model, mesh, "a", options, keep_going), "bc");
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace shardmesh::examples
