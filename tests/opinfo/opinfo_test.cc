// SPDX-License-Identifier: Apache-2.0
//
// Samples of PyTorch's operator tests: values and gradients of each op of the table (op_table.h) on
// one rank in f64 and f32, and in f64 on three meshes with inputs and upstream gradients in layouts
// drawn at random, against what PyTorch computed. Ops and cases that the library does not have are
// listed in not_there.txt, and in no other place.
//
//   opinfo_test --op=roll --samples=100000            # one op, every combination of layouts
//   opinfo_test --seed=7                              # other layouts
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iostream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/dtensor/testing/global_value.h"
#include "shardmesh/tensor/ops.h"
#include "shardmesh/tests/opinfo/op_table.h"

namespace shardmesh::testing {
namespace {

struct Flags {
  std::string op;     // --op=NAME: only this one.
  int samples = 4;    // --samples=N: combinations of layouts per case and mesh, at most.
  uint64_t seed = 1;  // --seed=N

  bool Parse(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      absl::string_view value = argv[i];
      if (absl::ConsumePrefix(&value, "--op=")) {
        op = std::string(value);
      } else if (!(absl::ConsumePrefix(&value, "--samples=") &&
                   absl::SimpleAtoi(value, &samples)) &&
                 !(absl::ConsumePrefix(&value, "--seed=") && absl::SimpleAtoi(value, &seed))) {
        std::cerr << "unknown argument " << argv[i]
                  << "; expected --op=NAME, --samples=N or --seed=N\n";
        return false;
      }
    }
    return true;
  }
};
Flags flags;

// One name a line, of an op or a case; '#' begins a comment.
std::set<std::string> NotThere() {
  std::ifstream stream("tests/opinfo/not_there.txt");
  EXPECT_TRUE(stream.good()) << "tests/opinfo/not_there.txt";
  std::set<std::string> names;
  for (std::string line; std::getline(stream, line);) {
    const std::string name(absl::StripAsciiWhitespace(line.substr(0, line.find('#'))));
    if (name.empty()) continue;
    EXPECT_TRUE(names.insert(name).second) << name << " is listed twice";
  }
  return names;
}

double ToleranceOf(const std::string& op, DType dtype, DType real) {
  if (dtype != real) return 0;
  // PyTorch adds 1 to an erf of nearly -1 for ndtr, and its sixth in hardsigmoid is a float.
  static const std::set<std::string> ill_conditioned = {"erfinv", "digamma", "lgamma",
                                                        "special.ndtr"};
  if (op == "nn.functional.hardsigmoid") return real == DType::kF64 ? 1e-7 : 1e-5;
  const bool is_wide = absl::StartsWith(op, "linalg.") || ill_conditioned.count(op) > 0;
  if (real == DType::kF64) return is_wide ? 1e-9 : 1e-11;
  return is_wide ? 1e-4 : 1e-5;
}

// Where the terms of a gradient cancel and what is left is rounding noise, the terms, which are as
// large as the upstream gradients, are what its error is relative to.
bool HasCancellingGradients(const std::string& id) {
  static const std::set<std::string> ids = {
      "nn.functional.layer_norm/2",        "nn.functional.layer_norm/3",
      "nn.functional.rms_norm/2",          "nn.functional.normalize/2",
      "nn.functional.cosine_similarity/3", "nn.functional.batch_norm/4"};
  return ids.count(id) > 0;
}

double LargestOf(const GlobalValue& value) {
  double largest = 0;
  for (const double v : value.values)
    largest = std::isfinite(v) ? std::max(largest, std::abs(v)) : largest;
  return largest;
}

bool IsWithin(const GlobalValue& actual, const GlobalValue& expected, double absolute) {
  if (!(actual.shape == expected.shape) || actual.dtype != expected.dtype) return false;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    if (!(std::abs(actual.values[i] - expected.values[i]) <= absolute)) return false;
  }
  return true;
}

// ---- layouts ------------------------------------------------------------------------------------

// A summand of `value` for part `part` of `count`: exact multiples of values that f32 holds, so
// that the parts add up to the value, and a zero keeps its sign.
double PartOf(double value, uint64_t bits, int part, int count) {
  if (!std::isfinite(value) || (value == 0 && std::signbit(value))) return value;
  const auto factor = [&](int i) {
    Random random(bits * 64 + static_cast<uint64_t>(i));
    return static_cast<double>(random.Below(41) - 20);
  };
  const double unit = value == 0 ? 1 : value;
  double rest = value;
  for (int i = 0; i < count - 1; ++i) {
    if (i == part) return factor(i) * unit;
    rest -= factor(i) * unit;
  }
  return rest;
}

