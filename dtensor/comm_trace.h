// SPDX-License-Identifier: Apache-2.0
//
// Counts what this rank communicates while it is alive. Traces nest: each counts for itself.
//
//   CommTrace trace(mesh);
//   Backward(loss);
//   trace.Count("dp", "reduce_scatter");
#ifndef SHARDMESH_DTENSOR_COMM_TRACE_H_
#define SHARDMESH_DTENSOR_COMM_TRACE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shardmesh/comm/communicator.h"
#include "shardmesh/mesh/device_mesh.h"

namespace shardmesh {

/// Belongs to one rank; must not outlive the world. Barriers and groups of one rank are not
/// counted.
class CommTrace : public CollectiveObserver {
 public:
  struct Total {
    int64_t count = 0;
    int64_t bytes = 0;  ///< Sent by this rank (comm/collective_event.h).
    friend bool operator==(const Total&, const Total&) = default;
  };
  struct Event {
    std::string axis, kind;
    std::string op;  ///< Without the " of ..." that tells whose it was.
    int64_t bytes;
  };

  explicit CommTrace(const DeviceMesh& mesh);
  ~CommTrace() override;
  CommTrace(const CommTrace&) = delete;
  CommTrace& operator=(const CommTrace&) = delete;

  /// Empty strings match anything. Merged axes are one axis named "a+b".
  /// Errors: throws Error(kInvalidArgument) for a kind that does not exist, and for an axis that is
  /// neither one of the mesh nor in any event: a misspelt name must not count nothing.
  Total Sum(std::string_view axis = "", std::string_view kind = "", std::string_view op = "") const;
  int64_t Count(std::string_view axis = "", std::string_view kind = "",
                std::string_view op = "") const {
    return Sum(axis, kind, op).count;
  }
  int64_t Bytes(std::string_view axis = "", std::string_view kind = "",
                std::string_view op = "") const {
    return Sum(axis, kind, op).bytes;
  }
  /// axis -> kind -> total.
  std::map<std::string, std::map<std::string, Total>> ByAxis() const;
  const std::vector<Event>& events() const { return events_; }
  /// One line per (axis, kind, op).
  std::string ToString() const;

  void OnCollective(const CollectiveEvent& event) override;

 private:
  void CheckNames(std::string_view axis, std::string_view kind) const;

  DeviceMesh mesh_;
  std::vector<Event> events_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_COMM_TRACE_H_
