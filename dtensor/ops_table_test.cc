// SPDX-License-Identifier: Apache-2.0
//
// That docs/ops.md says what the code does: it is made here, by running a case of every op and
// writing down the rules that were asked for. After a change:
//
//   bazel run //dtensor:ops_table_test -- --write
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/comm_trace.h"
#include "shardmesh/dtensor/runtime.h"
#include "shardmesh/dtensor/testing/op_cases.h"

namespace shardmesh::testing {
namespace {

using Cases = std::vector<OpCase>;

struct Family {
  const char* title;
  Cases cases;
};

std::vector<Family> Families() {
  return {{"Elementwise, one operand", ElementwiseCases(1)},
          {"Elementwise, two operands", ElementwiseCases(2)},
          {"Elementwise, three operands", ElementwiseCases(3)},
          {"Arithmetic", BinaryCases()},
          {"Selection", SelectionCases()},
          {"Reductions", ReductionCases()},
          {"Products", ProductCases()},
          {"Rows", RowCases()},
          {"Lookups", LookupCases()},
          {"Cross entropy", LossCases()},
          {"Attention", AttentionCases()},
          {"Shape", ShapeCases()},
          {"More reductions", MoreReductionCases()},
          {"Losses and distances", MoreLossCases()},
          {"Scans and order", OrderCases()},
          {"Indexing", IndexingCases()},
          {"Views", ViewCases()},
          {"Rearrangements", RearrangementCases()},
          {"Contractions", ContractionCases()},
          {"Linear algebra", LinalgCases()},
          {"Matrix and cross products", LinalgProductCases()},
          {"Windows", WindowCases()},
          {"Norms over channels", ChannelNormCases()}};
}

// What one run of a case asked for, in the order in which it did.
struct Calls {
  std::vector<std::pair<std::string, Rule>> forward, backward;
  bool is_differentiable = false;
};

Calls Run(const OpCase& op_case) {
  Calls calls;
  OnMesh({{"x", 1}}, [&](const DeviceMesh& mesh) {
    Runtime& runtime = Runtime::Of(mesh);
    auto* seen = &calls.forward;
    runtime.rule_observer = [&](const char* op, const Rule& rule) { seen->emplace_back(op, rule); };
    std::vector<DTensor> operands;
    for (const GlobalValue& value : op_case.operands) {
      operands.push_back(Place(mesh, {Replicate()}, value));
      if (IsFloating(value.dtype)) operands.back().SetRequiresGrad();
    }
    const DTensor y = op_case.apply(operands);
    seen = &calls.backward;
    calls.is_differentiable = y.RequiresGrad();
    if (!y.RequiresGrad()) return;
    Random random(17);
    GlobalValue upstream = RandomGlobal(y.shape(), random);
    upstream.dtype = y.dtype();
    Backward(y, Place(mesh, {Replicate()}, upstream));
  });
  return calls;
}

std::string NameOf(const OpCase& op_case) {
  return op_case.name.substr(0, op_case.name.find_first_of("(, "));
}

// Distinct names in the order in which they came first.
std::string NamesOf(const std::vector<std::pair<std::string, Rule>>& calls) {
  std::vector<std::string> names;
  for (const auto& [name, rule] : calls) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return absl::StrJoin(names, ", ");
}

bool Has(const Rule::FactorOfDim& dims, int factor) {
  return std::find(dims.begin(), dims.end(), factor) != dims.end();
}

// The factors that may be sharded; those that leave results Partial.
std::pair<std::string, std::string> FactorsOf(const Rule& rule) {
  std::vector<std::string> sharded, partial;
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    const auto factor = static_cast<int>(f);
    bool is_used = false, is_in_all = true;
    for (const auto& dims : rule.inputs) is_used |= Has(dims, factor);
    if (rule.factors[f].whole || !is_used) continue;
    for (const auto& dims : rule.outputs) is_in_all &= Has(dims, factor);
    (is_in_all ? sharded : partial).push_back(rule.factors[f].name);
  }
  std::string summed = absl::StrJoin(partial, " ");
  if (!summed.empty() && rule.reduction != ReduceOp::kSum)
    absl::StrAppend(&summed, " (", std::string(Name(rule.reduction)), ")");
  return {absl::StrJoin(sharded, " "), summed};
}

// ---- collectives --------------------------------------------------------------------------------

// "all_gather, 2 all_reduce", or "none".
std::string KindsOf(const std::map<std::string, int>& kinds) {
  if (kinds.empty()) return "none";
  return absl::StrJoin(kinds, ", ", [](std::string* out, const auto& kind) {
    absl::StrAppend(out, kind.second > 1 ? absl::StrCat(kind.second, " ") : "", kind.first);
  });
}

// One way to shard the operands of a case on two ranks, and what its run sends.
struct ShardedForm {
  std::map<std::string, int> forward, backward;
  int64_t bytes = 0;
};

ShardedForm RunSharded(const OpCase& op_case, const std::vector<Placement>& placements) {
  ShardedForm form;
  OnMesh({{"x", 2}}, [&](const DeviceMesh& mesh) {
    CommTrace trace(mesh);
    std::vector<DTensor> operands;
    for (size_t i = 0; i < op_case.operands.size(); ++i) {
      operands.push_back(Place(mesh, {placements[i]}, op_case.operands[i]));
      if (IsFloating(op_case.operands[i].dtype)) operands.back().SetRequiresGrad();
    }
    const DTensor y = op_case.apply(operands);
    const size_t in_forward = trace.events().size();
    if (y.RequiresGrad()) Backward(y, Full(mesh, y.shape(), y.dtype(), 0.5, {Replicate()}));
    if (mesh.coord()[0] != 0) return;
    for (size_t i = 0; i < trace.events().size(); ++i) {
      const CommTrace::Event& event = trace.events()[i];
      ++(i < in_forward ? form.forward : form.backward)[event.kind];
      form.bytes += event.bytes;
    }
  });
  return form;
}

// Of the form that sends least: operands sharded by one factor, or by a dim where no factor may be.
std::string Collectives(const OpCase& op_case, const Rule& rule) {
  std::vector<std::vector<Placement>> forms;
  const auto add = [&](const auto& placement_of) {
    forms.emplace_back();
    for (size_t i = 0; i < rule.inputs.size(); ++i) forms.back().push_back(placement_of(i));
    const bool shards = std::any_of(forms.back().begin(), forms.back().end(),
                                    [](const Placement& p) { return p.IsShard(); });
    if (!shards) forms.pop_back();
  };
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    const Rule::Factor& factor = rule.factors[f];
    const bool divides = std::all_of(factor.must_divide.begin(), factor.must_divide.end(),
                                     [](int64_t extent) { return extent % 2 == 0; });
    if (factor.whole || !divides) continue;
    add([&](size_t i) {
      const Rule::FactorOfDim& dims = rule.inputs[i];
      const auto found = std::find(dims.begin(), dims.end(), static_cast<int>(f));
      return found == dims.end() ? Replicate() : Shard(static_cast<int>(found - dims.begin()));
    });
  }
  for (int d = 0; forms.empty() && d < 4; ++d) {
    add([&](size_t i) {
      return i == 0 && d < static_cast<int>(rule.inputs[0].size()) ? Shard(d) : Replicate();
    });
  }
  std::optional<ShardedForm> best;
  for (const std::vector<Placement>& placements : forms) {
    ShardedForm form = RunSharded(op_case, placements);
    if (!best || form.bytes < best->bytes) best = std::move(form);
  }
  if (!best) return "";
  const std::string backward =
      best->backward.empty() ? "" : absl::StrCat("; backward ", KindsOf(best->backward));
  return absl::StrCat(KindsOf(best->forward), backward);
}

