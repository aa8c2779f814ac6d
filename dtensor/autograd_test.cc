// SPDX-License-Identifier: Apache-2.0
//
// The autograd engine: what reaches leaves, when, and what is refused. That each op's gradient is
// right is proved in rule_validator_test.cc.
#include "shardmesh/dtensor/autograd.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const MeshShape kOne = {{"one", 1}};
const MeshShape kTwo = {{"x", 2}};

std::vector<double> Times(const GlobalValue& value, double factor) {
  std::vector<double> result = value.values;
  for (double& v : result) v *= factor;
  return result;
}

std::vector<double> FullGrad(const DTensor& leaf) {
  return FullTensor(leaf.grad()).ToVector<double>();
}

// ---- leaves -------------------------------------------------------------------------------------

TEST(Backward, DeliversInTheLayoutOfTheLeaf) {
  const MeshShape mesh_shape = {{"x", 2}, {"y", 2}};
  const GlobalValue x = Values({5, 3}, 1), factor = Values({5, 3}, 2);
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    for (const Layout& layout : AllLayouts(mesh_shape, x.shape, {ReduceOp::kSum, ReduceOp::kMax})) {
      const DTensor leaf = Place(mesh, layout, x).SetRequiresGrad();
      Backward(Sum(Mul(leaf, Place(mesh, {Replicate(), Replicate()}, factor))));
      ASSERT_TRUE(leaf.grad()) << layout;
      EXPECT_EQ(leaf.grad().layout(), layout.PartialAsReplicate());
      EXPECT_EQ(leaf.grad().local().ToVector<double>(), BoxOf(factor, leaf.LocalBox())) << layout;
    }
  });
}

TEST(Backward, AddsToWhatIsThereAlready) {
  const GlobalValue x = Values({5, 3}, 3), a = Values({5, 3}, 4), b = Values({5, 3}, 5);
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    DTensor leaf = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
    const auto run = [&](const GlobalValue& factor) {
      Backward(Sum(Mul(leaf, Place(mesh, {Shard(1)}, factor))));
    };
    run(a);
    EXPECT_EQ(FullGrad(leaf), a.values);
    run(b);
    std::vector<double> sum = a.values;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += b.values[i];
    EXPECT_EQ(FullGrad(leaf), sum);
    leaf.ZeroGrad();
    EXPECT_FALSE(leaf.grad());
    run(b);
    EXPECT_EQ(FullGrad(leaf), b.values);
  });
}

TEST(Backward, SumsTheUsesOfOneValueWhateverTheirLayouts) {
  const GlobalValue x = Values({6, 6}, 6), w = Values({6, 6}, 7);
  Pieces expected;
  const auto run = [&](const DeviceMesh& mesh, const Placement& px, const Placement& pw) {
    const DTensor leaf = Place(mesh, {px}, x).SetRequiresGrad();
    const DTensor weight = Place(mesh, {pw}, w);
    const DTensor y = Add(Add(MatMul(leaf, weight), MatMul(weight, leaf)),
                          Add(Mul(leaf, leaf), Transpose(leaf, 0, 1)));
    Backward(Sum(Mul(y, weight)));
    return leaf.grad();
  };
  OnMesh(kOne, [&](const DeviceMesh& mesh) { expected.Put(run(mesh, Replicate(), Replicate())); });
  const std::vector<Placement> placements = {Replicate(), Shard(0), Shard(1), Partial()};
  for (const Placement& px : placements) {
    for (const Placement& pw : placements) {
      Pieces pieces;
      OnMesh({{"x", 4}}, [&](const DeviceMesh& mesh) { pieces.Put(run(mesh, px, pw)); });
      EXPECT_TRUE(pieces.AreOf(expected.Value(), 1e-12)) << px << " " << pw;
    }
  }
}

TEST(Backward, GivesTheLeafAGradientOfItsDType) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      GlobalValue value = Values({5, 3}, 8);
      value.dtype = dtype;
      const DTensor leaf = Place(mesh, {Shard(0)}, value).SetRequiresGrad();
      Backward(Sum(Cast(Square(leaf), DType::kF32)));
      EXPECT_EQ(leaf.grad().dtype(), dtype);
    }
  });
}

