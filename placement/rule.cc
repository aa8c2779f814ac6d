// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/rule.h"

#include <algorithm>
#include <span>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "shardmesh/base/error.h"

namespace shardmesh {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Rule Run() {
    std::vector<std::string> clauses = absl::StrSplit(text_, ';');
    std::vector<std::string> sides = absl::StrSplit(clauses[0], "->");
    if (sides.size() != 2) Fail("expected exactly one '->'");
    rule_.inputs = Tensors(sides[0], /*may_add=*/true);
    rule_.outputs = Tensors(sides[1], /*may_add=*/false);
    for (size_t i = 1; i < clauses.size(); ++i) Clause(clauses[i]);
    return std::move(rule_);
  }

 private:
  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) {
    ThrowInvalid("sharding rule \"", text_, "\": ", parts...);
  }

  int FactorIndex(const std::string& name, bool may_add) {
    for (size_t i = 0; i < rule_.factors.size(); ++i) {
      if (rule_.factors[i].name == name) return static_cast<int>(i);
    }
    if (!may_add) Fail("no operand has factor '", name, "'");
    rule_.factors.push_back({name, false, {}});
    return static_cast<int>(rule_.factors.size()) - 1;
  }

  std::vector<Rule::FactorOfDim> Tensors(const std::string& side, bool may_add) {
    std::vector<Rule::FactorOfDim> tensors;
    for (const std::string& tensor : std::vector<std::string>(absl::StrSplit(side, ','))) {
      Rule::FactorOfDim dims;
      for (const std::string& name :
           std::vector<std::string>(absl::StrSplit(tensor, ' ', absl::SkipEmpty()))) {
        const int factor = name == "." ? Rule::kNotShardable : FactorIndex(name, may_add);
        // Sharding such a factor would shard two dims of one tensor along one axis.
        if (factor != Rule::kNotShardable &&
            std::find(dims.begin(), dims.end(), factor) != dims.end())
          Fail("factor '", name, "' stands twice in one tensor");
        dims.push_back(factor);
      }
      tensors.push_back(dims);
    }
    return tensors;
  }

  void Clause(const std::string& clause) {
    std::vector<std::string> words = absl::StrSplit(clause, ' ', absl::SkipEmpty());
    if (words.empty()) return;
    if (words[0] == "whole") {
      for (size_t i = 1; i < words.size(); ++i)
        rule_.factors[FactorIndex(words[i], false)].whole = true;
    } else if (words[0] == "linear" && words.size() > 1) {
      rule_.linear.push_back(Set(std::span(words).subspan(1)));
    } else if (words[0] == "pass" && words.size() > 2) {
      if (words[1] == "all") {
        rule_.PassAll(Set(std::span(words).subspan(2)));
        return;
      }
      const bool changes = !absl::ascii_isdigit(static_cast<unsigned char>(words[2][0]));
      if (changes && words.size() == 3) Fail("unknown clause '", clause, "'");
      rule_.Pass(Reduction(words[1]), Reduction(words[changes ? 2 : 1]),
                 Set(std::span(words).subspan(changes ? 3 : 2)));
    } else if (words[0] == "reduce" && words.size() == 2) {
      rule_.reduction = Reduction(words[1]);
    } else {
      Fail("unknown clause '", clause, "'");
    }
  }

  uint32_t Set(std::span<const std::string> words) {
    uint32_t set = 0;
    for (const std::string& word : words) {
      size_t operand = 0;
      if (!absl::SimpleAtoi(word, &operand) || operand >= rule_.inputs.size())
        Fail("'", word, "' is not an operand");
      set |= 1u << operand;
    }
    return set;
  }

  ReduceOp Reduction(const std::string& word) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      if (word == Name(op)) return op;
    }
    Fail("unknown reduction '", word, "'");
  }

  std::string text_;
  Rule rule_;
};

std::string TensorToString(const Rule& rule, const Rule::FactorOfDim& dims) {
  return absl::StrJoin(dims, " ", [&](std::string* out, int factor) {
    absl::StrAppend(out, factor == Rule::kNotShardable ? "." : rule.factors[factor].name);
  });
}

}  // namespace

Rule Rule::Parse(std::string_view text) { return Parser(text).Run(); }

Rule& Rule::PassAll(uint32_t set) {
  linear.push_back(set);
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) Pass(op, set);
  return *this;
}

Rule& Rule::Pass(ReduceOp from, ReduceOp to, uint32_t set) {
  if (from == ReduceOp::kSum && to == ReduceOp::kSum) {
    linear.push_back(set);
  } else {
    passages.push_back({set, from, to});
  }
  return *this;
}

std::string Rule::ToString() const {
  const auto side = [&](const std::vector<FactorOfDim>& tensors) {
    return absl::StrJoin(tensors, ", ", [&](std::string* out, const FactorOfDim& dims) {
      absl::StrAppend(out, TensorToString(*this, dims));
    });
  };
  std::string text = absl::StrCat(side(inputs), " -> ", side(outputs));
  std::string whole;
  for (const Factor& factor : factors) {
    if (factor.whole) absl::StrAppend(&whole, " ", factor.name);
  }
  if (!whole.empty()) absl::StrAppend(&text, "; whole", whole);
  const auto append = [&](std::string_view clause, uint32_t set) {
    absl::StrAppend(&text, "; ", absl::string_view(clause.data(), clause.size()));
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (((set >> i) & 1u) != 0) absl::StrAppend(&text, " ", i);
    }
  };
  // A set through which all reductions pass.
  const auto passes_all = [&](uint32_t set) {
    int others = 0;
    for (const Passage& passage : passages)
      others += passage.operands == set && passage.from == passage.to ? 1 : 0;
    return others == 3 && std::find(linear.begin(), linear.end(), set) != linear.end();
  };
  for (const uint32_t set : linear) append(passes_all(set) ? "pass all" : "linear", set);
  for (const Passage& passage : passages) {
    if (passage.from == passage.to && passes_all(passage.operands)) continue;
    std::string clause = absl::StrCat("pass ", std::string(Name(passage.from)));
    if (passage.to != passage.from) absl::StrAppend(&clause, " ", std::string(Name(passage.to)));
    append(clause, passage.operands);
  }
  if (reduction != ReduceOp::kSum) {
    absl::StrAppend(&text, "; reduce ", std::string(Name(reduction)));
  }
  return text;
}

}  // namespace shardmesh
