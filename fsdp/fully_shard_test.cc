// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/fsdp/fully_shard.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/optim/adamw.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::fsdp {
namespace {

// x + down(tanh(up(x))), with extents that nothing divides.
class Block : public nn::Module {
 public:
  explicit Block(int64_t width) : up_(7, width, {.bias = true}), down_(width, 7, {.bias = true}) {
    RegisterChild("up", up_);
    RegisterChild("down", down_);
  }
  std::function<void()> in_forward = [] {};

 protected:
  Outputs Forward(const Inputs& x) override {
    in_forward();
    return Add(x[0], down_(Tanh(up_(x[0]))));
  }

 private:
  nn::Linear up_, down_;
};

class Tower : public nn::Module {
 public:
  explicit Tower(const std::vector<int64_t>& widths = {11, 5, 13}) : head_(7, 3, {.bias = true}) {
    for (size_t i = 0; i < widths.size(); ++i) {
      blocks.push_back(std::make_unique<Block>(widths[i]));
      RegisterChild("block" + std::to_string(i), *blocks.back());
    }
    RegisterChild("head", head_);
  }
  std::vector<std::unique_ptr<Block>> blocks;

 protected:
  Outputs Forward(const Inputs& x) override {
    DTensor y = x[0];
    for (auto& block : blocks) y = (*block)(y);
    return head_(y);
  }

 private:
  nn::Linear head_;
};

void Shard(Tower& tower, const DeviceMesh& mesh, const FullyShardOptions& options = {}) {
  FullyShardOptions root = options;
  for (auto& block : tower.blocks) FullyShard(*block, mesh, options);
  FullyShard(tower, mesh, root);
}

constexpr int64_t kRows = 6;

DTensor Batch(const DeviceMesh& mesh, int step, int64_t columns, DType dtype = DType::kF32) {
  std::vector<Placement> placements;
  for (const MeshAxis& axis : mesh.shape().axes()) {
    placements.push_back(axis.name == "tp" ? Replicate() : shardmesh::Shard(0));
  }
  return FromBoxes(mesh, {kRows, columns}, dtype, placements, [&](const Box& box, Tensor& local) {
    ops::RandomNormal(mesh.context(), {.seed = 77, .stream = static_cast<uint64_t>(step)},
                      {{kRows, columns}, box.begin}, 0.0, 1.0, local);
  });
}

DTensor LossOf(Tower& tower, const DeviceMesh& mesh, int step) {
  return MseLoss(tower(Batch(mesh, step, 7)), Batch(mesh, step + 1000, 3));
}

std::vector<float> Parameters(nn::Module& module) {
  std::vector<float> values;
  for (const nn::Parameter& parameter : module.Parameters()) {
    for (float value : FullTensor(parameter.data()).ToVector<float>()) values.push_back(value);
  }
  return values;
}

int64_t UnshardedBytes(const DeviceMesh& mesh) {
  return mesh.context().allocator()->stats(MemoryCategory::kUnshardedParameters).bytes;
}

void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

// One training step; returns the loss.
double Step(Tower& tower, const DeviceMesh& mesh, optim::AdamW& optimizer, int step) {
  const DTensor loss = LossOf(tower, mesh, step);
  Backward(loss);
  optimizer.Step();
  return Item(loss);
}

// What a rank sends on an axis of p ranks: gathers send the own box p - 1 times, a reduce-scatter
// all but the own box.
struct UnitBytes {
  int64_t gather = 0, scatter = 0, shard = 0;
};

UnitBytes BytesOf(const std::vector<nn::Parameter>& parameters, int p) {
  UnitBytes bytes;
  for (const nn::Parameter& parameter : parameters) {
    const int64_t own = parameter.data().local().Bytes();
    bytes.gather += (p - 1) * own;
    bytes.scatter += parameter.shape().NumElements() * 4 - own;
    bytes.shard += own;
  }
  return bytes;
}

TEST(FullyShard, SendsTwoGathersAndOneReduceScatterAUnit) {
  for (int p : {2, 3, 4}) {
    ExpectOk(RunRanks(p, [&](Communicator& world) {
      DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", p}});
      Tower tower;
      Shard(tower, mesh, {.reshard_after_forward = true});
      tower.Initialize(1);
      optim::AdamW optimizer(tower.Parameters());
      const UnitBytes bytes = BytesOf(tower.Parameters(), p);
      for (int step = 0; step < 3; ++step) {
        CommTrace trace(mesh);
        Backward(LossOf(tower, mesh, step));
        EXPECT_EQ(trace.Count("dp", "all_gather", "fsdp_gather"), 2 * 4);
        EXPECT_EQ(trace.Bytes("dp", "all_gather", "fsdp_gather"), 2 * bytes.gather);
        EXPECT_EQ(trace.Count("dp", "reduce_scatter"), 4);
        EXPECT_EQ(trace.Bytes("dp", "reduce_scatter"), bytes.scatter);
        optimizer.Step();
      }
    }));
  }
}

TEST(FullyShard, RootStaysGatheredByDefault) {
  ExpectOk(RunRanks(3, [&](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 3}});
    Tower tower;
    Shard(tower, mesh);
    tower.Initialize(1);
    UnitBytes blocks, root;
    for (auto& block : tower.blocks) {
      const UnitBytes bytes = BytesOf(block->Parameters(), 3);
      blocks.gather += bytes.gather;
      blocks.scatter += bytes.scatter;
    }
    const UnitBytes all = BytesOf(tower.Parameters(), 3);
    root.gather = all.gather - blocks.gather;
    for (int step = 0; step < 3; ++step) {
      CommTrace trace(mesh);
      Backward(LossOf(tower, mesh, step));
      EXPECT_EQ(trace.Count("dp", "all_gather", "fsdp_gather"), 2 * 3 + 1);
      EXPECT_EQ(trace.Bytes("dp", "all_gather", "fsdp_gather"), 2 * blocks.gather + root.gather);
      EXPECT_EQ(trace.Bytes("dp", "reduce_scatter"), all.scatter);
    }
  }));
}

