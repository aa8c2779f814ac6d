// SPDX-License-Identifier: Apache-2.0
//
// Activation checkpointing, against the plain call: the same bits of results and gradients, the
// memory that it promises, and an error where the second computation is not the first.
#include "shardmesh/dtensor/checkpoint.h"

#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/backward_region.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/saved_tensor_hooks.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Results = std::vector<DTensor>;

const MeshShape kOne = {{"dp", 1}};

struct MeshCase {
  MeshShape mesh;
  std::vector<Placement> x, w;
};
// Batches, a contraction and features are split; 7 rows and 5 columns divide by nothing.
const std::vector<MeshCase> kMeshCases = {
    {kOne, {Replicate()}, {Replicate()}},
    {{{"dp", 2}}, {Shard(0)}, {Replicate()}},
    {{{"dp", 3}}, {Shard(1)}, {Shard(1)}},
    {{{"dp", 2}, {"tp", 2}}, {Shard(0), Replicate()}, {Replicate(), Shard(0)}},
};

int64_t ActivationBytes(const DeviceMesh& mesh) {
  return mesh.context().allocator()->stats(MemoryCategory::kActivations).bytes;
}

std::vector<double> Full(const DTensor& x) { return FullTensor(x).ToVector<double>(); }
std::vector<double> FullGrad(const DTensor& leaf) { return Full(leaf.grad()); }

// A block with most kinds of saved values: operands, results, statistics, moved operands.
DTensor Block(const DTensor& x, const DTensor& w, const DTensor& scale) {
  const DTensor h = Linear(Tanh(Linear(RmsNorm(x, scale, 1e-5), w)), Transpose(w, 0, 1));
  return Add(x, Mul(Softmax(h, -1), LayerNorm(h, scale, scale, 1e-5)));
}

// Three blocks and a loss; `call` decides how each block is called.
using Call = std::function<DTensor(const std::function<DTensor(const DTensor&)>&, const DTensor&)>;
struct Numbers {
  std::vector<double> loss, x, w, scale;
  friend bool operator==(const Numbers&, const Numbers&) = default;
};
Numbers Train(const MeshCase& on, const Call& call) {
  Numbers numbers;
  OnMesh(on.mesh, [&](const DeviceMesh& mesh) {
    const DTensor x =
        Place(mesh, Layout::Make(mesh.shape(), on.x, {7, 5}), Values({7, 5}, 1)).SetRequiresGrad();
    const DTensor w =
        Place(mesh, Layout::Make(mesh.shape(), on.w, {6, 5}), Values({6, 5}, 2)).SetRequiresGrad();
    const DTensor scale =
        Place(mesh, Layout::Replicated(mesh.shape(), {5}), Values({5}, 3)).SetRequiresGrad();
    DTensor h = x;
    for (int i = 0; i < 3; ++i) h = call([&](const DTensor& in) { return Block(in, w, scale); }, h);
    const DTensor loss = Sum(Square(h));
    Backward(loss);
    const Numbers own = {Full(loss), FullGrad(x), FullGrad(w), FullGrad(scale)};
    if (mesh.WorldGroup().rank() == 0) numbers = own;
  });
  return numbers;
}

const Call kPlain = [](const auto& fn, const DTensor& x) { return fn(x); };
const Call kCheckpointed = [](const auto& fn, const DTensor& x) { return Checkpoint(fn, x); };

TEST(Checkpoint, GivesTheBitsOfThePlainCallOnEachMesh) {
  for (const MeshCase& on : kMeshCases) {
    const Numbers plain = Train(on, kPlain);
    EXPECT_EQ(plain.w.size(), 30u);
    EXPECT_EQ(Train(on, kCheckpointed), plain) << on.mesh.ToString();
    EXPECT_EQ(Train(on,
                    [](const auto& fn, const DTensor& x) {  // Nested, and in two parts.
                      return Checkpoint(
                          [&, fn](const DTensor& in) {
                            const DTensor h = Checkpoint(fn, in);
                            return Checkpoint([](const DTensor& y) { return Sin(y); }, h);
                          },
                          x);
                    }),
              Train(on, [](const auto& fn, const DTensor& x) { return Sin(fn(x)); }))
        << on.mesh.ToString();
    for (const char* kept : {"linear", "redistribute", "none"}) {
      EXPECT_EQ(Train(on,
                      [&](const auto& fn, const DTensor& x) {
                        return Checkpoint(
                            fn, x, {.keep = [=](std::string_view op) { return op == kept; }});
                      }),
                plain)
          << kept << on.mesh.ToString();
    }
  }
}

