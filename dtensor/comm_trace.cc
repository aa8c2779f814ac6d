// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/comm_trace.h"

#include <tuple>

#include "absl/strings/str_cat.h"

namespace shardmesh {

CommTrace::CommTrace(const DeviceMesh& mesh) : mesh_(mesh) { mesh_.Whole().AddObserver(this); }

CommTrace::~CommTrace() { mesh_.Whole().RemoveObserver(this); }

void CommTrace::OnCollective(const CollectiveEvent& event) {
  if (event.kind == "barrier" || event.group_size == 1) return;
  events_.push_back(
      {std::string(event.group), std::string(event.kind), std::string(event.op), event.bytes_sent});
}

CommTrace::Total CommTrace::Sum(std::string_view axis, std::string_view kind,
                                std::string_view op) const {
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
