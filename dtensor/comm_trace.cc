// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/comm_trace.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "shardmesh/base/error.h"

namespace shardmesh {

CommTrace::CommTrace(const DeviceMesh& mesh) : mesh_(mesh) { mesh_.WorldGroup().AddObserver(this); }

CommTrace::~CommTrace() { mesh_.WorldGroup().RemoveObserver(this); }

void CommTrace::OnCollective(const CollectiveEvent& event) {
  if (event.kind == CollectiveKind::kBarrier || event.group_size == 1) return;
  const std::string_view op = event.op.substr(0, event.op.find(" of "));
  events_.push_back(
      {std::string(event.group), std::string(Name(event.kind)), std::string(op), event.bytes_sent});
}

void CommTrace::CheckNames(std::string_view axis, std::string_view kind) const {
  constexpr std::string_view kKinds[] = {"",           "all_gather", "reduce_scatter",
                                         "all_reduce", "all_to_all", "broadcast"};
  if (std::find(std::begin(kKinds), std::end(kKinds), kind) == std::end(kKinds)) {
    ThrowInvalid("CommTrace: '", absl::string_view(kind.data(), kind.size()),
                 "' is no kind of collective");
  }
  if (axis.empty()) return;
  for (const Event& event : events_) {
    if (event.axis == axis) return;
  }
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(axis.data(), axis.size()), '+')) {
    if (mesh_.shape().Has(std::string_view(part.data(), part.size()))) continue;
    ThrowInvalid("CommTrace: '", part, "' is no axis of mesh ", mesh_.ToString());
  }
}

CommTrace::Total CommTrace::Sum(std::string_view axis, std::string_view kind,
                                std::string_view op) const {
  CheckNames(axis, kind);
  Total total;
  for (const Event& event : events_) {
    if ((axis.empty() || event.axis == axis) && (kind.empty() || event.kind == kind) &&
        (op.empty() || event.op == op)) {
      ++total.count;
      total.bytes += event.bytes;
    }
  }
  return total;
}

std::map<std::string, std::map<std::string, CommTrace::Total>> CommTrace::ByAxis() const {
  std::map<std::string, std::map<std::string, Total>> result;
  for (const Event& event : events_) {
    Total& total = result[event.axis][event.kind];
    ++total.count;
    total.bytes += event.bytes;
  }
  return result;
}

std::string CommTrace::ToString() const {
  std::map<std::tuple<std::string, std::string, std::string>, Total> totals;
  for (const Event& event : events_) {
    Total& total = totals[{event.axis, event.kind, event.op}];
    ++total.count;
    total.bytes += event.bytes;
  }
  std::string text;
  for (const auto& [key, total] : totals) {
    absl::StrAppend(&text, std::get<0>(key), " ", std::get<1>(key), " ", std::get<2>(key), ": ",
                    total.count, " x, ", total.bytes, " bytes\n");
  }
  return text;
}

}  // namespace shardmesh
