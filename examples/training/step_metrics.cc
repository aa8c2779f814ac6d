// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/step_metrics.h"

#include "nlohmann/json.hpp"

namespace shardmesh::examples {

TrafficTotals TotalsOf(const CommTrace& trace) {
  TrafficTotals totals;
  for (const CommTrace::Event& event : trace.events()) {
    CommTrace::Total& total = totals[{event.axis, event.kind, event.op}];
    ++total.count;
    total.bytes += event.bytes;
  }
  return totals;
}

std::string StepMetrics::ToJson() const {
  std::map<std::string, std::map<std::string, CommTrace::Total>> by_axis;
  for (const auto& [what, part] : traffic) {
    CommTrace::Total& total = by_axis[what.axis][what.kind];
    total.count += part.count;
    total.bytes += part.bytes;
  }
  auto collectives = nlohmann::ordered_json::object();
  for (const auto& [axis, kinds] : by_axis) {
    for (const auto& [kind, total] : kinds) {
      collectives[axis][kind] = {{"count", total.count}, {"bytes", total.bytes}};
    }
  }
  const nlohmann::ordered_json object = {{"step", step},
                                         {"loss", loss},
                                         {"grad_norm", grad_norm},
                                         {"lr", lr},
                                         {"tokens_per_s", tokens_per_s},
                                         {"step_ms", step_ms},
                                         {"peak_bytes", peak_bytes},
                                         {"collectives", collectives}};
  return object.dump();
}

}  // namespace shardmesh::examples