TEST(Checkpoint, KeepsTheInputsAloneUntilItsBackward) {
  constexpr int64_t kBytes = 8 * 7 * 5;
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Replicate()}, Values({7, 5}, 1)).SetRequiresGrad();
    const int64_t before = ActivationBytes(mesh);
    const auto five = [](const DTensor& in) {
      DTensor h = in;
      for (int i = 0; i < 5; ++i) h = Tanh(h);  // Saves its result.
      return h;
    };
    {
      const DTensor y = five(five(x));
      EXPECT_EQ(ActivationBytes(mesh) - before, 10 * kBytes);
    }
    DTensor y = Checkpoint(five, Checkpoint(five, x));
    EXPECT_EQ(ActivationBytes(mesh) - before, 2 * kBytes);  // The middle and the end.
    mesh.context().allocator()->ResetPeaks();
    y.RegisterGradHook([&](const DTensor& grad) {
      EXPECT_EQ(ActivationBytes(mesh) - before, 2 * kBytes + kBytes /* grad */);
      return grad;
    });
    const DTensor seed = Place(mesh, {Replicate()}, Values({7, 5}, 9));
    Backward(y, seed);
    // The middle, y, the seed and the hook's copy of it; five saved values; a gradient comes for
    // each that goes.
    const int64_t peak =
        mesh.context().allocator()->stats(MemoryCategory::kActivations).peak_bytes - before;
    EXPECT_LE(peak, (2 + 2 + 5 + 2) * kBytes);
    EXPECT_GE(peak, (2 + 1 + 5) * kBytes);
    y = DTensor();
    EXPECT_EQ(ActivationBytes(mesh) - before, kBytes);  // The seed.
  });
}

TEST(Checkpoint, OfAnOuterPartLetsGoTheInnerInputs) {
  constexpr int64_t kBytes = 8 * 7 * 5;
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Replicate()}, Values({7, 5}, 1)).SetRequiresGrad();
    const int64_t before = ActivationBytes(mesh);
    int calls = 0;
    const auto inner = [&](const DTensor& in) {
      ++calls;
      return Tanh(Tanh(in));
    };
    const auto outer = [&](const DTensor& in) {
      DTensor h = in;
      for (int i = 0; i < 4; ++i) h = Checkpoint(inner, h);
      return h;
    };
    const DTensor y = Checkpoint(outer, x);
    EXPECT_EQ(ActivationBytes(mesh) - before, kBytes);
    EXPECT_EQ(calls, 4);
    Backward(Sum(y));
    EXPECT_EQ(calls, 12);  // Forward, the outer part again, and each inner part again.
    EXPECT_EQ(ActivationBytes(mesh) - before, kBytes);
  });
}

TEST(Checkpoint, IsNotComputedAgainIfNothingNeedsIt) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Replicate()}, Values({7, 5}, 1)).SetRequiresGrad();
    int calls = 0;
    const auto fn = [&](const DTensor& in) {
      ++calls;
      return Add(in, Mul(in, 2.0));  // Saves nothing.
    };
    Backward(Sum(Checkpoint(fn, x)));
    EXPECT_EQ(calls, 1);
    {
      const DTensor dropped = Checkpoint([&](const DTensor& in) { return Exp(fn(in)); }, x);
    }
    EXPECT_EQ(calls, 2);
    const NoGrad no_grad(mesh);
    const int64_t before = ActivationBytes(mesh);
    Checkpoint(fn, x);
    EXPECT_EQ(ActivationBytes(mesh), before);
  });
}