TEST(FullyShard, HybridAddsOneBatchedAllReduceAUnit) {
  ExpectOk(RunRanks(4, [&](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp_replicate", 2}, {"dp", 2}});
    Tower tower;
    Shard(tower, mesh, {.reshard_after_forward = true});
    tower.Initialize(1);
    CommTrace trace(mesh);
    Backward(LossOf(tower, mesh, 0));
    EXPECT_EQ(trace.Count("dp", "reduce_scatter", "fsdp_reduce"), 4);
    EXPECT_EQ(trace.Count("dp_replicate", "all_reduce", "fsdp_reduce"), 4);
    // Sent by r = 2 ranks: each tensor's flattened elements in ceil-chunks, both ways.
    int64_t expected = 0;
    for (const nn::Parameter& parameter : tower.Parameters()) {
      const int64_t n = parameter.data().local().NumElements();
      const int64_t own = mesh.LocalRank("dp_replicate") == 0 ? (n + 1) / 2 : n - (n + 1) / 2;
      expected += 4 * ((n - own) + own);
    }
    EXPECT_EQ(trace.Bytes("dp_replicate", "all_reduce", "fsdp_reduce"), expected);
  }));
}

TEST(FullyShard, TrainsLikeOneRank) {
  std::vector<float> expected;
  ExpectOk(RunRanks(1, [&](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 1}});
    Tower tower;
    Shard(tower, mesh);
    tower.Initialize(1);
    optim::AdamW optimizer(tower.Parameters(), {.lr = 1e-2});
    for (int step = 0; step < 5; ++step) Step(tower, mesh, optimizer, step);
    expected = Parameters(tower);
  }));
  for (int p : {2, 3, 5, 8}) {  // 8 ranks, 6 rows: two ranks without rows.
    ExpectOk(RunRanks(p, [&](Communicator& world) {
      DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", p}});
      Tower tower;
      Shard(tower, mesh);
      tower.Initialize(1);
      optim::AdamW optimizer(tower.Parameters(), {.lr = 1e-2});
      for (int step = 0; step < 5; ++step) Step(tower, mesh, optimizer, step);
      const std::vector<float> actual = Parameters(tower);
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < actual.size(); ++i)
        EXPECT_NEAR(actual[i], expected[i], 2e-5) << p << " ranks";
    }));
  }
}

