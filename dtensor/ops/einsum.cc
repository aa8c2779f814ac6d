// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <map>
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/contract.h"
#include "shardmesh/dtensor/internal/dtensor_impl.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh {
namespace {

constexpr char kFirstEllipsis = 1;  // Labels of the dims of "...", counted from the last.

struct Term {
  DTensor tensor;
  std::string labels;
};

bool Has(const std::string& labels, char label) { return labels.find(label) != std::string::npos; }

// What is between the arrow and the commas.
struct Equation {
  explicit Equation(std::string_view given) : text(given) {
    std::string compact;
    for (const char c : given) {
      if (c != ' ') compact += c;
    }
    const size_t arrow = compact.find("->");
    has_result = arrow != std::string::npos;
    if (has_result) result = compact.substr(arrow + 2);
    const std::string left = compact.substr(0, arrow);
    for (size_t begin = 0; begin <= left.size();) {
      const size_t end = std::min(left.find(',', begin), left.size());
      operands.push_back(left.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  template <typename... Parts>
  [[noreturn]] void Refuse(const Parts&... parts) const {
    ThrowInvalid("einsum \"", text, "\": ", parts...);
  }
  // `term` with its "..." replaced by `dots` labels.
  std::string Labels(const std::string& term, int dots) const {
    std::string labels;
    for (size_t i = 0; i < term.size(); ++i) {
      if (term.compare(i, 3, "...") == 0) {
        for (int d = dots - 1; d >= 0; --d) labels += static_cast<char>(kFirstEllipsis + d);
        i += 2;
      } else if (std::isalpha(static_cast<unsigned char>(term[i])) != 0) {
        labels += term[i];
      } else {
        Refuse("unexpected '", std::string(1, term[i]), "' in \"", term, "\"");
      }
    }
    return labels;
  }

  std::string text;
  std::vector<std::string> operands;
  std::string result;
  bool has_result = false;
};

// The dims of one operand, with a letter that appears twice reduced to its diagonal.
Term TermOf(const Equation& equation, const std::string& text, const DTensor& x, int& max_dots) {
  int dots = 0;
  if (text.find("...") != std::string::npos) {
    dots = x.num_dims() - static_cast<int>(text.size()) + 3;
    if (dots < 0) equation.Refuse("\"", text, "\" has more dims than ", x.ToString());
    max_dots = std::max(max_dots, dots);
  }
  Term term{x, equation.Labels(text, dots)};
  if (static_cast<int>(term.labels.size()) != x.num_dims())
    equation.Refuse("\"", text, "\" does not have the dims of ", x.ToString());
  for (size_t i = 0; i < term.labels.size(); ++i) {
    const size_t twin = term.labels.find(term.labels[i], i + 1);
    if (twin == std::string::npos) continue;
    const char label = term.labels[i];
    const int dim0 = static_cast<int>(i), dim1 = static_cast<int>(twin);
    if (term.tensor.dim(dim0) != term.tensor.dim(dim1)) {
      equation.Refuse("'", std::string(1, label), "' stands for two extents of ", x.ToString());
    }
    term.tensor = Diagonal(term.tensor, 0, dim0, dim1);
    term.labels.erase(twin, 1);
    term.labels.erase(i, 1);
    term.labels += label;
    --i;  // Another label stands here now.
  }
  return term;
}

// Without dims of extent 1 where other operands have more.
void DropBroadcast(const Equation& equation, std::vector<Term>& terms) {
  std::map<char, int64_t> extents;
  for (const Term& term : terms) {
    for (size_t d = 0; d < term.labels.size(); ++d) {
      int64_t& extent = extents.emplace(term.labels[d], 1).first->second;
      const int64_t own = term.tensor.dim(static_cast<int>(d));
      if (extent == 1) extent = own;
      if (own != 1 && own != extent) {
        equation.Refuse("a dim of ", term.tensor.ToString(), " is ", own,
                        ", and that of the same label in another operand ", extent);
      }
    }
  }
  for (Term& term : terms) {
    std::string kept;
    std::vector<int> dropped;
    for (size_t d = 0; d < term.labels.size(); ++d) {
      const int dim = static_cast<int>(d);
      if (term.tensor.dim(dim) == 1 && extents[term.labels[d]] != 1) {
        dropped.push_back(dim);
      } else {
        kept += term.labels[d];
      }
    }
    if (dropped.empty()) continue;
    term.tensor = Squeeze(term.tensor, dropped);
    term.labels = kept;
  }
}

// Summed over the labels that are not in `wanted`.
void SumOthers(Term& term, const std::string& wanted) {
  std::vector<int> summed;
  std::string kept;
  for (size_t d = 0; d < term.labels.size(); ++d) {
    if (Has(wanted, term.labels[d])) {
      kept += term.labels[d];
    } else {
      summed.push_back(static_cast<int>(d));
    }
  }
  if (summed.empty()) return;
  term.tensor = Sum(term.tensor, summed);
  term.labels = kept;
}

// The letters that appear once, after the dims of "...".
std::string ImplicitResult(const Equation& equation, int max_dots) {
  std::map<char, int> counts;
  for (const std::string& operand : equation.operands) {
    for (const char label : operand) ++counts[label];
  }
  std::string result = equation.Labels("...", max_dots);
  for (const auto& [label, count] : counts) {
    if (count == 1 && label != '.') result += label;
  }
  return result;
}

}  // namespace

DTensor Einsum(std::string_view text, const std::vector<DTensor>& operands) {
  const Equation equation(text);
  if (operands.empty() || operands.size() != equation.operands.size()) {
    equation.Refuse(equation.operands.size(), " operands, got ", operands.size());
  }
  int max_dots = 0;
  std::vector<Term> terms;
  for (size_t i = 0; i < operands.size(); ++i) {
    internal::CheckUsable("einsum", operands[i]);
    terms.push_back(TermOf(equation, equation.operands[i], operands[i], max_dots));
  }
  const std::string result = equation.has_result ? equation.Labels(equation.result, max_dots)
                                                 : ImplicitResult(equation, max_dots);
  for (size_t i = 0; i < result.size(); ++i) {
    const bool exists = std::any_of(terms.begin(), terms.end(),
                                    [&](const Term& term) { return Has(term.labels, result[i]); });
    if (!exists) {
      equation.Refuse("the result has a label that no operand has; operand 0 is ",
                      operands[0].ToString());
    }
    if (result.find(result[i], i + 1) != std::string::npos)
      equation.Refuse("the result has a label twice");
  }
  DropBroadcast(equation, terms);
  Term product = terms[0];
  for (size_t i = 1; i < terms.size(); ++i) {
    std::string later = result;
    for (size_t k = i + 1; k < terms.size(); ++k) later += terms[k].labels;
    SumOthers(product, later + terms[i].labels);
    SumOthers(terms[i], later + product.labels);
    std::string to;
    for (const char label : product.labels + terms[i].labels) {
      if (Has(later, label) && !Has(to, label)) to += label;
    }
    product = {
        internal::Contract(product.tensor, product.labels, terms[i].tensor, terms[i].labels, to),
        to};
  }
  SumOthers(product, result);
  std::vector<int> order;
  for (const char label : result) order.push_back(static_cast<int>(product.labels.find(label)));
  return Permute(product.tensor, order);
}

}  // namespace shardmesh
