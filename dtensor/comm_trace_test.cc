// SPDX-License-Identifier: Apache-2.0
//
// What is sent, to the byte, for each kind of move; and that a move that several uses of a value
// need is made once.
#include "shardmesh/dtensor/comm_trace.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Total = CommTrace::Total;

// Elements of rank `rank`'s box of `layout`.
int64_t BoxElements(const Layout& layout, int64_t rank) {
  return layout.LocalBox(layout.mesh().CoordOf(rank)).NumElements();
}

TEST(CommTrace, CountsEachKindOfMoveToTheByte) {
  const Dims shape = {5, 7};  // Rows 2, 2, 1 and columns 3, 3, 1.
  const MeshShape mesh_shape = {{"x", 3}};
  const int64_t whole = shape.NumElements();
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    const int me = mesh.coord()[0];
    const auto layout = [&](const Placement& p) { return Layout::Make(mesh_shape, {p}, shape); };
    const auto own = [&](const Placement& p) { return BoxElements(layout(p), me); };
    const int64_t begin = std::min<int64_t>(12 * me, whole),
                  chunk = std::min<int64_t>(12, whole - begin);
    const Box rows = layout(Shard(0)).LocalBox(mesh.coord()),
              columns = layout(Shard(1)).LocalBox(mesh.coord());
    struct Row {
      Placement from, to;
      std::string kind;  // Empty: local.
      int64_t elements;
    };
    for (const Row& row : std::vector<Row>{
             {Shard(0), Replicate(), "all_gather", 2 * own(Shard(0))},
             {Shard(1), Replicate(), "all_gather", 2 * own(Shard(1))},
             {Partial(), Shard(0), "reduce_scatter", whole - own(Shard(0))},
             {Partial(ReduceOp::kMax), Shard(1), "reduce_scatter", whole - own(Shard(1))},
             {Partial(), Replicate(), "all_reduce", whole - chunk + 2 * chunk},
             {Partial(ReduceOp::kMin), Replicate(), "all_reduce", whole - chunk + 2 * chunk},
             {Shard(0), Shard(1), "all_to_all",
              own(Shard(0)) - Intersect(rows, columns).NumElements()},
             {Shard(1), Shard(0), "all_to_all",
              own(Shard(1)) - Intersect(rows, columns).NumElements()},
             {Replicate(), Shard(0), "", 0},
             {Replicate(), Shard(1), "", 0},
             {Replicate(), Partial(), "", 0},
             {Replicate(), Partial(ReduceOp::kProduct), "", 0},
             {Replicate(), Replicate(), "", 0},
             {Shard(1), Shard(-1), "", 0},  // Another spelling of the same.
             {Partial(), Partial(), "", 0}}) {
      for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
        GlobalValue value = Values(shape, 1);
        value.dtype = dtype;
        const DTensor x = Place(mesh, layout(row.from), value);
        const CommTrace trace(mesh);
        Redistribute(x, {row.to});
        const int64_t bytes = row.elements * SizeOf(dtype);
        const Total expected = row.kind.empty() ? Total{} : Total{1, bytes};
        EXPECT_EQ(trace.Sum().count, expected.count) << row.from << " -> " << row.to;
        EXPECT_EQ(trace.Sum("x", row.kind, "redistribute").bytes, expected.bytes)
            << row.from << " -> " << row.to;
        EXPECT_EQ(trace.Sum("x", row.kind, "redistribute"), trace.Sum());
      }
    }
  });
}