int64_t FullBytes(const std::vector<nn::Parameter>& parameters) {
  int64_t bytes = 0;
  for (const nn::Parameter& parameter : parameters) bytes += parameter.shape().NumElements() * 4;
  return bytes;
}

TEST(FullyShard, HoldsTheRootAndTheLargestAdjacentPairAtPeak) {
  ExpectOk(RunRanks(4, [&](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 4}});
    Tower tower({11, 5, 29, 13});
    Shard(tower, mesh);
    tower.Initialize(1);
    optim::AdamW optimizer(tower.Parameters());
    std::vector<int64_t> units;
    int64_t blocks = 0;
    for (auto& block : tower.blocks) units.push_back(FullBytes(block->Parameters()));
    for (int64_t unit : units) blocks += unit;
    int64_t pair = 0;
    for (size_t i = 0; i + 1 < units.size(); ++i) pair = std::max(pair, units[i] + units[i + 1]);
    const int64_t expected = FullBytes(tower.Parameters()) - blocks + pair;
    Allocator& memory = *mesh.context().allocator();
    std::mt19937 random(world.rank());
    for (auto& block : tower.blocks) {
      block->in_forward = [&random] {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      };
    }
    for (int step = 0; step < 6; ++step) {
      memory.ResetPeaks();
      Step(tower, mesh, optimizer, step);
      if (step < 2) continue;
      EXPECT_EQ(memory.stats(MemoryCategory::kUnshardedParameters).peak_bytes, expected);
      EXPECT_LE(memory.stats(MemoryCategory::kUnshardedGradients).peak_bytes, expected);
      EXPECT_EQ(memory.stats(MemoryCategory::kUnshardedParameters).bytes, 0);
      EXPECT_EQ(memory.stats(MemoryCategory::kUnshardedGradients).bytes, 0);
    }
  }));
}

TEST(FullyShard, CopiesNothingOnTheWay) {
  ExpectOk(RunRanks(3, [&](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 3}});
    Tower tower;
    Shard(tower, mesh);
    tower.Initialize(1);
    optim::AdamW optimizer(tower.Parameters());
    for (int step = 0; step < 3; ++step) Step(tower, mesh, optimizer, step);
    EXPECT_EQ(GetStagingStats(mesh).staging_bytes, 0);
    EXPECT_EQ(GetStagingStats(mesh).cast_bytes, 0);
    // A gradient hook of a gathered parameter needs the gradient as a tensor of its own, which is
    // then copied into the buffer.
    const nn::Parameter up = tower.blocks[0]->Parameters()[0];
    tower.blocks[0]->in_forward = [&] {
      DTensor(up.active()).RegisterGradHook([](const DTensor& grad) { return grad; });
    };
    Backward(LossOf(tower, mesh, 9));
    EXPECT_EQ(GetStagingStats(mesh).staging_bytes, up.shape().NumElements() * 4);
  }));
}

TEST(FullyShard, AccumulatesMicroBatchesWithoutCommunication) {
  ExpectOk(RunRanks(3, [&](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 3}});
    Tower one, two;
    Shard(one, mesh);
    Shard(two, mesh);
    one.Initialize(1);
    two.Initialize(1);
    for (int micro = 0; micro < 3; ++micro) Backward(LossOf(one, mesh, micro));
    for (int micro = 0; micro < 3; ++micro) {
      SetRequiresGradientSync(two, micro == 2);
      CommTrace trace(mesh);
      Backward(LossOf(two, mesh, micro));
      EXPECT_EQ(trace.Count("dp", "reduce_scatter"), micro == 2 ? 4 : 0);
      const int64_t held =
          mesh.context().allocator()->stats(MemoryCategory::kUnshardedGradients).bytes;
      EXPECT_EQ(held, micro == 2 ? 0 : FullBytes(two.Parameters()));
    }
    for (size_t i = 0; i < one.Parameters().size(); ++i) {
      const auto a = FullTensor(one.Parameters()[i].data().grad()).ToVector<float>();
      const auto b = FullTensor(two.Parameters()[i].data().grad()).ToVector<float>();
      for (size_t j = 0; j < a.size(); ++j) EXPECT_NEAR(a[j], b[j], 1e-6);
    }
  }));
}