TEST(Backward, OwnsTheGradientsMemory) {
  // The gradient of x in sum(x) is one number seen many times, and may be that of another leaf too.
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor a = Place(mesh, {Replicate()}, Values({3}, 9)).SetRequiresGrad();
    const DTensor b = Place(mesh, {Replicate()}, Values({3}, 10)).SetRequiresGrad();
    Backward(Sum(Add(a, b)));
    MulInPlace(a.grad(), 3.0);
    EXPECT_THAT(FullGrad(a), ElementsAre(3, 3, 3));
    EXPECT_THAT(FullGrad(b), ElementsAre(1, 1, 1));
  });
}

TEST(Backward, OfALeafItselfIsItsGradient) {
  const GlobalValue x = Values({5}, 11), g = Values({5}, 12);
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
    int calls = 0;
    DTensor(leaf).RegisterGradHook([&](const DTensor& grad) {
      ++calls;
      return Mul(grad, 2.0);
    });
    Backward(leaf, Place(mesh, {Partial()}, g));
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(leaf.grad().layout(), leaf.layout());
    EXPECT_EQ(FullGrad(leaf), Times(g, 2));
  });
}

TEST(Backward, FreesWhatTheGraphHasSaved) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const auto held = [&] {
      return mesh.context().allocator()->stats(MemoryCategory::kActivations).bytes;
    };
    const DTensor leaf = Place(mesh, {Replicate()}, Values({64, 64}, 13)).SetRequiresGrad();
    const int64_t before = held();
    DTensor y = leaf;
    for (int i = 0; i < 10; ++i) y = Tanh(y);
    const DTensor loss = Sum(y);
    EXPECT_GT(held(), before + 10 * 64 * 64 * 8);
    y = DTensor();
    Backward(loss);
    EXPECT_LE(held(), before + 64);  // The loss itself.
  });
}

TEST(Backward, RunsThroughLongChainsAndDropsThem) {
  // Destroyed one within the other, these would overflow the stack.
  constexpr int kLength = 200'000;
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Replicate()}, Values({1}, 14)).SetRequiresGrad();
    const auto chain = [&] {
      DTensor y = leaf;
      for (int i = 0; i < kLength; ++i) y = Add(y, 1.0);
      return y;
    };
    { const DTensor dropped = chain(); }
    Backward(chain());
    EXPECT_THAT(FullGrad(leaf), ElementsAre(1));
  });
}

// ---- hooks --------------------------------------------------------------------------------------

TEST(GradHook, SeesTheCompleteGradientOnceAndReplacesIt) {
  const GlobalValue x = Values({5, 3}, 15);
  for (const Placement& placement : {Replicate(), Shard(0), Shard(1), Partial()}) {
    OnMesh(kTwo, [&](const DeviceMesh& mesh) {
      const DTensor leaf = Place(mesh, {placement}, x).SetRequiresGrad();
      const DTensor middle = Mul(leaf, 3.0);
      std::vector<double> seen_at_middle, seen_at_leaf;
      int calls = 0;
      DTensor(middle).RegisterGradHook([&](const DTensor& grad) {
        ++calls;
        seen_at_middle = FullTensor(grad).ToVector<double>();
        return Mul(grad, 10.0);
      });
      DTensor(leaf).RegisterGradHook([&](const DTensor& grad) {
        ++calls;
        seen_at_leaf = FullTensor(grad).ToVector<double>();
        return Neg(grad);
      });
      // d/dm (m * 2 + m + sum over m of m's uses) = 2 + 1 + 4.
      Backward(Sum(Add(Add(Mul(middle, 2.0), middle), Mul(middle, 4.0))));
      EXPECT_EQ(calls, 2);
      EXPECT_EQ(seen_at_middle, std::vector<double>(15, 7));
      EXPECT_EQ(seen_at_leaf, std::vector<double>(15, 210));
      EXPECT_EQ(FullGrad(leaf), std::vector<double>(15, -210));
    });
  }
}