TEST(CommTrace, NamesAxesAndMergedAxesAndLeavesOutThoseOfOneRank) {
  const MeshShape mesh_shape = {{"dp", 2}, {"one", 1}, {"tp", 2}};
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    const GlobalValue value = Values({8, 4}, 2);
    struct Row {
      std::vector<Placement> from, to;
      std::string axis, kind;
      int64_t count;
    };
    for (const Row& row : std::vector<Row>{{{Shard(0), Replicate(), Replicate()},
                                            {Replicate(), Replicate(), Replicate()},
                                            "dp",
                                            "all_gather",
                                            1},
                                           {{Replicate(), Shard(0), Partial()},
                                            {Replicate(), Shard(1), Replicate()},
                                            "tp",
                                            "all_reduce",
                                            1},
                                           {{Shard(0), Replicate(), Shard(0)},
                                            {Replicate(), Replicate(), Replicate()},
                                            "dp+tp",
                                            "all_gather",
                                            1},
                                           {{Partial(), Partial(), Partial()},
                                            {Replicate(), Replicate(), Replicate()},
                                            "dp+tp",
                                            "all_reduce",
                                            1},
                                           {{Replicate(), Shard(0), Replicate()},
                                            {Replicate(), Shard(1), Replicate()},
                                            "",
                                            "",
                                            0},
                                           {{Replicate(), Partial(), Replicate()},
                                            {Replicate(), Replicate(), Replicate()},
                                            "",
                                            "",
                                            0}}) {
      const DTensor x = Place(
          mesh, Layout::Make(mesh_shape, std::span<const Placement>(row.from), value.shape), value);
      const CommTrace trace(mesh);
      Redistribute(x, row.to);
      EXPECT_EQ(trace.Count(), row.count) << x << trace.ToString();
      EXPECT_EQ(trace.Count(row.axis, row.kind), row.count) << x << trace.ToString();
    }
  });
}

TEST(CommTrace, RefusesNamesThatCanCountNothing) {
  OnMesh({{"dp", 2}, {"tp", 1}}, [](const DeviceMesh& mesh) {
    const CommTrace trace(mesh);
    EXPECT_EQ(trace.Count("dp", "all_gather"), 0);
    EXPECT_EQ(trace.Count("tp+dp"), 0);
    EXPECT_EQ(ErrorOf([&] { trace.Count("dp", "all-gather"); }),
              "CommTrace: 'all-gather' is no kind of collective");
    EXPECT_EQ(ErrorOf([&] { trace.Bytes("pp"); }),
              "CommTrace: 'pp' is no axis of mesh [dp=2, tp=1]");
    EXPECT_NE(ErrorOf([&] { trace.Sum("dp+"); }), "");
    EXPECT_NE(ErrorOf([&] { trace.Count("world"); }), "");
    // A group that is no axis is known once it has been seen.
    EXPECT_NE(ErrorOf([&] { trace.Count("mine"); }), "");
    const auto mine = mesh.WorldGroup().Split(0, mesh.WorldGroup().rank(), "mine");
    const Tensor x = Tensor::FromValues<float>(mesh.context(), {2}, {1.0f, -2.0f});
    mine->AllReduce({{x, x}}, ReduceOp::kSum).Wait();
    EXPECT_EQ(trace.Count("mine", "all_reduce"), 1);
    EXPECT_EQ(trace.Count("mine", "broadcast"), 0);
  });
}

TEST(CommTrace, OneAllToAllWhereOneAxisMovesItsShard) {
  // Seen elsewhere: two all-gathers.
  const MeshShape mesh_shape = {{"a", 2}, {"b", 2}};
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(1), Shard(1)}, Values({2, 8, 4}, 3));
    const CommTrace trace(mesh);
    Redistribute(x, {Shard(1), Shard(2)});
    EXPECT_EQ(trace.Sum(), (Total{1, 2 * 2 * 2 * 8})) << trace.ToString();
    EXPECT_EQ(trace.Count("b", "all_to_all"), 1);
  });
}

TEST(CommTrace, TracesNestAndEachCountsForItself) {
  OnMesh({{"x", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({4, 3}, 4));
    const CommTrace outer(mesh);
    FullTensor(x);
    {
      const CommTrace inner(mesh);
      EXPECT_EQ(inner.Count(), 0);
      Redistribute(x, {Shard(1)});
      EXPECT_EQ(inner.Count(), 1);
      EXPECT_EQ(inner.Count("x", "all_to_all"), 1);
    }
    Redistribute(x, {Replicate()});
    EXPECT_EQ(outer.Count(), 3);
    EXPECT_EQ(outer.Count("", "all_gather"), 2);
    EXPECT_EQ(outer.Count("", "", "full_tensor"), 1);
    EXPECT_EQ(outer.Count("", "", "redistribute"), 2);
    EXPECT_EQ(outer.Bytes("", "all_gather"), 2 * 2 * 3 * 8);
    EXPECT_EQ(outer.events().size(), 3u);
    EXPECT_EQ(outer.ByAxis().at("x").at("all_gather"), (Total{2, 2 * 2 * 3 * 8}));
    EXPECT_THAT(outer.ToString(), HasSubstr("x all_gather full_tensor: 1 x, 48 bytes\n"));
    mesh.WorldGroup().Barrier();
    EXPECT_EQ(outer.Count(), 3);
  });
}

