// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "shardmesh/placement/plan.h"

namespace shardmesh {
namespace {

/// "dp+tp".
std::string AxisNames(const Step& step) {
  const auto name = [&](std::string* out, int axis) {
    absl::StrAppend(out, step.from.mesh().axis(axis).name);
  };
  return absl::StrJoin(step.axes, "+", name);
}

}  // namespace

std::string Plan::Explain() const {
  std::string text = absl::StrCat("from ", source.ToString(), "\nto   ", target.ToString(), "\n");
  size_t axes_width = 0, change_width = 0;
  std::vector<std::string> changes;
  for (const Step& step : steps) {
    changes.push_back(
        absl::StrCat(step.from.PlacementsToString(), " -> ", step.to.PlacementsToString()));
    axes_width = std::max(axes_width, AxisNames(step).size());
    change_width = std::max(change_width, changes.back().size());
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    absl::StrAppendFormat(&text, "  %d. %-14s %-*s  %-*s  %12d bytes  %10.1f us\n", i + 1,
                          std::string(Name(step.kind)), static_cast<int>(axes_width),
                          AxisNames(step), static_cast<int>(change_width), changes[i],
                          step.bytes_sent, step.seconds * 1e6);
  }
  absl::StrAppendFormat(&text, "total %d step%s, %d bytes sent per rank, %.1f us, peak %d bytes\n",
                        steps.size(), steps.size() == 1 ? "" : "s", bytes_sent, seconds * 1e6,
                        peak_bytes);
  return text;
}

std::ostream& operator<<(std::ostream& out, const Plan& plan) { return out << plan.Explain(); }

}  // namespace shardmesh