TEST(GradHook, OnAValueOfWhichNoGradientComesIsNotCalled) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Replicate()}, Values({3}, 16)).SetRequiresGrad();
    const DTensor unused = Exp(leaf);
    DTensor(unused).RegisterGradHook([](const DTensor& grad) {
      ADD_FAILURE();
      return grad;
    });
    Backward(Sum(leaf));
    EXPECT_EQ(FullGrad(leaf), std::vector<double>(3, 1));
    EXPECT_THAT(
        ErrorOf([&] { leaf.Detach().RegisterGradHook([](const DTensor& grad) { return grad; }); }),
        HasSubstr("requires no gradient"));
  });
}

TEST(GradHook, MustReturnAGradientThatFits) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    for (const bool at_leaf : {true, false}) {
      for (const bool empty : {true, false}) {
        const DTensor leaf = Place(mesh, {Shard(0)}, Values({5, 3}, 17)).SetRequiresGrad();
        const DTensor y = Exp(leaf);
        DTensor(at_leaf ? leaf : y).RegisterGradHook([&](const DTensor& grad) {
          return empty ? DTensor() : Sum(grad);
        });
        EXPECT_THAT(ErrorOf([&] { Backward(Sum(y)); }),
                    AllOf(HasSubstr("hook"), HasSubstr("[5,3]")));
        EXPECT_FALSE(leaf.grad());
      }
    }
  });
}

TEST(GradHook, ThatThrowsLeavesNoGradientBehindAndTheNextBackwardIsRight) {
  const GlobalValue x = Values({5, 3}, 18), w = Values({3, 7}, 19);
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    DTensor first = Place(mesh, {Shard(0)}, x).SetRequiresGrad();
    DTensor second = Place(mesh, {Shard(1)}, w).SetRequiresGrad();
    bool fails = true;
    const auto run = [&] {
      const DTensor left = Mul(first, 2.0);  // Made first, so met last in backward.
      DTensor(left).RegisterGradHook([&](const DTensor& grad) {
        if (fails) throw std::runtime_error("by the hook");
        return grad;
      });
      Backward(Sum(Square(MatMul(left, second))));
    };
    EXPECT_THROW(run(), std::runtime_error);
    EXPECT_FALSE(first.grad());
    EXPECT_FALSE(second.grad());
    fails = false;
    run();
    Pieces().Put(first.grad());
    const std::vector<double> after_a_failure = FullGrad(first), other = FullGrad(second);
    first.ZeroGrad();
    second.ZeroGrad();
    run();
    EXPECT_EQ(FullGrad(first), after_a_failure);
    EXPECT_EQ(FullGrad(second), other);
    // Recording goes on too.
    EXPECT_TRUE(Mul(first, 2.0).RequiresGrad());
  });
}

// ---- what is refused ----------------------------------------------------------------------------

TEST(Backward, RefusesWhatItCannotDifferentiate) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Shard(0)}, Values({5, 3}, 20)).SetRequiresGrad();
    EXPECT_THAT(ErrorOf([&] { Backward(Exp(leaf)); }),
                AllOf(HasSubstr("one element"), HasSubstr("f64[5,3] [S(0)]")));
    EXPECT_THAT(ErrorOf([&] { Backward(Sum(leaf.Detach())); }),
                HasSubstr("does not depend on a tensor that requires"));
    EXPECT_THAT(ErrorOf([&] { Backward(DTensor()); }), HasSubstr("no tensor"));
    EXPECT_THAT(ErrorOf([&] {
                  Backward(Exp(leaf), Place(mesh, {Shard(0)}, Values({3, 5}, 1)));
                }),
                HasSubstr("f64[3,5]"));
    GlobalValue f32 = Values({5, 3}, 1);
    f32.dtype = DType::kF32;
    EXPECT_THAT(ErrorOf([&] { Backward(Exp(leaf), Place(mesh, {Shard(0)}, f32)); }),
                HasSubstr("f32[5,3]"));
    EXPECT_FALSE(leaf.grad());
  });
}