TEST(CommTrace, SeesNothingOfOtherRanks) {
  OnMesh({{"x", 3}}, [&](const DeviceMesh& mesh) {
    const CommTrace trace(mesh);
    Item(Sum(Place(mesh, {Shard(0)}, Values({5}, 5))));
    EXPECT_EQ(trace.Count("x", "all_reduce"), 1);
    EXPECT_EQ(trace.Count(), 1);
  });
}

// ---- moves that several uses need ---------------------------------------------------------------

// Three projections of one value, as a decoder block makes them.
struct Projections {
  explicit Projections(const DeviceMesh& mesh) {
    for (int i = 0; i < 3; ++i)
      weights.push_back(Place(mesh, {Shard(0)}, Values({64, 8}, 10 + i)).SetRequiresGrad());
  }
  DTensor Loss(const DTensor& x) const {
    DTensor sum;
    for (const DTensor& w : weights) {
      const DTensor y = Sum(Square(Linear(x, w)));
      sum = sum ? Add(sum, y) : y;
    }
    return sum;
  }
  std::vector<DTensor> weights;
};

TEST(Moves, OfAValueThatThreeUsesNeedAreMadeOnceEachWay) {
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) {
    const Projections projections(mesh);
    const DTensor x =
        Place(mesh, {Shard(0)}, Values({4, 8}, 6)).SetRequiresGrad();  // Sequence parallel.
    DTensor loss;
    {
      const CommTrace trace(mesh);
      loss = projections.Loss(x);
      EXPECT_EQ(trace.Count("tp", "all_gather", "linear"), 1) << trace.ToString();
      EXPECT_EQ(trace.Count(), 1) << trace.ToString();
    }
    const CommTrace trace(mesh);
    Backward(loss);
    EXPECT_EQ(trace.Count("tp", "reduce_scatter"), 1) << trace.ToString();
    EXPECT_EQ(trace.Bytes("tp", "reduce_scatter"), 2 * 8 * 8);
    EXPECT_EQ(trace.Count(), 1) << trace.ToString();
  });
}

TEST(Moves, OfAReplicatedValuesGradientAreOneAllReduceAtItsAnchor) {
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) {
    const Projections projections(mesh);
    const DTensor leaf = Place(mesh, {Replicate()}, Values({4, 8}, 7)).SetRequiresGrad();
    const DTensor x = Mul(leaf, 2.0);
    Layout arrived;
    DTensor(x).RegisterGradHook([&](const DTensor& grad) {
      arrived = grad.layout();
      return grad;
    });
    const DTensor anchored = Redistribute(x, {Replicate()});
    DTensor loss;
    {
      const CommTrace trace(mesh);
      loss = projections.Loss(anchored);
      EXPECT_EQ(trace.Count(), 0) << trace.ToString();
    }
    const CommTrace trace(mesh);
    Backward(loss);
    EXPECT_EQ(arrived, x.layout());
    EXPECT_EQ(trace.Count("tp", "all_reduce", "redistribute"), 1) << trace.ToString();
    EXPECT_EQ(trace.Count(), 1) << trace.ToString();
  });
}

TEST(Moves, AreMadeAnewAfterAWrite) {
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Shard(0)}, Values({4, 8}, 8));
    const DTensor w = Place(mesh, {Shard(0)}, Values({64, 8}, 9));
    const CommTrace trace(mesh);
    const std::vector<double> before = FullTensor(Linear(x, w)).ToVector<double>();
    MulInPlace(x, 2.0);
    std::vector<double> after = FullTensor(Linear(x, w)).ToVector<double>();
    for (double& v : after) v /= 2;
    EXPECT_EQ(after, before);
    EXPECT_EQ(trace.Count("", "", "linear"), 2);
  });
}

TEST(Moves, OfAPartialThatSeveralUsesNeedAreMadeOnce) {
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor x = Place(mesh, {Partial()}, Values({4, 8}, 11));
    const CommTrace trace(mesh);
    Add(Exp(x), Add(Tanh(x), Square(x)));
    EXPECT_EQ(trace.Count("tp", "reduce_scatter"), 1) << trace.ToString();
    EXPECT_EQ(trace.Count(), 1) << trace.ToString();
  });
}

