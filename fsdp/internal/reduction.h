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
  /// Takes the gradients out of `parameters`' buffers and posts the first collectives. Unless
  /// `all_reduce`, summands of the shards wait in the parameters; else those that wait are added.
  /// `unit` names the unit: ranks that reduce different ones, or other parameters of it, are told
  /// so. Counts in `stats`, which must outlive it.
  Reduction(const DeviceMesh& mesh, const std::string& unit, std::vector<UnitParameter*> parameters,
            bool all_reduce, UnitStats& stats);
  /// Waits, posts what has to follow, and gives the parameters their gradients.
  void Finish();
  /// Waits for what is in flight and drops the results. Does not throw.
  void Abandon();

 private:
  struct Entry {
    UnitParameter* parameter = nullptr;
    std::vector<Step> steps;
    Tensor value;
    Tensor target;
    Layout result;           // After all steps.
    Tensor earlier;          // Summands that have waited.
    size_t joins_after = 0;  // So many steps they have the layout of the value.
  };
  Entry EntryOf(UnitParameter& parameter, bool all_reduce) const;
  void Join(size_t phase);
  void Post(size_t phase);
  void PostLocally(const Step& step, Entry& entry);

  DeviceMesh mesh_;
  UnitStats* stats_;
  std::string op_;
  std::vector<Entry> entries_;
  std::vector<Work> works_;
  size_t num_phases_ = 0;
};

}  // namespace shardmesh::fsdp::internal

#endif  // SHARDMESH_FSDP_INTERNAL_REDUCTION_H_