TEST(Backward, RefusesAGraphThatWasUsed) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Shard(0)}, Values({5}, 21)).SetRequiresGrad();
    const DTensor shared = Exp(leaf);
    const DTensor loss = Sum(shared);
    Backward(loss);
    EXPECT_THAT(ErrorOf([&] { Backward(loss); }),
                AllOf(HasSubstr("sum"), HasSubstr("earlier Backward")));
    const std::vector<double> before = FullGrad(leaf);
    EXPECT_THAT(ErrorOf([&] { Backward(Sum(Square(shared))); }),
                AllOf(HasSubstr("exp"), HasSubstr("run forward again")));
    EXPECT_EQ(FullGrad(leaf), before);
  });
}

TEST(Backward, RefusesASavedValueThatWasWrittenSince) {
  struct Row {
    const char* op;
    DTensor (*run)(const DTensor& leaf, const DTensor& other);
  };
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    for (const Row& row : std::vector<Row>{
             {"mul", [](const DTensor&x, const DTensor&y) { return Mul(x, y); }},
             {"div", [](const DTensor&x, const DTensor&y) { return Div(x, y); }},
             {"matmul", [](const DTensor&x, const DTensor&y) { return MatMul(x, y); }},
             {"linear", [](const DTensor&x, const DTensor&y) { return Linear(x, y); }},
             {"maximum", [](const DTensor&x, const DTensor&y) { return Maximum(x, y); }},
             {"silu_mul", [](const DTensor&x, const DTensor&y) { return SiluMul(x, y); }}}) {
      const DTensor leaf = Place(mesh, {Replicate()}, Values({3, 3}, 22)).SetRequiresGrad();
      const DTensor other = Place(mesh, {Replicate()}, Values({3, 3}, 23));
      const DTensor loss = Sum(row.run(leaf, other));
      MulInPlace(other, 2.0);
      EXPECT_THAT(ErrorOf([&] { Backward(loss); }),
                  AllOf(HasSubstr(row.op), HasSubstr("written in place"), HasSubstr("f64[3,3]")));
      EXPECT_FALSE(leaf.grad());
    }
    // By any in-place op, through a view, and where the result is what was saved.
    const DTensor leaf = Place(mesh, {Replicate()}, Values({4}, 24)).SetRequiresGrad();
    for (int how = 0; how < 5; ++how) {
      const DTensor y = Exp(leaf);
      const DTensor loss = Sum(y);
      const NoGrad no_grad(mesh);
      if (how == 0) FillInPlace(y, 0);
      if (how == 1) CopyInPlace(y, leaf);
      if (how == 2) AddInPlace(y, leaf);
      if (how == 3) MulInPlace(Slice(y, 0, 1, 2), 3.0);
      if (how == 4) FillInPlace(Reshape(y, {2, 2}), 1);
      EXPECT_THAT(ErrorOf([&] { Backward(loss); }), HasSubstr("exp")) << how;
    }
    EXPECT_FALSE(leaf.grad());
  });
}

TEST(Backward, AllowsWritingWhatNoFormulaNeeds) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Shard(0)}, Values({4}, 25)).SetRequiresGrad();
    const DTensor other = Place(mesh, {Shard(0)}, Values({4}, 26));
    const DTensor loss = Sum(Add(Mul(leaf, 3.0), other));
    FillInPlace(other, 0);
    Backward(loss);
    EXPECT_EQ(FullGrad(leaf), std::vector<double>(4, 3));
  });
}

TEST(Backward, MayNotRunWithinAnother) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Replicate()}, Values({4}, 27)).SetRequiresGrad();
    const DTensor y = Exp(leaf), other = Sum(Square(leaf));
    DTensor(y).RegisterGradHook([&](const DTensor& grad) {
      Backward(other);
      return grad;
    });
    EXPECT_THAT(ErrorOf([&] { Backward(Sum(y)); }), HasSubstr("within a Backward"));
    EXPECT_FALSE(leaf.grad());
    Backward(other);
    EXPECT_TRUE(leaf.grad());
  });
}

TEST(Backward, RefusesAGradientOfAnotherMesh) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Shard(0)}, Values({4}, 28)).SetRequiresGrad();
    const DeviceMesh renamed = mesh.Unflatten("x", {{"a", 1}, {"b", 2}});
    const DTensor grad = Place(renamed, {Replicate(), Shard(0)}, Values({4}, 29));
    EXPECT_THAT(ErrorOf([&] { Backward(Exp(leaf), grad); }), HasSubstr("mesh"));
  });
}