constexpr char kIntroduction[] =
    "# Ops\n"
    "\n"
    "Made by `dtensor/ops_table_test.cc` from a run of every op on small operands; `bazel run "
    "//dtensor:ops_table_test -- --write`\n"
    "makes it anew. Declarations with shapes and errors stand in `dtensor/ops.h` and "
    "`dtensor/ops/*.h`.\n"
    "\n"
    "An op has a **rule** over named factors (`placement/rule.h`): a mesh axis may shard a factor, "
    "which shards the operands and\n"
    "results that have it and leaves others whole. `.` is a dim that every rank needs whole, as "
    "are factors after `whole`. **Sharded**:\n"
    "factors that may be sharded with nothing to communicate. **Partial**: those whose sharding "
    "leaves each rank with a summand (or\n"
    "factor, maximum, ..) of the result; the next op, or `Redistribute`, reduces it when it must. "
    "`linear 0 1`: operands 0 and 1,\n"
    "Partial (sum) together, pass through; `pass max min 0`: a Partial maximum becomes one of "
    "minima; `pass all`: any reduction.\n"
    "**Collectives** are those of a run on two ranks whose operands are sharded by the factor that "
    "makes it send least (by some dim, where\n"
    "no factor may be sharded), gradients of leaves included. **Backward** names the ops that "
    "gradients are made of; rules that depend on\n"
    "shapes are those of the case that ran.\n";