// ---- ops that must not communicate, or just so much ---------------------------------------------

TEST(Ops, CommunicateAsTheirRulesSay) {
  using Leaf = std::function<DTensor(Placement placement, const Dims& shape)>;
  struct Row {
    const char* what;
    std::vector<std::string> events;  // "kind op", forward and then backward.
    std::function<DTensor(const Leaf& leaf)> forward;
  };
  const std::vector<Row> rows = {
      {"column-parallel linear",
       {"all_reduce accumulate_grad"},  // Of x's gradient.
       [](const Leaf& leaf) {
         return Linear(leaf(Replicate(), {4, 8}), leaf(Shard(0), {6, 8}));
       }},
      {"row-parallel linear",
       {},
       [](const Leaf& leaf) {
         return Linear(leaf(Shard(1), {4, 8}), leaf(Shard(1), {6, 8}));
       }},
      {"data-parallel linear with bias",
       {"all_reduce accumulate_grad", "all_reduce accumulate_grad"},
       [](const Leaf& leaf) {
         return Linear(leaf(Shard(0), {4, 8}), leaf(Replicate(), {6, 8}), leaf(Replicate(), {6}));
       }},
      {"pointwise on shards",
       {},
       [](const Leaf& leaf) {
         return SiluMul(leaf(Shard(0), {5, 3}), leaf(Shard(0), {5, 3}));
       }},
      {"softmax of rows",
       {},
       [](const Leaf& leaf) {
         return Softmax(leaf(Shard(0), {5, 3}), 1);
       }},
      {"attention by heads",
       {},
       [](const Leaf& leaf) {
         return Attention(leaf(Shard(1), {2, 4, 3, 2}), leaf(Shard(1), {2, 2, 3, 2}),
                          leaf(Shard(1), {2, 2, 3, 2}), true);
       }},
      {"embedding of a split vocabulary",
       {},
       [](const Leaf& leaf) {
         const DTensor table = leaf(Shard(0), {7, 3});
         const DTensor ids = Place(table.mesh(), {Replicate()}, {{3}, DType::kI64, {0, 6, 2}});
         return Embedding(ids, leaf(Shard(0), {7, 3}));
       }},
      {"reshape that keeps its shards",
       {},
       [](const Leaf& leaf) {
         return Reshape(leaf(Shard(1), {3, 8}), {3, 4, 2});
       }},
      {"transpose",
       {},
       [](const Leaf& leaf) {
         return Transpose(leaf(Shard(1), {3, 8}), 0, 1);
       }},
      {"mean",
       {},
       [](const Leaf& leaf) {
         return Mean(leaf(Shard(0), {3, 8}));
       }},
  };
  for (const Row& row : rows) {
    OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) {
      std::vector<DTensor> leaves;
      const CommTrace trace(mesh);
      const DTensor y = row.forward([&](Placement placement, const Dims& shape) {
        leaves.push_back(Place(mesh, {placement}, Values(shape, leaves.size())).SetRequiresGrad());
        return leaves.back();
      });
      // A gradient in the layout of the result, so that only the op itself moves something.
      Backward(y, Place(mesh, y.layout().PartialAsReplicate(), Values(y.shape(), 20)));
      std::vector<std::string> events;
      for (const CommTrace::Event& event : trace.events())
        events.push_back(event.kind + " " + event.op);
      EXPECT_EQ(events, row.events) << row.what;
    });
  }
}

TEST(CrossEntropy, NeverGathersTheLogits) {
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor logits = Place(mesh, {Shard(1)}, Values({4, 10}, 21)).SetRequiresGrad();
    const DTensor targets = Place(mesh, {Replicate()}, {{4}, DType::kI64, {1, 9, -100, 4}});
    const CommTrace trace(mesh);
    const DTensor loss = CrossEntropy(logits, targets);
    Item(loss);
    Backward(loss);
    // For each of the four rows its maximum, its sum and the logit of its target.
    EXPECT_EQ(trace.Count("tp", "all_reduce"), 3) << trace.ToString();
    EXPECT_EQ(trace.Count(), 3) << trace.ToString();
    EXPECT_EQ(trace.Bytes(), 3 * 4 * 8) << trace.ToString();
  });
}

}  // namespace
}  // namespace shardmesh::testing
