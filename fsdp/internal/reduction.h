// SPDX-License-Identifier: Apache-2.0
//
// The reduction of one unit's gradients: from the buffers that backward has filled to the shards.
#ifndef SHARDMESH_FSDP_INTERNAL_REDUCTION_H_
#define SHARDMESH_FSDP_INTERNAL_REDUCTION_H_

#include <string>
#include <vector>

#include "shardmesh/comm/work.h"
#include "shardmesh/fsdp/internal/unit_parameter.h"

namespace shardmesh::fsdp::internal {

/// Belongs to one rank; its parameters must outlive it.
class Reduction {
 public:
  /// Takes the gradients out of `parameters`' buffers and posts the first collectives. `unit` names
  /// the unit: ranks that reduce different ones, or other parameters of it, are told so.
  Reduction(const DeviceMesh& mesh, const std::string& unit,
            std::vector<UnitParameter*> parameters);
  /// Waits, posts what has to follow, and gives the parameters their reduced gradients.
  void Finish();
  /// Waits for what is in flight and drops the results. Does not throw.
  void Abandon();

 private:
  struct Entry {
    UnitParameter* parameter;
    std::vector<Step> steps;
    Tensor value;
    Tensor target;
  };
  void Post(size_t phase);
  void PostLocally(const Step& step, Entry& entry);

  DeviceMesh mesh_;
  std::string op_;
  std::vector<Entry> entries_;
  std::vector<Work> works_;
  size_t num_phases_ = 0;
};

}  // namespace shardmesh::fsdp::internal

#endif  // SHARDMESH_FSDP_INTERNAL_REDUCTION_H_