std::string Document() {
  std::string text = kIntroduction;
  std::set<std::string> listed;
  std::string composites;
  int num_composites = 0;
  for (const Family& family : Families()) {
    std::string rows;
    for (const OpCase& op_case : family.cases) {
      const std::string name = NameOf(op_case);
      const Calls calls = Run(op_case);
      const std::string made_of = NamesOf(calls.forward);
      const bool is_one_op = made_of.find(',') == std::string::npos;
      for (const auto& [op, rule] : calls.forward) {
        if (!listed.insert(op).second) continue;
        const auto [sharded, partial] = FactorsOf(rule);
        const bool is_case = is_one_op && rule.inputs.size() == op_case.operands.size();
        absl::StrAppend(&rows, "| ", op, " | `", rule.ToString(), "` | ", sharded, " | ", partial,
                        " | ", is_case ? Collectives(op_case, rule) : "", " | ",
                        !is_one_op                ? ""
                        : calls.is_differentiable ? NamesOf(calls.backward)
                                                  : "none",
                        " |\n");
      }
      // What does nothing, is an op too, or is an expression like "x * 2".
      if (made_of.empty() || name.size() == 1 || listed.count(name) > 0) continue;
      if (!listed.insert("composite " + name).second) continue;
      absl::StrAppend(&composites, "| ", name, " | ", made_of, " |\n");
      ++num_composites;
    }
    if (rows.empty()) continue;
    absl::StrAppend(
        &text, "\n## ", family.title,
        "\n| op | rule | sharded | Partial | collectives | backward |\n|---|---|---|---|---|---|\n",
        rows);
  }
  absl::StrAppend(&text,
                  "\n## Made of others\nWhat they may keep sharded follows from their parts.\n\n",
                  "| function | ops |\n|---|---|\n", composites);
  absl::StrAppend(&text, "\n", listed.size() - static_cast<size_t>(num_composites),
                  " ops with a rule of their own and ", num_composites,
                  " functions made of them are in these tables. PyTorch 2.15 registers sharding "
                  "rules for 414 base ops.\n");
  return text;
}

TEST(OpsTable, IsWhatTheCodeDoes) {
  std::ifstream file("docs/ops.md");
  std::stringstream contents;
  contents << file.rdbuf();
  std::stringstream made(Document());
  std::string expected, found;
  while (std::getline(made, expected)) {
    std::getline(contents, found);
    ASSERT_EQ(found, expected)
        << "docs/ops.md is out of date; run bazel run //dtensor:ops_table_test -- --write";
  }
  EXPECT_FALSE(std::getline(contents, found)) << found;
}

}  // namespace

// Where `bazel run` was called.
int WriteTable() {
  const char* const root = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  std::ofstream file(absl::StrCat(root == nullptr ? "." : root, "/docs/ops.md"));
  file << Document() << std::flush;
  return file ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace shardmesh::testing

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--write") return shardmesh::testing::WriteTable();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