// Makes a gradient hook of a value throw.
void ThrowInBackward(DTensor x) {
  x.RegisterGradHook([](const DTensor&) -> DTensor { throw std::runtime_error("in backward"); });
}

TEST(FullyShard, AnExceptionInAStepLeavesTheModuleUsable) {
  enum class Where { kForward, kBeginOfBackward, kMiddleOfBackward };
  for (const Where where : {Where::kForward, Where::kBeginOfBackward, Where::kMiddleOfBackward}) {
    ExpectOk(RunRanks(3, [&](Communicator& world) {
      DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 3}});
      Tower good, bad;
      Shard(good, mesh);
      Shard(bad, mesh);
      good.Initialize(1);
      bad.Initialize(1);
      optim::AdamW good_optimizer(good.Parameters()), bad_optimizer(bad.Parameters());
      for (int step = 0; step < 2; ++step) {
        Step(good, mesh, good_optimizer, step);
        Step(bad, mesh, bad_optimizer, step);
      }
      bool hook_outputs = false;
      bad.blocks[1]->AddForwardHook([&](nn::Module&, const nn::Inputs&, nn::Outputs& outputs) {
        if (hook_outputs) ThrowInBackward(outputs[0]);
      });
      if (where == Where::kBeginOfBackward) {
        DTensor x = Batch(mesh, 5, 7);
        x.SetRequiresGrad();
        DTensor y = (*bad.blocks[0])(x);  // Not the root: gathered by a tree of its own.
        (void)y;
        DTensor loss = LossOf(bad, mesh, 5);
        DTensor poisoned = Add(loss, Sum(Mul(x, 0.0)));
        ThrowInBackward(x);
        EXPECT_THROW(Backward(poisoned), std::runtime_error);
      } else if (where == Where::kMiddleOfBackward) {
        // The head and the last block have their gradients; theirs are under way to the shards.
        hook_outputs = true;
        const DTensor loss = LossOf(bad, mesh, 5);
        hook_outputs = false;
        EXPECT_THROW(Backward(loss), std::runtime_error);
        for (const nn::Parameter& parameter : bad.Parameters()) {
          EXPECT_FALSE(parameter.data().grad()) << parameter.name();
        }
      } else {
        bad.blocks[1]->in_forward = [] { throw std::runtime_error("in forward"); };
        EXPECT_THROW(LossOf(bad, mesh, 5), std::runtime_error);
        bad.blocks[1]->in_forward = [] {};
      }
      Step(good, mesh, good_optimizer, 2);
      Step(bad, mesh, bad_optimizer, 2);
      EXPECT_EQ(Parameters(bad), Parameters(good));
      Allocator& memory = *mesh.context().allocator();
      EXPECT_EQ(memory.stats(MemoryCategory::kUnshardedParameters).bytes, 0);
      EXPECT_EQ(memory.stats(MemoryCategory::kUnshardedGradients).bytes, 0);
    }));
  }
}

// Case 39: parameters without elements, without dims, with one element.
class Odd : public nn::Module {
 public:
  Odd() {
    for (const Dims& shape : {Dims{0, 3}, Dims{}, Dims{1}, Dims{5}}) {
      values_.push_back(RegisterParameter("p" + std::to_string(values_.size()), shape, DType::kF32,
                                          nn::Init::Normal(0, 1)));
    }
  }

 protected:
  Outputs Forward(const Inputs& x) override {
    DTensor y = Mul(x[0], values_[3].active());
    y = Add(Mul(y, values_[1].active()), values_[2].active());
    return Add(y, Sum(values_[0].active()));
  }

 private:
  std::vector<nn::Parameter> values_;
};

TEST(FullyShard, TrainsParametersWithoutElementsOrDims) {
  std::vector<float> expected;
  for (int p : {1, 2, 3}) {
    ExpectOk(RunRanks(p, [&](Communicator& world) {
      DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", p}});
      Odd odd;
      FullyShard(odd, mesh);
      odd.Initialize(3);
      optim::AdamW optimizer(odd.Parameters(), {.lr = 1e-2});
      for (int step = 0; step < 4; ++step) {
        Backward(Mean(Square(odd(Batch(mesh, step, 5)))));
        optimizer.Step();
      }
      const std::vector<float> actual = Parameters(odd);
      if (p == 1) {
        expected = actual;
      } else {
        ASSERT_EQ(actual.size(), expected.size());
        for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-5);
      }
    }));
  }
}

