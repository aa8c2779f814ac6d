// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/testing/validate_op.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/testing/buffer_sink.h"

namespace shardmesh::testing {
namespace {

constexpr double kTolerance = 1e-12;

struct MeshCase {
  MeshShape mesh;
  int combinations;  // At most.
};

const std::vector<MeshCase>& Meshes() {
  static const auto* meshes = new std::vector<MeshCase>{{{{"x", 2}}, 40},
                                                        {{{"x", 3}}, 30},
                                                        {{{"x", 2}, {"y", 2}}, 40},
                                                        {{{"x", 3}, {"y", 2}}, 12},
                                                        {{{"x", 1}, {"y", 2}}, 8}};
  return *meshes;
}

int Limit(const MeshCase& mesh_case) {
  const char* wanted = std::getenv("SHARDMESH_VALIDATOR_COMBINATIONS");
  return wanted == nullptr ? mesh_case.combinations : std::atoi(wanted);
}

// Where the operands lie, and how the gradients travel.
struct Combination {
  std::vector<Layout> operands;
  std::vector<bool> wants_gradient;
  std::vector<Layout> sinks;  // Null: the gradient is accumulated in the leaf.
  Layout upstream;            // Null: nothing to differentiate.

  std::string ToString() const {
    const auto text = [](std::string* out, const Layout& layout) {
      absl::StrAppend(out, layout ? layout.PlacementsToString() : "-");
    };
    return absl::StrCat("operands ", absl::StrJoin(operands, " ", text), ", gradients wanted ",
                        absl::StrJoin(wants_gradient, ""), ", sinks ",
                        absl::StrJoin(sinks, " ", text), ", upstream ",
                        upstream ? upstream.PlacementsToString() : "-");
  }
};

struct Expected {
  GlobalValue result;
  GlobalValue upstream;
  std::vector<GlobalValue> gradients;
};

bool IsDifferentiable(const GlobalValue& value) { return IsFloating(value.dtype); }

// The op on one rank.
Expected OnOneRank(const OpCase& op_case) {
  Expected expected;
  OnMesh({{"one", 1}}, [&](const DeviceMesh& mesh) {
    std::vector<DTensor> operands;
    for (const GlobalValue& value : op_case.operands) {
      operands.push_back(Place(mesh, {Replicate()}, value));
      if (IsDifferentiable(value)) operands.back().SetRequiresGrad();
    }
    const DTensor y = op_case.apply(operands);
    expected.result = GlobalOf(y.local());
    if (!y.RequiresGrad()) return;
    Random random(17);
    expected.upstream = RandomGlobal(y.shape(), random);
    expected.upstream.dtype = y.dtype();
    Backward(y, Place(mesh, {Replicate()}, expected.upstream));
    for (const DTensor& operand : operands)
      expected.gradients.push_back(operand.grad() ? GlobalOf(operand.grad().local())
                                                  : GlobalValue());
  });
  return expected;
}

std::vector<ReduceOp> PartialsOf(DType dtype) {
  if (dtype == DType::kBool) return {};  // Cannot be reduced.
  return {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
}

std::vector<Combination> Combinations(const OpCase& op_case, const Expected& expected,
                                      const MeshShape& mesh, int limit) {
  std::vector<std::vector<Layout>> choices;
  double count = 1;
  for (const GlobalValue& value : op_case.operands) {
    choices.push_back(AllLayouts(mesh, value.shape, PartialsOf(value.dtype)));
    count *= static_cast<double>(choices.back().size());
  }
  const bool differentiates = !expected.gradients.empty();
  const std::vector<Layout> upstreams =
      differentiates ? AllLayouts(mesh, expected.result.shape) : std::vector<Layout>{Layout()};
  const bool all = count <= limit;
  Random random(count > 1 ? static_cast<uint64_t>(count) : 1);
  std::vector<Combination> combinations;
  for (int64_t i = 0; i < (all ? static_cast<int64_t>(count) : limit); ++i) {
    Combination combination;
    int64_t rest = i;
    for (size_t k = 0; k < choices.size(); ++k) {
      const auto size = static_cast<int64_t>(choices[k].size());
      combination.operands.push_back(choices[k][all ? rest % size : random.Below(size)]);
      rest /= size;
    }
    combination.upstream = upstreams[random.Below(static_cast<int64_t>(upstreams.size()))];
    bool any = false;
    for (const GlobalValue& value : op_case.operands) {
      combination.wants_gradient.push_back(differentiates && IsDifferentiable(value) &&
                                           random.Below(4) != 0);
      any |= combination.wants_gradient.back();
      const std::vector<Layout> sinks = AllLayouts(mesh, value.shape);
      combination.sinks.push_back(random.Below(4) == 0
                                      ? sinks[random.Below(static_cast<int64_t>(sinks.size()))]
                                      : Layout());
    }
    if (!any) {
      for (size_t k = 0; k < op_case.operands.size(); ++k)
        combination.wants_gradient[k] = differentiates && IsDifferentiable(op_case.operands[k]);
    }
    combinations.push_back(std::move(combination));
  }
  return combinations;
}

// What the ranks made of one combination.
struct Outcome {
  Pieces result;
  std::deque<Pieces> gradients;
};

void RunOne(const DeviceMesh& mesh, const OpCase& op_case, const Expected& expected,
            const Combination& combination, Outcome& outcome) {
  std::vector<DTensor> operands;
  std::vector<std::shared_ptr<BufferSink>> sinks;
  for (size_t k = 0; k < op_case.operands.size(); ++k) {
    const GlobalValue& value = op_case.operands[k];
    operands.push_back(Place(mesh, combination.operands[k], value, /*seed=*/k + 1));
    sinks.push_back(nullptr);
    if (!combination.wants_gradient[k]) continue;
    operands.back().SetRequiresGrad();
    if (!combination.sinks[k]) continue;
    sinks.back() = std::make_shared<BufferSink>(mesh, combination.sinks[k], value.dtype);
    SetGradSink(operands.back(), sinks.back());
  }
  const DTensor y = op_case.apply(operands);
  outcome.result.Put(y);
  if (!combination.upstream) {
    EXPECT_FALSE(y.RequiresGrad());
    return;
  }
  Backward(y, Place(mesh, combination.upstream, expected.upstream, /*seed=*/99));
  for (size_t k = 0; k < op_case.operands.size(); ++k) {
    const DTensor& grad = operands[k].grad();
    if (!combination.wants_gradient[k]) {
      EXPECT_FALSE(grad) << "operand " << k << " wants no gradient";
    } else if (sinks[k] != nullptr) {
      EXPECT_FALSE(grad) << "operand " << k << " has a sink";
      outcome.gradients[k].Put(sinks[k]->Gradient());
    } else if (grad) {
      EXPECT_EQ(grad.layout(), combination.operands[k].PartialAsReplicate()) << "operand " << k;
      outcome.gradients[k].Put(grad);
    }
  }
}

// All combinations of one op on one mesh, in one world.
void ValidateOn(const MeshShape& mesh_shape, const OpCase& op_case, const Expected& expected,
                int limit) {
  const std::vector<Combination> combinations = Combinations(op_case, expected, mesh_shape, limit);
  std::deque<Outcome> outcomes(combinations.size());
  for (Outcome& outcome : outcomes) outcome.gradients.resize(op_case.operands.size());
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    for (size_t i = 0; i < combinations.size(); ++i) {
      SCOPED_TRACE(absl::StrCat(op_case.ToString(), " on ", mesh_shape.ToString(), ": ",
                                combinations[i].ToString()));
      try {
        RunOne(mesh, op_case, expected, combinations[i], outcomes[i]);
      } catch (const Error& error) {
        ADD_FAILURE() << error.message();
        throw;
      }
    }
  });
  int failures = 0;
  for (size_t i = 0; i < combinations.size() && failures < 3; ++i) {
    const Combination& combination = combinations[i];
    SCOPED_TRACE(absl::StrCat(op_case.ToString(), " on ", mesh_shape.ToString(), ": ",
                              combination.ToString()));
    const ::testing::AssertionResult result = outcomes[i].result.AreOf(expected.result, kTolerance);
    EXPECT_TRUE(result) << "result";
    failures += result ? 0 : 1;
    for (size_t k = 0; k < op_case.operands.size(); ++k) {
      if (!combination.wants_gradient[k]) continue;
      const ::testing::AssertionResult gradient =
          outcomes[i].gradients[k].AreOf(expected.gradients[k], kTolerance);
      EXPECT_TRUE(gradient) << "gradient of operand " << k;
      failures += gradient ? 0 : 1;
    }
  }
}

}  // namespace

std::string OpCase::ToString() const {
  std::string text = name;
  for (const GlobalValue& operand : operands)
    absl::StrAppend(&text, " ", std::string(Name(operand.dtype)), operand.shape.ToString());
  return text;
}

void ValidateOp(const OpCase& op_case) {
  const Expected expected = OnOneRank(op_case);
  for (const MeshCase& mesh_case : Meshes())
    ValidateOn(mesh_case.mesh, op_case, expected, Limit(mesh_case));
}

}  // namespace shardmesh::testing
