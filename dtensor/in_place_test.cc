// SPDX-License-Identifier: Apache-2.0
//
// In-place ops write what they say, through views that alias, or refuse.
#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const MeshShape kOne = {{"x", 1}};
const MeshShape kTwo = {{"x", 2}};

std::vector<double> Whole(const DTensor& x) { return FullTensor(x).ToVector<double>(); }

TEST(InPlace, OpsKeepTheLayoutWhateverTheLayoutOfTheOperand) {
  struct Row {
    const char* name;
    Dims operand;
    void (*run)(const DTensor& a, const DTensor& b);
    double (*expected)(double a, double b);
  };
  const Dims shape = {5, 3};
  const std::vector<Row> rows = {
      {"add", {5, 3}, AddInPlace, [](double a, double b) { return a + b; }},
      {"copy", {5, 3}, CopyInPlace, [](double, double b) { return b; }},
      {"mul",
       {5, 3},
       [](const DTensor& a, const DTensor&) { MulInPlace(a, -1.5); },
       [](double a, double) { return -1.5 * a; }},
  };
  const GlobalValue a = Values(shape, 1);
  for (const MeshShape& mesh_shape :
       {MeshShape{{"x", 2}}, MeshShape{{"x", 3}}, MeshShape{{"x", 2}, {"y", 2}}}) {
    for (const Row& row : rows) {
      const GlobalValue b = Values(row.operand, 2);
      GlobalValue expected = a;
      for (size_t i = 0; i < a.values.size(); ++i)
        expected.values[i] = row.expected(a.values[i], b.values[i]);
      const std::vector<Layout> layouts = AllLayouts(mesh_shape, shape),
                                others = AllLayouts(mesh_shape, b.shape);
      std::deque<Pieces> pieces(layouts.size() * others.size());
      OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
        for (size_t i = 0; i < pieces.size(); ++i) {
          const DTensor target = Place(mesh, layouts[i / others.size()], a);
          const void* memory = target.local().storage().get();
          row.run(target, Place(mesh, others[i % others.size()], b, 7));
          EXPECT_EQ(target.layout(), layouts[i / others.size()]);
          EXPECT_EQ(target.local().storage().get(), memory);
          pieces[i].Put(target);
        }
      });
      for (size_t i = 0; i < pieces.size(); ++i) {
        ASSERT_TRUE(pieces[i].AreOf(expected, 1e-14))
            << row.name << " " << layouts[i / others.size()] << " " << others[i % others.size()];
      }
    }
  }
}

TEST(AddInPlace, BroadcastsIntoAnyLayoutThatHoldsValues) {
  const GlobalValue a = Values({5, 3}, 3), b = Values({3}, 4), c = Values({5, 1}, 5);
  const MeshShape mesh_shape = {{"x", 2}, {"y", 2}};
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    for (const Layout& layout : AllLayouts(mesh_shape, a.shape, {})) {
      const DTensor target = Place(mesh, layout, a);
      AddInPlace(target, Place(mesh, {Shard(0), Replicate()}, b));
      AddInPlace(target, Place(mesh, {Replicate(), Partial()}, c));
      std::vector<double> expected = a.values;
      for (int i = 0; i < 15; ++i) expected[i] += b.values[i % 3] + c.values[i / 3];
      EXPECT_EQ(Whole(target), expected) << layout;
    }
    const DTensor partial = Place(mesh, {Partial(), Replicate()}, a);
    EXPECT_THAT(ErrorOf([&] {
                  AddInPlace(partial, Place(mesh, {Replicate(), Replicate()}, b));
                }),
                AllOf(HasSubstr("Partial"), HasSubstr("f64[3]")));
    const DTensor target = Place(mesh, {Replicate(), Replicate()}, b);
    EXPECT_THAT(ErrorOf([&] {
                  AddInPlace(target, Place(mesh, {Replicate(), Replicate()}, a));
                }),
                HasSubstr("does not broadcast"));
  });
}

