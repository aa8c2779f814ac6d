// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tp/parallelize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/run_ranks.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/nn/embedding.h"
#include "shardmesh/nn/linear.h"
#include "shardmesh/nn/rms_norm.h"

namespace shardmesh::tp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Vector = std::vector<double>;

void OnRanks(const MeshShape& shape, const std::function<void(const DeviceMesh&)>& body) {
  const absl::Status status =
      RunRanks(static_cast<int>(shape.NumRanks()),
               [&](Communicator& world) { body(DeviceMesh::Create(world, shape)); });
  EXPECT_TRUE(status.ok()) << status;
}

/// Three linears, the last with its weight tied to an embedding.
class Net : public nn::Module {
 public:
  Net() {
    RegisterChild("embed", embed);
    RegisterChild("up", up);
    RegisterChild("norm", norm);
    RegisterChild("down", down);
    RegisterChild("head", head);
  }
  nn::Embedding embed{7, 4};
  nn::Linear up{4, 6, {.bias = true}};
  nn::RmsNorm norm{6};
  nn::Linear down{6, 4, {.bias = true}};
  nn::Linear head{embed.weight()};

 protected:
  Outputs Forward(const Inputs& x) override { return head(down(norm(up(embed(x[0]))))); }
};

std::string MessageOf(const std::function<void()>& call) {
  const absl::Status status = Catch(call);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

void ExpectUntouched(const nn::Module& module) {
  for (const nn::Parameter& parameter : module.Parameters()) {
    EXPECT_FALSE(parameter.IsPlaced()) << parameter.ToString();
  }
}

TEST(MatchesPattern, LetsAStarStandForPartOfAName) {
  const struct {
    std::string pattern, name;
    bool matches;
  } cases[] = {
      {"", "", true},
      {"", "a", false},
      {"a", "", false},
      {"a.b", "a.b", true},
      {"a.b", "a.bc", false},
      {"a.b", "a", false},
      {"a.*", "a.b", true},
      {"a.*", "a.", false},
      {"a.*", "a.b.c", false},
      {"*", "a.b", false},
      {"*", "", false},
      {"*.*", "a.b", true},
      {"layers.*.attn", "layers.12.attn", true},
      {"layers.*.attn", "layers.1.2.attn", false},
      {"layers.*.attn", "layers..attn", false},
      {"*_proj", "q_proj", true},
      {"*_proj", "_proj", false},
      {"l*r*", "layers", true},
      {"l*r*", "layer", false},
      {"a*a*a", "aaaaa", true},
      {"a*b", "aab.b", false},
  };
  for (const auto& [pattern, name, matches] : cases) {
    EXPECT_EQ(MatchesPattern(pattern, name), matches) << pattern << " | " << name;
  }
}

TEST(Parallelize, PlacesParametersByStyleAndReplicatesTheOthers) {
  OnRanks({{"dp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) {
    Net net;
    Parallelize(
        net, mesh, "tp",
        {{"embed", Rowwise()}, {"up", Colwise()}, {"down", Rowwise()}, {"head", Colwise()}});
    const auto expect = [](const nn::Parameter& parameter, const std::string& placements) {
      EXPECT_EQ(parameter.layout().PlacementsToString(), placements) << parameter.ToString();
    };
    expect(net.embed.weight(), "[R, S(0)]");
    expect(net.up.weight(), "[R, S(0)]");
    expect(net.up.bias(), "[R, S(0)]");
    expect(net.norm.own_parameters()[0].parameter, "[R, R]");
    expect(net.down.weight(), "[R, S(1)]");
    expect(net.down.bias(), "[R, R]");

    Net other;
    Parallelize(other, mesh, "dp", {{"embed", Colwise()}, {"*n", Colwise()}});
    expect(other.embed.weight(), "[S(1), R]");
    expect(other.down.weight(), "[S(0), R]");
    expect(other.up.weight(), "[R, R]");
  });
}

TEST(Parallelize, KeepsWhatOtherAxesDoAndMovesValues) {
  OnRanks({{"dp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) {
    Net net;
    nn::Parameter weight = net.up.weight();
    weight.Place(mesh, Layout::Make(mesh.shape(), {Shard(0), Replicate()}, weight.shape()));
    net.PlaceReplicated(mesh);
    net.Initialize(1);
    const Vector before = FullTensor(weight.data()).ToVector<double>();
    Parallelize(net, mesh, "tp", {{"up", Colwise()}});
    EXPECT_EQ(weight.layout().PlacementsToString(), "[S(0), S(0)]");
    EXPECT_EQ(FullTensor(weight.data()).ToVector<double>(), before);
  });
}

TEST(Parallelize, ByPartsKeepsWhatAnEarlierCallHasSharded) {
  for (const bool root_first : {false, true}) {
    OnRanks({{"tp", 2}}, [&](const DeviceMesh& mesh) {
      Net net;
      const auto part = [&] { Parallelize(net.up, mesh, "tp", {{"", Colwise()}}); };
      if (!root_first) part();
      Parallelize(net, mesh, "tp", {{"down", Rowwise()}});
      if (root_first) part();
      EXPECT_EQ(net.up.weight().layout().placement(0), Shard(0));
      EXPECT_EQ(net.up.bias().layout().placement(0), Shard(0));
      EXPECT_EQ(net.down.weight().layout().placement(0), Shard(1));
      EXPECT_EQ(net.embed.weight().layout().placement(0), Replicate());
      const std::string message = MessageOf([&] {
        Parallelize(net, mesh, "tp", {{"up", Rowwise()}});
      });
      EXPECT_THAT(message, AllOf(HasSubstr("the plan makes S(1) of parameter up.weight"),
                                 HasSubstr("which is S(0) along that axis already")));
      EXPECT_EQ(net.up.weight().layout().placement(0), Shard(0));
    });
  }
}

TEST(Parallelize, RefusesAPlanThatDoesNotFitAndChangesNothing) {
  OnRanks({{"dp", 1}, {"tp", 2}}, [](const DeviceMesh& mesh) {
    Net net;
    const auto message = [&](const Plan& plan) {
      const std::string text = MessageOf([&] { Parallelize(net, mesh, "tp", plan); });
      ExpectUntouched(net);
      return text;
    };
    const PlanEntry good = {"up", Colwise()};
    EXPECT_THAT(message({good, {"layers.*.wq", Colwise()}}),
                AllOf(HasSubstr("'layers.*.wq'"), HasSubstr("Colwise()"), HasSubstr("no module")));
    EXPECT_THAT(message({good, {"up.weight", Colwise()}}), HasSubstr("no module"));
    EXPECT_THAT(message({good, {"norm", Rowwise()}}),
                AllOf(HasSubstr("Rowwise(R) of norm"), HasSubstr("nn::Linear")));
    EXPECT_THAT(message({good, {"", Colwise()}}), HasSubstr("the module itself"));
    EXPECT_THAT(message({good, {"u*", Rowwise()}}),
                AllOf(HasSubstr("up"), HasSubstr("both Colwise() and Rowwise(R)")));
    EXPECT_THAT(message({{"embed", Colwise()}, {"head", Colwise()}}),
                AllOf(HasSubstr("Colwise() of head"), HasSubstr("S(0) for embed.weight"),
                      HasSubstr("makes S(1)")));
    EXPECT_THAT(message({{"up", nullptr}}), HasSubstr("no style"));
    EXPECT_THAT(MessageOf([&] { Parallelize(net, mesh, "cp", {good}); }),
                AllOf(HasSubstr("cp"), HasSubstr("[dp=1, tp=2]")));
    ExpectUntouched(net);

    const DeviceMesh line = mesh["tp"];
    nn::Parameter weight = net.down.weight();
    weight.Place(line, Layout::Replicated(line.shape(), weight.shape()));
    EXPECT_THAT(MessageOf([&] { Parallelize(net, mesh, "tp", {good}); }),
                AllOf(HasSubstr("down.weight"), HasSubstr("[dp=1, tp=2]")));
    EXPECT_FALSE(net.up.weight().IsPlaced());
  });
}

// Seen elsewhere: 8 ranks for 4 key-value heads of 128 end deep inside a reshape.
TEST(Parallelize, NamesTheHeadsThatTheAxisDoesNotDivide) {
  class Heads : public nn::Module {
   public:
    Heads() {
      RegisterChild("q_proj", q_proj);
      RegisterChild("k_proj", k_proj);
      RegisterChild("o_proj", o_proj);
    }
    nn::Linear q_proj{24, 8 * 128, {.output_heads = 8}};
    nn::Linear k_proj{24, 4 * 128, {.output_heads = 4}};
    nn::Linear o_proj{8 * 128, 24, {.input_heads = 8}};

   protected:
    Outputs Forward(const Inputs& x) override { return q_proj(x[0]); }
  };
  const Plan plan = {{"q_proj", Colwise()}, {"k_proj", Colwise()}, {"o_proj", Rowwise()}};
  OnRanks({{"tp", 8}}, [&](const DeviceMesh& mesh) {
    Heads module;
    EXPECT_THAT(MessageOf([&] { Parallelize(module, mesh, "tp", plan); }),
                AllOf(HasSubstr("k_proj"), HasSubstr("4 heads"), HasSubstr("axis tp of size 8")));
    ExpectUntouched(module);
  });
  OnRanks({{"tp", 3}}, [&](const DeviceMesh& mesh) {
    Heads module;
    EXPECT_THAT(MessageOf([&] { Parallelize(module, mesh, "tp", plan); }),
                AllOf(HasSubstr("q_proj"), HasSubstr("8 heads"), HasSubstr("size 3")));
    // Input heads count as well.
    EXPECT_THAT(MessageOf([&] {
                  Parallelize(module, mesh, "tp", {{"o_proj", Rowwise()}});
                }),
                AllOf(HasSubstr("o_proj"), HasSubstr("8 heads"), HasSubstr("size 3")));
    ExpectUntouched(module);
  });
}

// A bias added to each rank's product is added once a rank.
TEST(Rowwise, AddsTheBiasOnce) {
  for (const Placement& output : {Replicate(), Shard(0), Shard(-1)}) {
    OnRanks({{"tp", 2}}, [&](const DeviceMesh& mesh) {
      nn::Linear linear(4, 3, {.bias = true, .dtype = DType::kF64});
      Parallelize(linear, mesh, "tp", {{"", Rowwise(output)}});
      const auto set = [&](nn::Parameter parameter, const Vector& values) {
        const Tensor full = Tensor::FromValues<double>(mesh.context(), parameter.shape(), values);
        parameter.SetData(Distribute(mesh, full, {parameter.layout().placement(0)}));
      };
      set(linear.weight(), {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
      set(linear.bias(), {100, 200, 300});
      const Tensor x = Tensor::FromValues<double>(mesh.context(), {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
      CommTrace trace(mesh);
      const DTensor y = linear(Distribute(mesh, x, {Shard(1)}));
      EXPECT_EQ(trace.Count("tp", output.IsShard() ? "reduce_scatter" : "all_reduce"), 1)
          << trace.ToString();
      EXPECT_EQ(trace.Count(), 1) << trace.ToString();
      EXPECT_EQ(y.layout(), Layout::Make(mesh.shape(), {output}, {2, 3}));
      EXPECT_EQ(FullTensor(y).ToVector<double>(), (Vector{130, 270, 410, 170, 374, 578}));
      // d sum(y) / d bias counts rows, once.
      Backward(Sum(y));
      EXPECT_EQ(FullTensor(linear.bias().data().grad()).ToVector<double>(), (Vector{2, 2, 2}));
      EXPECT_EQ(FullTensor(linear.weight().data().grad()).ToVector<double>(),
                (Vector{6, 8, 10, 12, 6, 8, 10, 12, 6, 8, 10, 12}));
    });
  }
}

TEST(Colwise, LeavesItsOutputShardedUnlessTold) {
  OnRanks({{"dp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) {
    const std::vector<std::pair<StylePtr, std::string>> cases = {
        {Colwise(), "[S(0), S(2)]"},
        {Colwise(Replicate()), "[S(0), R]"},
        {Colwise(Shard(1)), "[S(0), S(1)]"},
    };
    for (const auto& [style, placements] : cases) {
      nn::Linear linear(4, 5);  // 3 and 2 columns.
      Parallelize(linear, mesh, "tp", {{"", style}});
      linear.Initialize(1);
      const DTensor x = Full(mesh, {3, 2, 4}, DType::kF32, 1, {Shard(0), Replicate()});
      CommTrace trace(mesh);
      EXPECT_EQ(linear(x).layout().PlacementsToString(), placements) << style->ToString();
      EXPECT_EQ(trace.Count("dp"), 0);
      EXPECT_EQ(trace.Count("tp"), placements == "[S(0), S(2)]" ? 0 : 1) << trace.ToString();
    }
  });
}

TEST(PrepareInput, SumsTheGradientOfAReplicatedInputOnce) {
  OnRanks({{"tp", 2}}, [](const DeviceMesh& mesh) {
    // Two column-parallel products of one input: two summands of its gradient on each rank.
    class Pair : public nn::Module {
     public:
      Pair() {
        RegisterChild("a", a);
        RegisterChild("b", b);
      }
      nn::Linear a{3, 4, {.dtype = DType::kF64}}, b{3, 5, {.dtype = DType::kF64}};

     protected:
      Outputs Forward(const Inputs& x) override {
        return Add(Sum(Square(a(x[0]))), Sum(Square(b(x[0]))));
      }
    } pair;
    Parallelize(pair, mesh, "tp",
                {{"", PrepareInput(Replicate())}, {"a", Colwise()}, {"b", Colwise()}});
    pair.Initialize(1);
    DTensor x = Full(mesh, {2, 3}, DType::kF64, 0.5, {Replicate()});
    x.SetRequiresGrad();
    // What reaches the module's input is the whole gradient, not a summand that goes on upwards.
    DTensor input = Mul(x, 1.0);
    input.RegisterGradHook([](const DTensor& gradient) {
      EXPECT_EQ(gradient.layout().PlacementsToString(), "[R]");
      return gradient;
    });
    const DTensor loss = pair(input);
    CommTrace trace(mesh);
    Backward(loss);
    EXPECT_EQ(trace.Count("tp", "all_reduce"), 1) << trace.ToString();
    EXPECT_EQ(trace.Count(), 1) << trace.ToString();
    Vector expected(6, 0);
    for (const nn::Linear* linear : {&pair.a, &pair.b}) {
      const Vector w = FullTensor(linear->weight().data()).ToVector<double>();
      for (size_t row = 0; row < w.size() / 3; ++row) {
        const double y = 0.5 * (w[3 * row] + w[3 * row + 1] + w[3 * row + 2]);
        for (int i = 0; i < 6; ++i) expected[i] += 2 * y * w[3 * row + i % 3];
      }
    }
    const Vector gradient = FullTensor(x.grad()).ToVector<double>();
    for (int i = 0; i < 6; ++i) EXPECT_NEAR(gradient[i], expected[i], 1e-15);
  });
}

TEST(PrepareInputs, MoveEachByPosition) {
  // Of three inputs, the second of which may be missing: two results.
  class Mixer : public nn::Module {
   protected:
    Outputs Forward(const Inputs& x) override {
      EXPECT_EQ(x[0].layout().PlacementsToString(), "[S(1)]");
      if (x[1]) {
        EXPECT_EQ(x[1].layout().PlacementsToString(), "[R]");
      }
      EXPECT_EQ(x[2].layout().PlacementsToString(), "[S(0)]");
      return {Mul(x[0], 2.0), x[2]};
    }
  };
  OnRanks({{"tp", 2}}, [](const DeviceMesh& mesh) {
    Mixer mixer;
    Parallelize(mixer, mesh, "tp",
                {{"", PrepareInputs({Shard(-1), Replicate(), std::nullopt})},
                 {"", PrepareOutputs({std::nullopt, Replicate()})}});
    const DTensor a = Full(mesh, {3, 5}, DType::kF64, 1.5, {Replicate()});
    const DTensor b = Full(mesh, {3, 5}, DType::kF64, -0.5, {Shard(0)});
    CommTrace trace(mesh);
    const nn::Outputs results = mixer.Call({a, b, b});
    EXPECT_EQ(results[0].layout().PlacementsToString(), "[S(1)]");
    EXPECT_EQ(results[1].layout().PlacementsToString(), "[R]");
    EXPECT_EQ(trace.Count("tp", "all_gather"), 2) << trace.ToString();
    EXPECT_EQ(trace.Count(), 2) << trace.ToString();
    mixer.Call({a, DTensor(), b});
    EXPECT_THAT(MessageOf([&] {
                  mixer.Call({a, b});
                }),
                HasSubstr("input of the module itself: there are 2, and the plan moves 3"));
    EXPECT_THAT(MessageOf([&] {
                  Mixer other;
                  Parallelize(other, mesh, "tp", {{"", PrepareInputs({std::nullopt, Shard(2)})}});
                  other.Call({a, b, b});
                }),
                HasSubstr("input 1 of the module itself"));
    EXPECT_EQ(PrepareInputs({Shard(-1), std::nullopt})->ToString(), "PrepareInputs(S(-1), -)");
  });
}

TEST(PrepareOutput, MovesTheOutput) {
  OnRanks({{"tp", 2}}, [](const DeviceMesh& mesh) {
    nn::RmsNorm norm(3);
    Parallelize(norm, mesh, "tp", {{"", Sequence()}, {"", PrepareOutput(Replicate())}});
    norm.Initialize(1);
    const DTensor y = norm(Full(mesh, {2, 5, 3}, DType::kF32, 2, {Replicate()}));
    EXPECT_EQ(y.layout().PlacementsToString(), "[R]");
    EXPECT_THAT(MessageOf([&] { norm(Full(mesh, {3}, DType::kF32, 2, {Replicate()})); }),
                HasSubstr("input of the module itself"));
  });
}

/// A style from outside: rows of a Linear's weight that are not to be split by the library's own.
class OwnStyle : public Style {
 public:
  std::vector<Placed> PlaceParameters(nn::Module& module, const std::string&, const DeviceMesh&,
                                      int) const override {
    return {{*module.FindOwnParameter("weight"), Shard(1)}};
  }
  void Apply(nn::Module& module, const std::string& name, const DeviceMesh&,
             int axis) const override {
    module.AddForwardHook([=](nn::Module&, const nn::Inputs&, nn::Outputs& outputs) {
      outputs[0] = MoveAxis(outputs[0], axis, Shard(-1), name);
    });
  }
  std::string ToString() const override { return "OwnStyle()"; }
};

TEST(SmallPartials, HalvesTheBytesOfABf16LayerForwardAndBackward) {
  OnRanks({{"tp", 2}}, [](const DeviceMesh& mesh) {
    for (const bool small : {false, true}) {
      nn::Linear down(6, 4, {.dtype = DType::kBF16}), up(4, 6, {.dtype = DType::kBF16});
      const auto style = [&](StylePtr plain) { return small ? SmallPartials(plain) : plain; };
      Parallelize(down, mesh, "tp", {{"", style(Rowwise())}});
      Parallelize(up, mesh, "tp", {{"", style(Colwise())}});
      down.Initialize(1);
      up.Initialize(2);
      const auto x = [&](int64_t features) {
        return Full(mesh, {5, features}, DType::kBF16, 0.5, {Replicate()}).SetRequiresGrad();
      };
      const int64_t element = small ? 2 : 4;
      {
        CommTrace trace(mesh);
        down(x(6));
        EXPECT_EQ(trace.Bytes("tp", "all_reduce"), 5 * 4 * element);
      }
      const DTensor y = up(x(4));
      CommTrace trace(mesh);
      Backward(y, Full(mesh, {5, 6}, DType::kBF16, 1.0, {Shard(1)}));
      EXPECT_EQ(trace.Bytes("tp", "all_reduce"), 5 * 4 * element);
    }
  });
}

TEST(SmallPartials, EndWithACallThatThrows) {
  OnRanks({{"tp", 2}}, [](const DeviceMesh& mesh) {
    nn::Linear down(6, 4, {.dtype = DType::kBF16});
    Parallelize(down, mesh, "tp", {{"", SmallPartials(Rowwise())}});
    down.Initialize(1);
    EXPECT_THAT(MessageOf([&] {
                  down(Zeros(mesh, {5, 7}, DType::kBF16, {Replicate()}));
                }),
                HasSubstr("linear"));
    const DTensor s = Sum(Zeros(mesh, {4}, DType::kBF16, {Shard(0)}));
    EXPECT_EQ(s.local().dtype(), DType::kF32);
  });
}

TEST(Style, MayBeTheUsersOwn) {
  OnRanks({{"tp", 2}}, [](const DeviceMesh& mesh) {
    nn::Linear linear(4, 6);
    Parallelize(linear, mesh, "tp", {{"", std::make_shared<OwnStyle>()}});
    linear.Initialize(1);
    EXPECT_EQ(linear.weight().layout().PlacementsToString(), "[S(1)]");
    const DTensor y = linear(Full(mesh, {3, 4}, DType::kF32, 1, {Shard(1)}));
    EXPECT_EQ(y.layout().PlacementsToString(), "[S(1)]");
  });
}

}  // namespace
}  // namespace shardmesh::tp