TEST(Checkpoint, HasSeveralInputsAndResultsOfWhichSomeAreUnusedOrMissing) {
  const auto run = [](bool is_checkpointed) {
    std::vector<double> gradients;
    OnMesh(kOne, [&](const DeviceMesh& mesh) {
      const DTensor a = Place(mesh, {Replicate()}, Values({3, 2}, 4)).SetRequiresGrad();
      const DTensor b = Place(mesh, {Replicate()}, Values({3, 2}, 5));
      const DTensor c = Place(mesh, {Replicate()}, Values({3, 2}, 6)).SetRequiresGrad();
      const auto fn = [&](std::span<const DTensor> in) -> Results {
        EXPECT_FALSE(in[1]);
        return {Mul(in[0], in[2]), DTensor(), Exp(in[0]), Mul(Sin(in[2]), c), in[0]};
      };
      const std::vector<DTensor> inputs = {a, DTensor(), b};
      const Results results = is_checkpointed ? Checkpoint(fn, inputs) : fn(inputs);
      EXPECT_FALSE(results[1]);
      Backward(Sum(Add(Add(results[0], Mul(results[3], results[0])), results[4])));
      gradients = FullGrad(a);
      for (double g : FullGrad(c)) gradients.push_back(g);
      EXPECT_FALSE(b.grad());
    });
    return gradients;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Checkpoint, RunsGradientHooksOnceAndForwardSideEffectsOnce) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Replicate()}, Values({3, 2}, 4)).SetRequiresGrad();
    int hooks = 0, draws = 0, recomputed = 0;
    const auto fn = [&](const DTensor& in) {
      const int draw = OnceInCheckpoint(mesh, [&] { return ++draws; });
      OnceInCheckpoint(mesh, [&] { EXPECT_FALSE(IsRecomputing(mesh)); });
      recomputed += IsRecomputing(mesh);
      DTensor y = Tanh(Mul(in, static_cast<double>(draw)));
      y.RegisterGradHook([&](const DTensor& grad) {
        ++hooks;
        return grad;
      });
      return y;
    };
    DTensor h = Checkpoint(fn, x);
    h = Checkpoint([&](const DTensor& in) { return Checkpoint(fn, fn(in)); }, h);
    Backward(Sum(h));
    const std::vector<double> gradient = FullGrad(x);
    EXPECT_EQ(hooks, 3);
    EXPECT_EQ(draws, 3);
    EXPECT_EQ(recomputed, 1 + 2 + 1);
    EXPECT_FALSE(IsRecomputing(mesh));
    DTensor(x).ZeroGrad();
    Backward(Sum(Tanh(Mul(Tanh(Mul(Tanh(x), 2.0)), 3.0))));
    EXPECT_EQ(gradient, FullGrad(x));
  });
}

TEST(Checkpoint, KeepsWhatItIsToldToAndDoesNotComputeItAgain) {
  constexpr int64_t kBytes = 8 * 7 * 5;
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Replicate()}, Values({7, 5}, 1)).SetRequiresGrad();
    int calls = 0;
    const auto fn = [&](const DTensor& in) {
      const DTensor kept = KeepInCheckpoint(mesh, [&]() -> Results {
        ++calls;
        return {Exp(Tanh(in))};
      })[0];
      return Tanh(Tanh(kept));
    };
    const int64_t before = ActivationBytes(mesh);
    const DTensor y = Checkpoint(fn, x);
    EXPECT_EQ(ActivationBytes(mesh) - before, 3 * kBytes);  // Tanh, Exp and y.
    Backward(Sum(y));
    EXPECT_EQ(calls, 1);
    const std::vector<double> gradient = FullGrad(x);
    DTensor(x).ZeroGrad();
    Backward(Sum(fn(x)));
    EXPECT_EQ(gradient, FullGrad(x));

    // Within an outer part the kept values are computed again with that.
    calls = 0;
    DTensor(x).ZeroGrad();
    const int64_t now = ActivationBytes(mesh);
    const DTensor z =
        Checkpoint([&](const DTensor& in) { return Checkpoint(fn, Checkpoint(fn, in)); }, x);
    EXPECT_EQ(ActivationBytes(mesh) - now, kBytes);
    Backward(Sum(z));
    EXPECT_EQ(calls, 4);
    const std::vector<double> nested = FullGrad(x);
    DTensor(x).ZeroGrad();
    Backward(Sum(fn(fn(x))));
    EXPECT_EQ(nested, FullGrad(x));
  });
}

TEST(Checkpoint, KeepsCollectivesByPolicy) {
  OnMesh({{"dp", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({7, 5}, 1)).SetRequiresGrad();
    const auto fn = [](const DTensor& in) { return Tanh(Redistribute(Exp(in), {Replicate()})); };
    for (const bool keeps : {false, true}) {
      const DTensor y = Checkpoint(
          fn, x, {.keep = [=](std::string_view op) { return keeps && op == "redistribute"; }});
      const CommTrace trace(mesh);
      Backward(Sum(y));
      EXPECT_EQ(trace.Count("dp", "all_gather"), keeps ? 0 : 1) << trace.ToString();
    }
  });
}

TEST(Checkpoint, FollowsForwardWhateverIsFrozenByThen) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Replicate()}, Values({3, 4}, 1)).SetRequiresGrad();
    DTensor w = Place(mesh, {Replicate()}, Values({4, 4}, 2)).SetRequiresGrad();
    DTensor frozen = Place(mesh, {Replicate()}, Values({4, 4}, 3));
    const auto fn = [&](const DTensor& in) { return Linear(Linear(w, frozen), Tanh(in)); };
    const DTensor y = Checkpoint(fn, x);
    w.SetRequiresGrad(false);
    frozen.SetRequiresGrad();
    Backward(Sum(y));
    EXPECT_TRUE(w.grad());
    EXPECT_FALSE(frozen.grad());
    const std::vector<double> x_grad = FullGrad(x), w_grad = FullGrad(w);
    DTensor(x).ZeroGrad();
    w.ZeroGrad();
    w.SetRequiresGrad();
    Backward(Sum(fn(x)));
    EXPECT_EQ(FullGrad(x), x_grad);
    EXPECT_EQ(FullGrad(w), w_grad);
  });
}