// Case 38: deferred initialisation gives every shard its own numbers, those of one device.
TEST(FullyShard, DeferredInitialisationMatchesOneDeviceBitForBit) {
  std::vector<std::vector<float>> by_mesh;
  for (int p : {1, 2}) {
    ExpectOk(RunRanks(p, [&](Communicator& world) {
      DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", p}});
      nn::Linear linear(4, 8);
      FullyShard(linear, mesh);
      linear.Initialize(5);
      const std::vector<float> full = FullTensor(linear.Parameters()[0].data()).ToVector<float>();
      if (world.rank() == 0) by_mesh.push_back(full);
    }));
  }
  EXPECT_EQ(by_mesh[0], by_mesh[1]);
  const std::vector<float>& full = by_mesh[0];
  EXPECT_NE(std::vector<float>(full.begin(), full.begin() + 16),
            std::vector<float>(full.begin() + 16, full.end()));
}

TEST(FullyShard, MixedPrecisionGathersHalfTheBytesAndReducesInF32) {
  ExpectOk(RunRanks(4, [&](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 4}});
    Tower tower;
    Shard(tower, mesh,
          {.mixed_precision = {.param_dtype = DType::kBF16}, .reshard_after_forward = true});
    tower.Initialize(1);
    tower.blocks[1]->in_forward = [&] {
      for (const nn::Parameter& parameter : tower.blocks[1]->Parameters())
        EXPECT_EQ(parameter.active().dtype(), DType::kBF16);
    };
    const UnitBytes bytes = BytesOf(tower.Parameters(), 4);
    CommTrace trace(mesh);
    Backward(Mean(Square(tower(Batch(mesh, 0, 7)))));
    EXPECT_EQ(trace.Bytes("dp", "all_gather", "fsdp_gather"),
              bytes.gather);  // Two gathers at half the bytes.
    EXPECT_EQ(trace.Bytes("dp", "reduce_scatter"), bytes.scatter);
    for (const nn::Parameter& parameter : tower.Parameters()) {
      EXPECT_EQ(parameter.data().dtype(), DType::kF32);
      EXPECT_EQ(parameter.data().grad().dtype(), DType::kF32);
    }
    EXPECT_EQ(GetStagingStats(mesh).staging_bytes, 0);
    EXPECT_EQ(GetStagingStats(mesh).cast_bytes, 2 * bytes.shard / 2);
  }));
}

// w times one number a rank: the gradient of w is the sum of these numbers.
class Scale : public nn::Module {
 public:
  Scale() : weight_(RegisterParameter("weight", {1, 1}, DType::kF32, nn::Init::Constant(1))) {}

 protected:
  Outputs Forward(const Inputs& x) override { return Linear(x[0], weight_.active()); }

 private:
  nn::Parameter weight_;
};

TEST(FullyShard, MixedPrecisionSumsOverRanksExactly) {
  ExpectOk(RunRanks(4, [&](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 4}});
    Scale scale;
    FullyShard(scale, mesh, {.mixed_precision = {.param_dtype = DType::kBF16}});
    scale.Initialize(1);
    const DTensor x = FromBoxes(
        mesh, {4, 1}, DType::kF32, {shardmesh::Shard(0)}, [](const Box& box, Tensor& local) {
          local.mutable_data<float>()[0] = box.begin[0] == 0 ? 1.0f : 0x1p-9f;
        });
    Backward(Sum(scale(x)));
    // In bf16, 1 + 2^-9 is 1.
    EXPECT_EQ(Item(scale.Parameters()[0].data().grad()), 1.0 + 3 * 0x1p-9);
  }));
}