TEST(InPlace, OpsRefuseToChangeWhatThePartsOfAPartialMean) {
  // Seen elsewhere: a Partial filled or clamped in place kept its placement, and its parts were
  // added up.
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor sum = Place(mesh, {Partial()}, {{}, DType::kF64, {144}});
    EXPECT_THAT(ErrorOf([&] { FillInPlace(sum, 2); }),
                AllOf(HasSubstr("f64[] [P(sum)]"), HasSubstr("layout")));
    const DTensor clamped = Minimum(sum, 2.0);
    EXPECT_EQ(clamped.layout().placement(0), Replicate());
    EXPECT_EQ(Item(clamped), 2);
    EXPECT_EQ(Item(sum), 144);
    const DTensor max = Place(mesh, {Partial(ReduceOp::kMax)}, {{}, DType::kF64, {3}});
    EXPECT_THAT(ErrorOf([&] { MulInPlace(max, -2.0); }), HasSubstr("not a sum"));
    EXPECT_THAT(ErrorOf([&] { AddInPlace(max, max); }), HasSubstr("not a sum"));
    // A copy is no arithmetic.
    CopyInPlace(max, Place(mesh, {Replicate()}, {{}, DType::kF64, {5}}));
    EXPECT_EQ(Item(max), 5);
  });
}

TEST(FillInPlace, OfASliceReachesTheTensorOrIsRefused) {
  // Seen elsewhere: nothing changed, also on one rank.
  GlobalValue value = Values({8, 8}, 6);
  std::vector<double> filled = value.values;
  std::fill(filled.begin(), filled.begin() + 16, 0.0);
  for (const MeshShape& mesh_shape : {kOne, kTwo}) {
    for (const Placement& placement : {Replicate(), Shard(0), Shard(1)}) {
      OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
        const DTensor x = Place(mesh, {placement}, value);
        const DTensor slice = Slice(x, 0, 0, 2);
        if (mesh_shape == kTwo && placement == Shard(0)) {  // The rows were gathered to be cut.
          EXPECT_THAT(ErrorOf([&] { FillInPlace(slice, 0); }),
                      AllOf(HasSubstr("copy"), HasSubstr("f64[2,8]")));
          EXPECT_EQ(Whole(x), value.values);
        } else {
          FillInPlace(slice, 0);
          EXPECT_EQ(Whole(x), filled) << x;
        }
      });
    }
  }
}

TEST(InPlace, OpsOnViewsReachTheTensorOrAreRefused) {
  const GlobalValue value = Values({4, 6}, 7);
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const std::vector<std::function<DTensor(const DTensor&)>> views = {
        [](const DTensor& x) { return Transpose(x, 0, 1); },
        [](const DTensor& x) {
          return Reshape(x, {4, 2, 3});
        },
        [](const DTensor& x) { return Reshape(x, {24}); },
        [](const DTensor& x) { return Slice(x, 1, 2, 3); },
        [](const DTensor& x) {
          return Split(x, {1, 3}, 0)[1];
        },
        [](const DTensor& x) { return Slice(Transpose(x, 0, 1), 0, 1, 2); },
        [](const DTensor& x) { return Reshape(Transpose(x, 0, 1), {24}); },
        [](const DTensor& x) { return x.Detach(); },
        [](const DTensor& x) { return Redistribute(x, {Shard(0)}); },
        [](const DTensor& x) {
          return Expand(x, {2, 4, 6});
        },
    };
    for (size_t i = 0; i < views.size(); ++i) {
      for (const Placement& placement : {Replicate(), Shard(0), Shard(1)}) {
        const DTensor x = Place(mesh, {placement}, value);
        const DTensor view = views[i](x);
        const std::string refusal =
            std::string(Catch([&] { AddInPlace(view, view.Detach()); }).message());
        std::vector<double> expected = value.values;
        if (refusal.empty()) {
          // Twice the values where the view reaches: then the view shows the tensor.
          EXPECT_EQ(Whole(views[i](x)), Whole(view)) << i << " " << x;
          EXPECT_NE(Whole(x), value.values) << i << " " << x;
        } else {
          EXPECT_THAT(refusal, HasSubstr("write that one"));
          EXPECT_EQ(Whole(x), value.values) << i << " " << x;
        }
      }
    }
  });
}