TEST(Checkpoint, RefusesWhatWasWrittenInBetween) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    DTensor x = Place(mesh, {Replicate()}, Values({3, 2}, 4)).SetRequiresGrad();
    DTensor c = Place(mesh, {Replicate()}, Values({3, 2}, 5));
    const auto fn = [&](const DTensor& in) { return Tanh(Add(in, c)); };
    const auto write = [&](const DTensor& target) {
      const NoGrad no_grad(mesh);
      MulInPlace(target, 2.0);
    };
    DTensor y = Checkpoint(fn, x);
    write(c);  // Add saves nothing, so the plain call would not notice, nor need to.
    EXPECT_THAT(ErrorOf([&] { Backward(Sum(y)); }),
                AllOf(HasSubstr("add of"), HasSubstr("written in place after forward")));
    y = Checkpoint(fn, x);
    write(x);
    EXPECT_THAT(ErrorOf([&] { Backward(Sum(y)); }),
                AllOf(HasSubstr("checkpoint"), HasSubstr("written in place")));
    // A function that writes what it reads, and one that does so once.
    const auto counting = [&](bool once) {
      return Checkpoint(
          [&, once](const DTensor& in) {
            const DTensor z = fn(in);
            if (once) {
              OnceInCheckpoint(mesh, [&] { write(x.Detach()); });
            } else {
              write(c);
            }
            return z;
          },
          Mul(x, 1.0));
    };
    EXPECT_THAT(ErrorOf([&] { Backward(Sum(counting(false))); }), HasSubstr("OnceInCheckpoint"));
    EXPECT_FALSE(x.grad());
    Backward(Sum(counting(true)));
    EXPECT_TRUE(x.grad());
  });
}

TEST(Checkpoint, RefusesAnotherComputation) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Replicate()}, Values({4, 4}, 4)).SetRequiresGrad();
    int calls = 0;
    const auto expect = [&](const std::function<DTensor(const DTensor&, bool again)>& fn,
                            const std::string& what) {
      calls = 0;
      const DTensor y = Checkpoint([&, fn](const DTensor& in) { return fn(in, calls++ > 0); }, x);
      EXPECT_THAT(ErrorOf([&] { Backward(Sum(y)); }),
                  AllOf(HasSubstr(what), HasSubstr("unlike forward")));
      EXPECT_THAT(ErrorOf([&] { Backward(Sum(y)); }), HasSubstr("has failed before"));
    };
    expect([](const DTensor& in, bool again) { return again ? Sin(in) : Tanh(in); },
           "calls sin where it called tanh");
    expect([](const DTensor& in, bool again) { return Tanh(again ? Tanh(in) : in); }, "calls tanh");
    expect([](const DTensor& in, bool again) { return again ? Tanh(in) : Tanh(Tanh(in)); },
           "ends before tanh");
    expect([](const DTensor& in,
              bool again) { return Tanh(Slice(in, /*dim=*/0, /*start=*/0, again ? 2 : 3)); },
           "saves");
    expect(
        [&](const DTensor& in, bool again) {
          if (again) OnceInCheckpoint(mesh, [] { return 1; });
          return Tanh(in);
        },
        "one more value of OnceInCheckpoint");
    EXPECT_FALSE(x.grad());
    Backward(Sum(Tanh(x)));  // Nothing is left behind.
    EXPECT_TRUE(x.grad());
  });
}

TEST(Checkpoint, PassesOnWhatTheFunctionThrowsAndLeavesNothingBehind) {
  OnMesh({{"dp", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({5, 4}, 4)).SetRequiresGrad();
    const int64_t before = ActivationBytes(mesh);
    for (const int failing_call : {1, 2}) {
      int calls = 0;
      const auto fn = [&](const DTensor& in) {
        const DTensor y = Tanh(in);
        if (++calls == failing_call) throw std::runtime_error("in the function");
        return Tanh(y);
      };
      EXPECT_THROW(Backward(Sum(Checkpoint(fn, x))), std::runtime_error);
      EXPECT_EQ(calls, failing_call);
      EXPECT_FALSE(IsRecomputing(mesh));
      EXPECT_EQ(ActivationBytes(mesh), before);
      EXPECT_FALSE(x.grad());
    }
    Backward(Sum(Checkpoint([](const DTensor& in) { return Tanh(in); }, x)));
    EXPECT_TRUE(x.grad());
  });
}