// This rank's box of `value`; where the layout is Partial, a summand.
DTensor PlaceExact(const DeviceMesh& mesh, const Layout& layout, const GlobalValue& value,
                   uint64_t seed) {
  GlobalValue part = value;
  int count = 1, index = 0;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (!layout.placement(axis).IsPartial()) continue;
    index = index * layout.mesh().size(axis) + mesh.coord()[axis];
    count *= layout.mesh().size(axis);
  }
  for (size_t i = 0; i < part.values.size() && count > 1; ++i)
    part.values[i] = PartOf(value.values[i], seed * 1000003 + i, index, count);
  const std::vector<double> local = BoxOf(part, layout.LocalBox(mesh.coord()));
  const Tensor exact = Tensor::FromValues<double>(mesh.context(), layout.LocalShape(mesh.coord()),
                                                  std::span<const double>(local));
  return DTensor(mesh, layout, ops::Cast(mesh.context(), exact, value.dtype));
}

// Layouts of the tensors of one run, by their names; of the first result for an op without tensors.
using Layouts = std::map<std::string, Layout>;

std::vector<ReduceOp> PartialsOf(const GlobalValue& value) {
  return IsFloating(value.dtype) ? std::vector<ReduceOp>{ReduceOp::kSum} : std::vector<ReduceOp>{};
}

// Every combination, or as many at random as wanted.
std::vector<Layouts> Combinations(const OpinfoCase& sample, const MeshShape& mesh) {
  std::vector<std::string> names = sample.Inputs();
  if (names.empty()) names = {"out0"};
  std::vector<std::vector<Layout>> choices;
  double count = 1;
  for (const std::string& name : names) {
    const GlobalValue& value = sample.tensors.at(name);
    choices.push_back(AllLayouts(mesh, value.shape,
                                 name == "out0" ? std::vector<ReduceOp>() : PartialsOf(value)));
    count *= static_cast<double>(choices.back().size());
  }
  const bool all = count <= flags.samples;
  Random random(flags.seed + std::hash<std::string>()(sample.id));
  std::vector<Layouts> combinations;
  for (int64_t i = 0; i < (all ? static_cast<int64_t>(count) : flags.samples); ++i) {
    Layouts layouts;
    int64_t rest = i;
    for (size_t k = 0; k < names.size(); ++k) {
      const auto size = static_cast<int64_t>(choices[k].size());
      layouts[names[k]] = choices[k][all ? rest % size : random.Below(size)];
      rest /= size;
    }
    for (int k = 0; k < sample.outputs; ++k) {
      const std::string name = absl::StrCat("grad_out", k);
      const auto upstream = sample.tensors.find(name);
      if (upstream == sample.tensors.end()) continue;
      const std::vector<Layout> all_upstream = AllLayouts(mesh, upstream->second.shape);
      layouts[name] = all_upstream[random.Below(static_cast<int64_t>(all_upstream.size()))];
    }
    combinations.push_back(std::move(layouts));
  }
  return combinations;
}

std::string ToString(const Layouts& layouts) {
  std::string text;
  for (const auto& [name, layout] : layouts)
    absl::StrAppend(&text, " ", name, " ", layout.PlacementsToString());
  return text;
}

// ---- one case -----------------------------------------------------------------------------------

// What the ranks made of one combination of layouts.
struct Outcome {
  std::deque<Pieces> results;
  std::map<std::string, Pieces> gradients;  // By input; no piece where there is none.
  std::vector<GlobalValue> expected;        // Of the results.
  bool exists = true;
};

class Run {
 public:
  Run(const OpinfoCase& sample, const OpEntry& entry, DType real)
      : sample_(sample), entry_(entry), real_(real) {}