TEST(FullyShard, MixedPrecisionKeepsUpdatesBelowABf16Step) {
  ExpectOk(RunRanks(2, [&](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}});
    Scale scale;
    FullyShard(scale, mesh, {.mixed_precision = {.param_dtype = DType::kBF16}});
    scale.Initialize(1);
    optim::AdamW optimizer(scale.Parameters(), {.lr = 1e-4, .weight_decay = 0});
    for (int step = 0; step < 3; ++step) {
      const DTensor x = Full(mesh, {2, 1}, DType::kF32, 1.5, {shardmesh::Shard(0)});
      Backward(Sum(scale(x)));
      optimizer.Step();
    }
    // Adam moves by lr a step; bf16 next to 1 has steps of 2^-8.
    EXPECT_NEAR(Item(scale.Parameters()[0].data()), 1.0 - 3e-4, 1e-6);
  }));
}

TEST(FullyShard, UsesNewValuesAfterAStepThatNoBackwardPreceded) {
  ExpectOk(RunRanks(2, [&](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}});
    Tower tower;
    Shard(tower, mesh);
    tower.Initialize(1);
    const DTensor recorded = LossOf(tower, mesh, 0);  // While it lives, the root stays gathered.
    EXPECT_GT(UnshardedBytes(mesh), 0);
    const double before = Item(recorded);
    for (const nn::Parameter& parameter : tower.Parameters()) {
      NoGrad no_grad(mesh);
      MulInPlace(parameter.data(), 0.5);
    }
    EXPECT_NE(Item(LossOf(tower, mesh, 0)), before);
    Tower fresh;
    Shard(fresh, mesh);
    fresh.Initialize(1);
    for (const nn::Parameter& parameter : fresh.Parameters()) {
      NoGrad no_grad(mesh);
      MulInPlace(parameter.data(), 0.5);
    }
    EXPECT_EQ(Item(LossOf(tower, mesh, 0)), Item(LossOf(fresh, mesh, 0)));
  }));
}

TEST(FullyShard, UsesWhatWasWrittenThroughAPointer) {
  ExpectOk(RunRanks(2, [&](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}});
    Tower by_pointer, by_op;
    std::vector<DTensor> recorded;  // While they live, the roots stay gathered.
    for (Tower* tower : {&by_pointer, &by_op}) {
      Shard(*tower, mesh);
      tower->Initialize(1);
      const int64_t before = UnshardedBytes(mesh);
      recorded.push_back(LossOf(*tower, mesh, 0));
      EXPECT_GT(UnshardedBytes(mesh), before);
    }
    for (const nn::Parameter& parameter : by_pointer.Parameters()) {
      const Tensor local = parameter.data().local();
      float* const elements = local.mutable_data<float>();
      for (int64_t i = 0; i < local.NumElements(); ++i) elements[i] *= 0.5f;
    }
    for (const nn::Parameter& parameter : by_op.Parameters()) {
      NoGrad no_grad(mesh);
      MulInPlace(parameter.data(), 0.5);
    }
    EXPECT_EQ(Item(LossOf(by_pointer, mesh, 0)), Item(LossOf(by_op, mesh, 0)));
  }));
}

// The weights that backward gathers again are not those that forward used.
TEST(FullyShard, RefusesABackwardAfterTheParametersChanged) {
  for (const bool bf16 : {false, true}) {
    ExpectOk(RunRanks(2, [&](Communicator& world) {
      DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}});
      Tower tower;
      FullyShardOptions options;
      if (bf16) options.mixed_precision.param_dtype = DType::kBF16;
      Shard(tower, mesh, options);
      tower.Initialize(1);
      const DTensor loss = Mean(Square(tower(Batch(mesh, 0, 7))));
      for (const nn::Parameter& parameter : tower.Parameters()) {
        NoGrad no_grad(mesh);
        MulInPlace(parameter.data(), 0.5);
      }
      EXPECT_THROW(Backward(loss), Error);
    }));
  }
}

TEST(FullyShard, RefusesWhatDoesNotFit) {
  ExpectOk(RunRanks(2, [&](Communicator& world) {
    DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}});
    Tower tower;
    FullyShard(*tower.blocks[0], mesh);
    EXPECT_THROW(FullyShard(*tower.blocks[0], mesh), Error);
  }));
}

}  // namespace
}  // namespace shardmesh::fsdp