TEST(InPlace, OpsOnAnExpandedOrMovedResultAreRefused) {
  OnMesh(kTwo, [&](const DeviceMesh& mesh) {
    const DTensor row = Place(mesh, {Replicate()}, Values({1, 3}, 8));
    EXPECT_THAT(ErrorOf([&] { FillInPlace(Expand(row, {4, 3}), 1); }), HasSubstr("copy"));
    const DTensor x = Place(mesh, {Shard(0)}, Values({4, 3}, 9));
    EXPECT_THAT(ErrorOf([&] { FillInPlace(Redistribute(x, {Replicate()}), 1); }),
                HasSubstr("copy"));
    EXPECT_THAT(ErrorOf([&] { FillInPlace(Reshape(Redistribute(x, {Replicate()}), {12}), 1); }),
                HasSubstr("copy"));
    // The result of an op that computes is a tensor of its own.
    const DTensor own = Exp(x);
    FillInPlace(own, 1);
    EXPECT_EQ(Whole(own), std::vector<double>(12, 1));
    EXPECT_THAT(ErrorOf([&] { CopyInPlace(x, row); }), HasSubstr("does not have the shape"));
    GlobalValue f32 = Values({4, 3}, 10);
    f32.dtype = DType::kF32;
    EXPECT_THAT(ErrorOf([&] { AddInPlace(x, Place(mesh, {Shard(0)}, f32)); }), HasSubstr("dtype"));
  });
}

TEST(InPlace, RefusesAnOperandWhoseGradientWouldBeLost) {
  OnMesh(kTwo, [](const DeviceMesh& mesh) {
    const DTensor sum = Zeros(mesh, {5}, DType::kF32, {Shard(0)});
    DTensor x = Full(mesh, {5}, DType::kF32, 3.0, {Shard(0)}).SetRequiresGrad();
    for (const auto& [name, write] : std::vector<std::pair<const char*, std::function<void()>>>{
             {"add_in_place", [&] { AddInPlace(sum, Mul(x, 2.0)); }},
             {"copy_in_place", [&] { CopyInPlace(sum, x); }}}) {
      EXPECT_THAT(ErrorOf(write),
                  AllOf(HasSubstr(name), HasSubstr("requires a gradient, which would be lost")));
    }
    EXPECT_EQ(FullTensor(sum).ToVector<float>(), std::vector<float>(5, 0.0f));
    AddInPlace(sum, x.Detach());
    const NoGrad no_grad(mesh);
    AddInPlace(sum, x);
    EXPECT_EQ(FullTensor(sum).ToVector<float>(), std::vector<float>(5, 6.0f));
  });
}

