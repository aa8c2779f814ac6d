// SPDX-License-Identifier: Apache-2.0
//
// Random programs of a dozen ops, on meshes and on one rank: values that are used several times,
// gradients that meet in different layouts, results that arrive Partial, explicit redistributions
// anywhere.
#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {
namespace {

constexpr int kLeaves = 3;
constexpr int kOps = 12;
// Square, so that any op fits any values; 6 = 2 x 3 lets shards survive a reshape.
const Dims kShape = {6, 6};

// One op of a program: what it reads and how it is made.
struct Instruction {
  int kind;
  int left, right;  // Values made before.
  int64_t choice;   // Of dims, placements, ...
};

std::vector<Instruction> RandomProgram(Random& random) {
  std::vector<Instruction> program;
  for (int i = 0; i < kOps; ++i) {
    const int64_t made = kLeaves + i;
    // Later values more often, so that chains get long.
    const auto pick = [&] {
      return static_cast<int>(std::max(random.Below(made), random.Below(made)));
    };
    program.push_back({static_cast<int>(random.Below(17)), pick(), pick(), random.Below(1 << 20)});
  }
  return program;
}

// Keeps values near one, so that errors stay comparable.
DTensor Run(const Instruction& op, const DTensor& x, const DTensor& y) {
  const int dim = static_cast<int>(op.choice % 2);
  switch (op.kind) {
    case 0:
      return Add(x, y);
    case 1:
      return Sub(Mul(x, 0.5), y);
    case 2:
      return Mul(x, Tanh(y));
    case 3:
      return Div(x, Add(Square(y), 1.0));
    case 4:
      return Mul(MatMul(x, y), 0.25);
    case 5:
      return Mul(Linear(x, y), 0.25);
    case 6:
      return Softmax(x, dim);
    case 7:
      return Add(Mean(x, {dim}, true), y);  // Broadcast.
    case 8:
      return Mul(Expand(Sum(x, {dim}, true), kShape), 0.25);
    case 9:
      return Transpose(x, 0, 1);
    case 10:
      return Concat({Slice(x, dim, 2, 4), Slice(y, dim, 1, 2)}, dim);
    case 11:
      return Reshape(Silu(Reshape(x, {2, 3, 6})), kShape);
    case 12:
      return Reshape(Tanh(Reshape(x, {36})), kShape);
    case 13:
      return RmsNorm(x, Slice(Reshape(y, {36}), 0, 6 * (op.choice % 6), 6), 1e-3);
    case 14:
      return Mul(Sigmoid(x), Sum(Mul(y, 0.05)));  // A 0-d operand.
    case 15:
      return Where(Compare(CompareOp::kLess, x, 0.1234567), Mul(x, 0.5), Cos(y));
    default: {
      // Anywhere, by explicit request.
      std::vector<Placement> placements;
      int64_t rest = op.choice;
      for (int axis = 0; axis < x.layout().num_axes(); ++axis, rest /= 4)
        placements.push_back(rest % 4 == 3   ? Partial()
                             : rest % 4 == 2 ? Replicate()
                                             : Shard(static_cast<int>(rest % 4)));
      return Redistribute(x, placements);
    }
  }
}

std::string ToString(const std::vector<Instruction>& program) {
  std::string text;
  for (const Instruction& op : program)
    absl::StrAppend(&text, "(", op.kind, " ", op.left, " ", op.right, " ", op.choice, ") ");
  return text;
}

struct Outcome {
  Pieces loss;
  std::deque<Pieces> gradients{kLeaves};
};

void RunProgram(const DeviceMesh& mesh, const std::vector<Instruction>& program,
                const std::vector<GlobalValue>& values, Random layouts, Outcome& outcome) {
  std::vector<DTensor> made;
  const std::vector<Layout> choices = AllLayouts(mesh.shape(), kShape);
  for (const GlobalValue& value : values) {
    const Layout& layout = choices[layouts.Below(static_cast<int64_t>(choices.size()))];
    made.push_back(Place(mesh, layout, value, made.size() + 1).SetRequiresGrad());
  }
  for (const Instruction& op : program) made.push_back(Run(op, made[op.left], made[op.right]));
  // All values count, so that every path has a gradient.
  DTensor loss = Mean(Square(made.back()));
  for (size_t i = 0; i + 1 < made.size(); ++i) loss = Add(loss, Mul(Sum(Sin(made[i])), 0.01));
  outcome.loss.Put(loss);
  Backward(loss);
  for (int i = 0; i < kLeaves; ++i) outcome.gradients[i].Put(made[i].grad());
}

TEST(RandomPrograms, ComputeOnAnyMeshWhatTheyComputeOnOneRank) {
  constexpr int kPrograms = 150;
  Random random(77);
  std::vector<std::vector<Instruction>> programs;
  std::vector<std::vector<GlobalValue>> values;
  for (int i = 0; i < kPrograms; ++i) {
    programs.push_back(RandomProgram(random));
    values.emplace_back();
    for (int k = 0; k < kLeaves; ++k) values.back().push_back(RandomGlobal(kShape, random));
  }
  const auto run_all = [&](const MeshShape& mesh_shape) {
    std::deque<Outcome> outcomes(kPrograms);
    OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
      for (int i = 0; i < kPrograms; ++i) {
        SCOPED_TRACE(
            absl::StrCat(mesh_shape.ToString(), " program ", i, ": ", ToString(programs[i])));
        try {
          RunProgram(mesh, programs[i], values[i], Random(i), outcomes[i]);
        } catch (const Error& error) {
          ADD_FAILURE() << error.message();
          throw;
        }
      }
    });
    return outcomes;
  };
  const std::deque<Outcome> expected = run_all({{"one", 1}});
  for (const MeshShape& mesh_shape :
       {MeshShape{{"x", 2}}, MeshShape{{"x", 4}}, MeshShape{{"x", 2}, {"y", 2}},
        MeshShape{{"x", 3}, {"y", 2}}}) {
    const std::deque<Outcome> outcomes = run_all(mesh_shape);
    for (int i = 0; i < kPrograms; ++i) {
      SCOPED_TRACE(
          absl::StrCat(mesh_shape.ToString(), " program ", i, ": ", ToString(programs[i])));
      ASSERT_TRUE(outcomes[i].loss.AreOf(expected[i].loss.Value(), 1e-11));
      for (int k = 0; k < kLeaves; ++k)
        ASSERT_TRUE(outcomes[i].gradients[k].AreOf(expected[i].gradients[k].Value(), 1e-11))
            << "leaf " << k;
    }
  }
}

}  // namespace
}  // namespace shardmesh::testing