  /// The same on every rank. Rank 0 notes what is expected.
  void On(const DeviceMesh& mesh, const Layouts& layouts, Outcome& outcome) const {
    std::map<std::string, DTensor> inputs;
    std::vector<Placement> placements(mesh.shape().num_axes());
    for (const std::string& name : sample_.Inputs())
      inputs[name] = Placed(mesh, layouts.at(name), name);
    for (const std::string& name : sample_.differentiable) inputs.at(name).SetRequiresGrad();
    if (inputs.empty()) {
      for (int axis = 0; axis < mesh.shape().num_axes(); ++axis)
        placements[axis] = layouts.at("out0").placement(axis);
    }
    const Args args(mesh, real_, sample_, inputs, placements);
    Results results = entry_.function(args);
    const bool is_first = mesh.shape().RankOf(mesh.coord()) == 0;
    if (is_first) outcome.exists = !results.empty();
    if (results.empty()) return;
    if (static_cast<int>(results.size()) != sample_.outputs) {
      ThrowInvalid(sample_.id, ": ", results.size(), " results, expected ", sample_.outputs);
    }
    const std::vector<GlobalValue> expected = Expected(mesh, args, results);
    if (is_first) outcome.expected = expected;
    for (size_t k = 0; k < results.size(); ++k) outcome.results[k].Put(results[k]);
    Differentiate(mesh, layouts, results);
    for (const std::string& name : sample_.differentiable) {
      if (inputs.at(name).grad()) outcome.gradients.at(name).Put(inputs.at(name).grad());
    }
  }

  GlobalValue Value(const std::string& name) const {
    GlobalValue value = sample_.tensors.at(name);
    if (value.dtype == DType::kF64) value.dtype = real_;
    return value;
  }

 private:
  DTensor Placed(const DeviceMesh& mesh, const Layout& layout, const std::string& name) const {
    return PlaceExact(mesh, layout, Value(name), std::hash<std::string>()(name));
  }

  // Of the results, which it makes unique.
  std::vector<GlobalValue> Expected(const DeviceMesh& mesh, const Args& args,
                                    Results& results) const {
    std::vector<GlobalValue> expected;
    for (int k = 0; k < sample_.outputs; ++k) expected.push_back(Value(absl::StrCat("out", k)));
    if (!entry_.make_unique) return expected;
    Results tensors;
    for (const GlobalValue& value : expected) {
      const std::vector<Placement> replicated(mesh.shape().num_axes());
      tensors.push_back(Distribute(mesh, WholeTensor(mesh.context(), value), replicated));
    }
    entry_.make_unique(args, results, tensors);
    expected.clear();
    for (const DTensor& tensor : tensors) expected.push_back(GlobalOf(FullTensor(tensor)));
    return expected;
  }

  void Differentiate(const DeviceMesh& mesh, const Layouts& layouts, const Results& results) const {
    std::vector<size_t> roots;
    for (size_t k = 0; k < results.size(); ++k) {
      const bool has_upstream = sample_.tensors.count(absl::StrCat("grad_out", k)) > 0;
      if (has_upstream && results[k].RequiresGrad()) roots.push_back(k);
    }
    const auto upstream = [&](size_t k) {
      const std::string name = absl::StrCat("grad_out", k);
      return Placed(mesh, layouts.at(name), name);
    };
    if (roots.size() == 1) Backward(results[roots[0]], upstream(roots[0]));
    if (roots.size() < 2) return;
    DTensor sum;
    for (const size_t k : roots) {
      const DTensor part = Sum(Mul(results[k], upstream(k)));
      sum = sum ? Add(sum, part) : part;
    }
    Backward(sum);
  }

  const OpinfoCase& sample_;
  const OpEntry& entry_;
  DType real_;
};

// What is wrong with `pieces`; nothing if they are `expected`.
std::string Difference(const OpinfoCase& sample, const std::string& name, const Pieces& pieces,
                       const GlobalValue& expected, DType real) {
  if (!pieces.layout()) {  // No gradient came: that is a zero.
    const auto is_zero = [](double value) { return value == 0; };
    if (std::all_of(expected.values.begin(), expected.values.end(), is_zero)) return "";
    return absl::StrCat(name, " did not come");
  }
  // A product of many numbers is less than f32 has.
  if (real == DType::kF32 && LargestOf(expected) < std::numeric_limits<float>::min() &&
      LargestOf(pieces.Value()) < std::numeric_limits<float>::min())
    return "";
  const double tolerance = ToleranceOf(sample.op, expected.dtype, real);
  if (HasCancellingGradients(sample.id) && absl::StartsWith(name, "grad_")) {
    const double scale = LargestOf(sample.tensors.at("grad_out0"));
    return IsWithin(pieces.Value(), expected, tolerance * scale) ? "" : name + " is not noise";
  }
  const ::testing::AssertionResult result = pieces.AreOf(expected, tolerance);
  return result ? "" : absl::StrCat(name, ": ", result.message());
}