TEST(SetGrad, TakesOnlyWhatFits) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    DTensor leaf = Place(mesh, {Shard(0)}, Values({5, 3}, 30)).SetRequiresGrad();
    EXPECT_THAT(ErrorOf([&] {
                  leaf.SetGrad(Place(mesh, {Shard(1)}, Values({5, 3}, 1)));
                }),
                HasSubstr("[S(1)]"));
    EXPECT_THAT(ErrorOf([&] {
                  leaf.SetGrad(Place(mesh, {Shard(0)}, Values({3, 5}, 1)));
                }),
                HasSubstr("[3,5]"));
    GlobalValue f32 = Values({5, 3}, 31);
    f32.dtype = DType::kF32;
    EXPECT_THAT(ErrorOf([&] { leaf.SetGrad(Place(mesh, {Shard(0)}, f32)); }),
                HasSubstr("f32[5,3]"));
    EXPECT_FALSE(leaf.grad());
    const GlobalValue start = Values({5, 3}, 32);
    leaf.SetGrad(Place(mesh, {Shard(0)}, start));
    Backward(Sum(leaf));
    std::vector<double> expected = start.values;
    for (double& v : expected) v += 1;
    EXPECT_EQ(FullGrad(leaf), expected);
  });
}

// An op may choose another placement along an axis of one rank, or, in a hook, along any.
TEST(GradHook, MayReturnAnotherLayoutThanTheLeafs) {
  const GlobalValue start = Values({4, 3}, 50);
  for (const MeshShape& shape : {MeshShape{{"x", 1}}, MeshShape{{"x", 2}}}) {
    OnMesh(shape, [&](const DeviceMesh& mesh) {
      const DTensor leaf = Place(mesh, {Shard(0)}, start).SetRequiresGrad();
      DTensor(leaf).RegisterGradHook(
          [](const DTensor& grad) { return Redistribute(Mul(grad, 2.0), {Replicate()}); });
      Backward(Sum(leaf));
      EXPECT_EQ(leaf.grad().layout(), leaf.layout());
      EXPECT_EQ(FullGrad(leaf), std::vector<double>(12, 2));
    });
  }
}

TEST(ReadAs, ChangesAxesOfOneRankAlone) {
  OnMesh({{"one", 1}, {"x", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Replicate(), Shard(0)}, Values({4, 3}, 51)).SetRequiresGrad();
    const auto layout = [&](const Placement& one, const Placement& two) {
      return Layout::Make(mesh.shape(), {one, two}, {4, 3});
    };
    const DTensor y = ReadAs(x, layout(Shard(1), Shard(0)));
    ASSERT_TRUE(y);
    EXPECT_EQ(y.layout(), layout(Shard(1), Shard(0)));
    EXPECT_EQ(y.local().storage(), x.local().storage());
    EXPECT_FALSE(y.RequiresGrad());
    EXPECT_FALSE(ReadAs(x, layout(Replicate(), Replicate())));
    EXPECT_FALSE(ReadAs(x, layout(Replicate(), Shard(1))));
    DTensor(x).SetGrad(y);
    EXPECT_EQ(x.grad().layout(), x.layout());
    EXPECT_THAT(ErrorOf([&] {
                  DTensor(x).SetGrad(Redistribute(x, {Replicate(), Replicate()}));
                }),
                HasSubstr("does not fit"));
  });
}

TEST(SetRequiresGrad, IsForFloatingLeaves) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    DTensor leaf = Place(mesh, {Replicate()}, Values({3}, 33)).SetRequiresGrad();
    DTensor y = Exp(leaf);
    EXPECT_TRUE(leaf.IsLeaf());
    EXPECT_FALSE(y.IsLeaf());
    EXPECT_TRUE(y.RequiresGrad());
    EXPECT_THAT(ErrorOf([&] { y.SetRequiresGrad(false); }), HasSubstr("result of an op"));
    Random random(1);
    DTensor ids = Place(mesh, {Replicate()}, RandomIntegers({3}, random, 0, 9));
    EXPECT_THAT(ErrorOf([&] { ids.SetRequiresGrad(); }), HasSubstr("i64[3]"));
    leaf.SetRequiresGrad(false);
    EXPECT_FALSE(Exp(leaf).RequiresGrad());
  });
}

