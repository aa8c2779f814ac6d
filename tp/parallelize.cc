// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tp/parallelize.h"

#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/name_pattern.h"

namespace shardmesh::tp {
namespace {

struct Match {
  const Style* style;
  nn::Module::NamedModule target;
};

std::string Shown(const std::string& module_name) {
  return module_name.empty() ? "the module itself" : module_name;
}

std::vector<Match> FindMatches(nn::Module& module, const Plan& plan) {
  const std::vector<nn::Module::NamedModule> modules = module.NamedModules();
  std::vector<Match> matches;
  for (const PlanEntry& entry : plan) {
    if (entry.style == nullptr) {
      ThrowInvalid("Parallelize: pattern '", entry.pattern, "' has no style");
    }
    const size_t before = matches.size();
    for (const nn::Module::NamedModule& candidate : modules) {
      if (MatchesPattern(entry.pattern, candidate.name)) {
        matches.push_back({entry.style.get(), candidate});
      }
    }
    if (matches.size() == before) {
      ThrowInvalid("Parallelize: pattern '", entry.pattern, "' of ", entry.style->ToString(),
                   " matches no module");
    }
  }
  return matches;
}

/// The placements of parameters along the axis, by Parameter::id().
class Assignment {
 public:
  void Add(const Match& match, const std::vector<Style::Placed>& placed) {
    if (placed.empty()) return;
    const auto [owner, is_new] = owners_.emplace(match.target.module, match.style);
    if (!is_new) {
      ThrowInvalid("Parallelize: ", Shown(match.target.name), " has its parameters placed by both ",
                   owner->second->ToString(), " and ", match.style->ToString());
    }
    for (const Style::Placed& entry : placed) {
      const auto [first, added] = placements_.emplace(entry.parameter.id(), entry.placement);
      if (added || first->second == entry.placement) continue;
      ThrowInvalid("Parallelize: ", match.style->ToString(), " of ", Shown(match.target.name),
                   " wants ", entry.placement.ToString(), " for ", entry.parameter.name(),
                   ", which is tied to a parameter that the plan makes ", first->second.ToString());
    }
  }

  /// What the plan says; else what an earlier call has placed, and replicated if none has.
  Placement Of(const nn::Parameter& parameter, int axis) const {
    const Placement before =
        parameter.IsPlaced() ? parameter.layout().placement(axis) : Replicate();
    const auto found = placements_.find(parameter.id());
    if (found == placements_.end()) return before;
    if (!before.IsReplicate() && !(before == found->second)) {
      ThrowInvalid("Parallelize: the plan makes ", found->second.ToString(), " of parameter ",
                   parameter.ToString(), ", which is ", before.ToString(),
                   " along that axis already");
    }
    return found->second;
  }

 private:
  std::unordered_map<const nn::Module*, const Style*> owners_;
  std::unordered_map<const void*, Placement> placements_;
};

}  // namespace

bool MatchesPattern(std::string_view pattern, std::string_view name) {
  return MatchesNamePattern(pattern, name);
}

void Parallelize(nn::Module& module, const DeviceMesh& mesh, std::string_view axis_name,
                 const Plan& plan) {
  const int axis = mesh.shape().Index(axis_name);
  std::vector<nn::Parameter> parameters = module.Parameters();
  for (const nn::Parameter& parameter : parameters) {
    if (parameter.IsPlaced() && parameter.mesh() != mesh) {
      ThrowInvalid("Parallelize: parameter ", parameter.ToString(), " is not on mesh ",
                   mesh.ToString());
    }
  }
  const std::vector<Match> matches = FindMatches(module, plan);
  Assignment assignment;
  for (const Match& match : matches) {
    assignment.Add(match, match.style->PlaceParameters(*match.target.module,
                                                       Shown(match.target.name), mesh, axis));
  }
  std::vector<Layout> layouts;
  for (const nn::Parameter& parameter : parameters) {
    const Layout layout = parameter.IsPlaced()
                              ? parameter.layout()
                              : Layout::Replicated(mesh.shape(), parameter.shape());
    const Placement placement = assignment.Of(parameter, axis);
    layouts.push_back(layout.placement(axis) == placement ? layout : layout.With(axis, placement));
  }

  // All checks passed; changes begin here.
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].Place(mesh, layouts[i]);
  for (const Match& match : matches) {
    match.style->Apply(*match.target.module, Shown(match.target.name), mesh, axis);
  }
}

}  // namespace shardmesh::tp