// Local strides once decided: refused on rank 0 and done on rank 1, which left x half written.
TEST(InPlace, OnAViewIsDecidedAlikeByAllRanks) {
  const GlobalValue x = Values({2, 3, 2}, 31);
  struct Row {
    const char* name;
    std::function<DTensor(const DTensor& x)> view;
    bool writable;
  };
  const std::vector<Row> rows = {
      {"reshape",
       [](const DTensor& t) {
         return Reshape(t, {6, 2});
       },
       true},
      {"transpose", [](const DTensor& t) { return Transpose(t, 0, 2); }, true},
      {"transpose twice",
       [](const DTensor& t) {
         return Reshape(Transpose(Transpose(t, 0, 1), 1, 0), {6, 2});
       },
       true},
      {"rows",
       [](const DTensor& t) {
         return Reshape(Slice(t, 0, 1, 1), {3, 2});
       },
       true},
      {"all columns",
       [](const DTensor& t) {
         return Reshape(Slice(t, 2, 0, 2), {3, 4});
       },
       true},
      {"reshape of transposed",
       [](const DTensor& t) {
         return Reshape(Transpose(t, 0, 1), {3, 4});
       },
       false},
      {"reshape of columns", [](const DTensor& t) { return Reshape(Slice(t, 2, 1, 1), {6}); },
       false},
      {"expand",
       [](const DTensor& t) {
         return Expand(t, {2, 2, 3, 2});
       },
       false},
  };
  for (const MeshShape& shape : {MeshShape{{"x", 1}}, MeshShape{{"x", 2}}, MeshShape{{"x", 5}},
                                 MeshShape{{"x", 2}, {"y", 2}}}) {
    for (const Layout& layout : AllLayouts(shape, x.shape, {})) {
      OnMesh(shape, [&](const DeviceMesh& mesh) {
        for (const Row& row : rows) {
          const DTensor t = Place(mesh, layout, x);
          const DTensor view = row.view(t);
          // Where the view's operands moved it is a copy, whatever it is elsewhere; that depends on
          // layouts alone, and so does what follows.
          const absl::Status status = Catch([&] { MulInPlace(view, -1.0); });
          const std::vector<double> after = Whole(t);  // Collective: hangs if ranks differ.
          if (status.ok()) {
            EXPECT_TRUE(row.writable) << row.name << layout;
            EXPECT_NE(after, x.values) << row.name << layout;
          } else {
            EXPECT_EQ(after, x.values) << row.name << layout;
            EXPECT_TRUE(!row.writable || layout.ToString().find("S(") != std::string::npos)
                << row.name << layout << status;
          }
          // All ranks of one mind.
          Tensor refused = ops::Full(mesh.context(), {}, DType::kI64, status.ok() ? 0 : 1);
          mesh.WorldGroup().AllReduce({{refused, refused}}, ReduceOp::kSum).Wait();
          const double ranks = shape.NumRanks();
          EXPECT_TRUE(refused.Item() == 0 || refused.Item() == ranks) << row.name << layout;
        }
      });
    }
  }
}

TEST(InPlace, WritingTheSourceOfARedistributionShowsInNoRanksCopy) {
  const GlobalValue x = Values({5, 3}, 32);
  const MeshShape shape = {{"x", 2}, {"y", 2}};
  for (const Layout& from : AllLayouts(shape, x.shape)) {
    for (const Layout& to : AllLayouts(shape, x.shape)) {
      if (from == to) continue;
      OnMesh(shape, [&](const DeviceMesh& mesh) {
        const DTensor source = Place(mesh, from, x);
        const DTensor moved = Redistribute(source, to);
        MulInPlace(source, -3.0);
        EXPECT_EQ(Whole(moved), x.values) << from << " -> " << to;
      });
    }
  }
}

TEST(InPlace, AnotherViewOfTheTargetIsReadBeforeItIsWritten) {
  const GlobalValue x = Values({3, 3}, 33);
  for (const MeshShape& shape : {MeshShape{{"x", 1}}, MeshShape{{"x", 2}}}) {
    OnMesh(shape, [&](const DeviceMesh& mesh) {
      std::vector<double> sum(9), transposed(9);
      for (int i = 0; i < 9; ++i) {
        transposed[i] = x.values[i % 3 * 3 + i / 3];
        sum[i] = x.values[i] + transposed[i];
      }
      for (const Placement placement : {Replicate(), Shard(0), Shard(1)}) {
        const DTensor a = Place(mesh, {placement}, x);
        AddInPlace(a, Transpose(a, 0, 1));
        EXPECT_EQ(Whole(a), sum);
        const DTensor b = Place(mesh, {placement}, x);
        CopyInPlace(b, Transpose(b, 0, 1));
        EXPECT_EQ(Whole(b), transposed);
      }
    });
  }
}

}  // namespace
}  // namespace shardmesh::testing