// Returns whether the op exists with the arguments of this case.
bool Check(const OpinfoCase& sample, const OpEntry& entry, const MeshShape& mesh_shape,
           DType real) {
  const std::vector<Layouts> combinations = Combinations(sample, mesh_shape);
  std::deque<Outcome> outcomes(combinations.size());
  const Run run(sample, entry, real);
  for (Outcome& outcome : outcomes) {
    outcome.results.resize(sample.outputs);
    for (const std::string& name : sample.differentiable) outcome.gradients[name];
  }
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    for (size_t i = 0; i < combinations.size(); ++i) {
      SCOPED_TRACE(
          absl::StrCat(sample.id, " on ", mesh_shape.ToString(), ":", ToString(combinations[i])));
      try {
        run.On(mesh, combinations[i], outcomes[i]);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        throw;
      }
    }
  });
  for (size_t i = 0; i < combinations.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    if (!outcome.exists) return false;
    if (outcome.expected.empty()) break;  // It threw.
    std::string difference;
    for (int k = 0; k < sample.outputs && difference.empty(); ++k) {
      difference =
          Difference(sample, absl::StrCat("out", k), outcome.results[k], outcome.expected[k], real);
    }
    for (const auto& [name, pieces] : outcome.gradients) {
      if (!difference.empty()) break;
      const std::string grad = absl::StrCat("grad_", name);
      difference = Difference(sample, grad, pieces, run.Value(grad), real);
    }
    EXPECT_EQ(difference, "") << sample.id << " on " << mesh_shape.ToString() << ":"
                              << ToString(combinations[i]);
    if (!difference.empty()) break;  // One failure a case is enough to read.
  }
  return true;
}

void CheckAll(const MeshShape& mesh_shape, DType real) {
  std::set<std::string> missing;
  int cases = 0;
  for (const OpinfoCase& sample : OpinfoCases()) {
    if (!flags.op.empty() && sample.op != flags.op) continue;
    const OpEntry* entry = TheOpTable().Find(sample.op);
    if (entry == nullptr) {
      missing.insert(sample.op);
    } else if (sample.has_unknown_dtype || !Check(sample, *entry, mesh_shape, real)) {
      missing.insert(sample.id);
    } else {
      ++cases;
    }
  }
  std::cout << cases << " of " << OpinfoCases().size() << " cases ran\n";
  if (!flags.op.empty()) return;
  const std::set<std::string> listed = NotThere();
  for (const std::string& name : missing)
    EXPECT_TRUE(listed.count(name) > 0) << name << " is missing; list it in not_there.txt";
  for (const std::string& name : listed)
    EXPECT_TRUE(missing.count(name) > 0) << name << " is there; remove it from not_there.txt";
}

// Here a result of the other sign counts as equal, and its gradient follows.
TEST(OpinfoGolden, ComparesWhatIsUnique) {
  const OpEntry entry = {
      [](const Args& args) { return Results{Mul(args.Tensor(0), 1.0)}; },
      [](const Args&, Results& results, Results&) { results[0] = Mul(results[0], -1.0); }};
  for (const OpinfoCase& sample : OpinfoCases()) {
    if (sample.op != "neg") continue;
    EXPECT_TRUE(Check(sample, entry, {{"x", 2}}, DType::kF64));
  }
}

TEST(OpinfoGolden, HoldsOnOneRankInF64) { CheckAll({{"x", 1}}, DType::kF64); }
TEST(OpinfoGolden, HoldsOnOneRankInF32) { CheckAll({{"x", 1}}, DType::kF32); }
TEST(OpinfoGolden, HoldsOnTwoRanks) { CheckAll({{"x", 2}}, DType::kF64); }
TEST(OpinfoGolden, HoldsOnThreeRanks) { CheckAll({{"x", 3}}, DType::kF64); }
TEST(OpinfoGolden, HoldsOnTwoByTwoRanks) { CheckAll({{"x", 2}, {"y", 2}}, DType::kF64); }

}  // namespace
}  // namespace shardmesh::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!shardmesh::testing::flags.Parse(argc, argv)) return EXIT_FAILURE;
  return RUN_ALL_TESTS();
}