TEST(Checkpoint, RefusesMisuse) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Replicate()}, Values({3, 2}, 4)).SetRequiresGrad();
    EXPECT_THAT(ErrorOf([&] { Checkpoint(std::function<DTensor(const DTensor&)>(), x); }),
                HasSubstr("empty"));
    EXPECT_THAT(ErrorOf([&] {
                  Checkpoint([](std::span<const DTensor>) { return Results(); },
                             std::vector<DTensor>{DTensor()});
                }),
                HasSubstr("none of the inputs"));
    const DTensor leaf = Place(mesh, {Replicate()}, Values({3, 2}, 5)).SetRequiresGrad();
    EXPECT_THAT(ErrorOf([&] {
                  Checkpoint(
                      [&](const DTensor& in) {
                        Backward(Sum(Tanh(leaf)));
                        return Tanh(in);
                      },
                      x);
                }),
                HasSubstr("within a function that Checkpoint calls"));
  });
}

// ---- regions ------------------------------------------------------------------------------------

class LoggedRegion : public BackwardRegion {
 public:
  LoggedRegion(std::string name, std::vector<std::string>& log)
      : name_(std::move(name)), log_(log) {}
  void Expect() override {}
  void Enter(BackwardRegion*) override { log_.push_back("enter " + name_); }
  void Leave() override { log_.push_back("leave " + name_); }
  std::shared_ptr<void> Resume() override {
    log_.push_back("resume " + name_);
    return std::shared_ptr<void>(nullptr, [this](void*) { log_.push_back("pause " + name_); });
  }

 private:
  std::string name_;
  std::vector<std::string>& log_;
};

TEST(Checkpoint, ResumesTheRegionsAroundItWithinTheirBackward) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Replicate()}, Values({3, 2}, 4)).SetRequiresGrad();
    std::vector<std::string> log;
    DTensor y;
    {
      const BackwardRegionScope outer(mesh, std::make_shared<LoggedRegion>("outer", log));
      const BackwardRegionScope inner(mesh, std::make_shared<LoggedRegion>("inner", log));
      y = Checkpoint(
          [&](const DTensor& in) {
            log.push_back("call");
            return Tanh(in);
          },
          x);
    }
    Backward(Sum(y));
    EXPECT_THAT(log, ::testing::ElementsAre("call", "enter outer", "enter inner", "resume outer",
                                            "resume inner", "call", "pause inner", "pause outer",
                                            "leave inner", "leave outer"));
  });
}

// ---- hooks of saved tensors ---------------------------------------------------------------------

// Moves saved values out of the account of tensors.
class ToVectors : public SavedTensorHooks {
 public:
  struct Packed : PackedTensor {
    DTensor Unpack(const char*) override {
      ++*unpacked;
      const Tensor local =
          Tensor::FromValues<double>(mesh.context(), shape, std::span<const double>(values));
      return DTensor(mesh, layout, local);
    }
    DeviceMesh mesh;
    Layout layout;
    Dims shape;
    std::vector<double> values;
    std::shared_ptr<int> unpacked;
  };
  std::shared_ptr<PackedTensor> Pack(const DTensor& value) override {
    ++packed;
    if (value.dtype() != DType::kF64) return nullptr;
    auto result = std::make_shared<Packed>();
    result->mesh = value.mesh();
    result->layout = value.layout();
    result->shape = value.local().shape();
    result->values = value.local().ToVector<double>();
    result->unpacked = unpacked;
    return result;
  }
  int packed = 0;
  const std::shared_ptr<int> unpacked = std::make_shared<int>(0);
};

TEST(SavedTensorHooks, PackWhatForwardSavesAndUnpackItInBackward) {
  for (const MeshCase& on : kMeshCases) {
    const Numbers plain = Train(on, kPlain);
    const Numbers packed = Train(on, [](const auto& fn, const DTensor& x) {
      const auto hooks = std::make_shared<ToVectors>();
      DTensor y;
      {
        const SavedTensorHooksScope scope(x.mesh(), hooks);
        y = fn(x);
      }
      EXPECT_GT(hooks->packed, 5);
      EXPECT_EQ(*hooks->unpacked, 0);
      return y;
    });
    EXPECT_EQ(packed, plain) << on.mesh.ToString();
  }
}

}  // namespace
}  // namespace shardmesh::testing