TEST(Detach, SharesTheValuesAndLeavesTheGraph) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Replicate()}, Values({3}, 34)).SetRequiresGrad();
    const DTensor y = Exp(leaf).Detach();
    EXPECT_FALSE(y.RequiresGrad());
    EXPECT_TRUE(y.IsLeaf());
    EXPECT_EQ(leaf.Detach().local().storage(), leaf.local().storage());
    Backward(Sum(Mul(leaf, y)));
    EXPECT_EQ(FullGrad(leaf), FullTensor(y).ToVector<double>());
  });
}

TEST(NoGrad, RecordsNothingWhileAlive) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor leaf = Place(mesh, {Shard(0)}, Values({4}, 35)).SetRequiresGrad();
    {
      const NoGrad outer(mesh);
      {
        const NoGrad inner(mesh);
        EXPECT_FALSE(Exp(leaf).RequiresGrad());
      }
      EXPECT_FALSE(Exp(leaf).RequiresGrad());
      EXPECT_FALSE(Redistribute(leaf, {Replicate()}).RequiresGrad());
      EXPECT_FALSE(MseLoss(leaf, leaf).RequiresGrad());
      EXPECT_TRUE(WithBackwardCallback(leaf, [] {}).IsLeaf());
      MulInPlace(leaf, 2.0);  // As an optimizer does.
    }
    EXPECT_TRUE(Exp(leaf).RequiresGrad());
    EXPECT_THAT(ErrorOf([&] { MulInPlace(leaf, 2.0); }), HasSubstr("requires a gradient"));
    try {
      const NoGrad no_grad(mesh);
      throw std::runtime_error("out of the block");
    } catch (const std::runtime_error&) {
    }
    EXPECT_TRUE(Exp(leaf).RequiresGrad());
  });
}

TEST(Ops, RefuseTensorsOfAnotherRank) {
  std::vector<DTensor> of_rank(2);
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const int me = mesh.coord()[0];
    of_rank[me] = Place(mesh, {Replicate()}, Values({3}, 36)).SetRequiresGrad();
    mesh.WorldGroup().Barrier();
    const DTensor& mine = of_rank[me];
    const DTensor theirs = of_rank[1 - me];
    const auto refuses = [&](const char* what, const char* why, absl::FunctionRef<void()> fn) {
      EXPECT_THAT(ErrorOf(fn), HasSubstr(why)) << what;
    };
    // Ops compare their operands; what takes one tensor after the other asks where it runs.
    const char* const apart = "belong to different ranks";
    const char* const away = "used on a thread that is not this rank's";
    refuses("add", apart, [&] { Add(mine, theirs); });
    refuses("where", apart, [&] { Where(Compare(CompareOp::kLess, mine, 0.0), theirs, mine); });
    refuses("concat", apart, [&] { Concat({mine, theirs}, 0); });
    refuses("gradient", away, [&] { Backward(Exp(mine), theirs.Detach()); });
    {
      const NoGrad no_grad(mesh);
      refuses("add in place", away, [&] { AddInPlace(mine, theirs); });
      refuses("copy in place", away, [&] { CopyInPlace(mine, theirs); });
    }
    refuses("set grad", apart, [&] { DTensor(mine).SetGrad(theirs); });
    mesh.WorldGroup().Barrier();
  });
}

TEST(GradHook, IsNotCalledOnceItIsRemoved) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    DTensor x = Place(mesh, {Replicate()}, Values({3}, 1)).SetRequiresGrad();
    const auto times = [](double factor) {
      return [factor](const DTensor& grad) { return Mul(grad, factor); };
    };
    HookHandle two = x.RegisterGradHook(times(2));
    HookHandle three = x.RegisterGradHook(times(3));
    DTensor y = Mul(x, 1.0);
    HookHandle five = y.RegisterGradHook(times(5));
    y.RegisterGradHook(times(7));
    two.Remove();
    five.Remove();
    Backward(Sum(y));
    EXPECT_EQ(FullTensor(x.grad()).ToVector<double>(), std::vector<double>(3, 21));
    three.Remove();
    three.Remove();
    HookHandle().Remove();
    x.ZeroGrad();
    Backward(Sum(x));
    EXPECT_EQ(FullTensor(x.grad()).ToVector<double>(), std::vector<double>(3, 1));
    {
      DTensor gone = Place(mesh, {Replicate()}, Values({3}, 1)).SetRequiresGrad();
      two = gone.RegisterGradHook(times(2));
    }
    two.Remove();
  });
}

TEST(GradHook, MayRegisterOthersForTheNextBackward) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    for (const bool is_leaf : {true, false}) {
      const DTensor leaf = Place(mesh, {Shard(0)}, Values({5, 2}, 3)).SetRequiresGrad();
      DTensor x = is_leaf ? leaf : Mul(leaf, 1.0);
      int calls = 0, of_new = 0;
      x.RegisterGradHook([&](const DTensor& grad) {
        ++calls;
        for (int i = 0; i < 9; ++i) {
          x.RegisterGradHook([&](const DTensor& g) {
            ++of_new;
            return Mul(g, -1.0);
          });
        }
        return Mul(grad, 2.0);
      });
      Backward(Sum(x));
      EXPECT_EQ(calls, 1);
      EXPECT_EQ(of_new, 0);
      EXPECT_EQ(FullGrad(leaf), std::vector<double>(10, 2));
      if (!is_leaf) continue;  // Its graph is gone.
      DTensor(leaf).ZeroGrad();
      Backward(Sum(x));
      EXPECT_EQ(calls, 2);
      EXPECT_EQ(of_new, 9);
      EXPECT_EQ(FullGrad(leaf), std::vector<double>(10, -2));
    }
  });
}

TEST(PostAccumulateHook, SeesEveryGradientInPlaceAndMayUseItUp) {
  OnMesh(kOne, [&](const DeviceMesh& mesh) {
    DTensor a = Place(mesh, {Replicate()}, Values({3}, 1)).SetRequiresGrad();
    DTensor b = Place(mesh, {Replicate()}, Values({3}, 2)).SetRequiresGrad();
    DTensor unused = Place(mesh, {Replicate()}, Values({3}, 3)).SetRequiresGrad();
    int calls = 0;
    unused.RegisterPostAccumulateGradHook([&](const DTensor&) { FAIL(); });
    const std::weak_ptr<internal::DTensorImpl> other = b.impl();
    HookHandle handle = a.RegisterPostAccumulateGradHook([&calls, other](const DTensor& leaf) {
      ++calls;
      EXPECT_TRUE(DTensor(other.lock()).grad());
      AddInPlace(leaf.Detach(), Mul(leaf.grad(), -0.5));
      DTensor(leaf).ZeroGrad();
    });
    const std::vector<double> before = FullTensor(a).ToVector<double>();
    Backward(Sum(Add(a, Add(a, b))));
    EXPECT_EQ(calls, 1);
    EXPECT_FALSE(a.grad());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(FullTensor(a).ToVector<double>()[i], before[i] - 1);
    handle.Remove();
    Backward(Sum(Add(a, b)));
    EXPECT_TRUE(a.grad());
    EXPECT_EQ(calls, 1);
    b.RegisterPostAccumulateGradHook([](const DTensor&) { throw std::runtime_error("in a hook"); });
    EXPECT_THROW(Backward(Sum(b)), std::runtime_error);
    EXPECT_EQ(FullTensor(b.grad()).ToVector<double>(), std::vector<double>(3, 3));
    Backward(Sum(a));  // Nothing is left behind.
    EXPECT_THAT(ErrorOf([&] { Mul(a, 2.0).RegisterPostAccumulateGradHook([](const DTensor&) {}); }),
                HasSubstr("result of an op"));
    EXPECT_THAT(ErrorOf([&] { a.RegisterPostAccumulateGradHook(nullptr); }), HasSubstr("empty"));
  });
}

}  // namespace
}  // namespace shardmesh::testing
