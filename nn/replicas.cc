// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/replicas.h"

#include <xxhash.h>

#include <map>
#include <utility>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::nn {
namespace {

// Parameters that are replicated along the same axes of the same mesh.
struct ReplicaGroup {
  DeviceMesh mesh;
  std::vector<int> axes;
  std::vector<Parameter> parameters;

  Communicator& Members() const {
    return axes.size() == 1 ? mesh.Group(axes[0])
                            : mesh.Group(std::span<const int>(axes.data(), axes.size()));
  }
};

std::vector<int> ReplicatedAxes(const Parameter& parameter) {
  std::vector<int> axes;
  const MeshShape& shape = parameter.mesh().shape();
  for (int axis = 0; axis < shape.num_axes(); ++axis) {
    if (shape.size(axis) > 1 && parameter.layout().placement(axis).IsReplicate())
      axes.push_back(axis);
  }
  return axes;
}

std::vector<ReplicaGroup> GroupsOf(const std::vector<Parameter>& parameters) {
  std::vector<ReplicaGroup> groups;
  for (const Parameter& parameter : parameters) {
    if (!parameter.IsMaterialized()) continue;
    const std::vector<int> axes = ReplicatedAxes(parameter);
    if (axes.empty()) continue;
    ReplicaGroup* group = nullptr;
    for (ReplicaGroup& other : groups) {
      if (other.mesh == parameter.mesh() && other.axes == axes) group = &other;
    }
    if (group == nullptr) group = &groups.emplace_back(ReplicaGroup{parameter.mesh(), axes, {}});
    group->parameters.push_back(parameter);
  }
  return groups;
}

uint64_t DigestOf(const Parameter& parameter) {
  const DTensor& data = parameter.data();
  const Tensor local = ops::Contiguous(data.mesh().context(), data.local());
  return XXH64(local.raw_data(), static_cast<size_t>(local.Bytes()), /*seed=*/0);
}

// [member][i]: digest i of each member.
std::vector<std::vector<int64_t>> Gather(const ReplicaGroup& group,
                                         const std::vector<uint64_t>& digests) {
  Communicator& members = group.Members();
  ExecutionContext& context = group.mesh.context();
  const Dims shape = {static_cast<int64_t>(digests.size())};
  std::vector<int64_t> values(digests.begin(), digests.end());
  AllGatherItem item;
  item.source = Tensor::FromValues<int64_t>(context, shape, std::span<const int64_t>(values));
  for (int i = 0; i < members.size(); ++i)
    item.targets.push_back(Tensor::Empty(context, shape, DType::kI64));
  const std::vector<Tensor> targets = item.targets;
  members.AllGather({std::move(item)}, "check_replicas").Wait();
  std::vector<std::vector<int64_t>> gathered;
  for (const Tensor& target : targets) gathered.push_back(target.ToVector<int64_t>());
  return gathered;
}

void Check(const ReplicaGroup& group) {
  std::vector<uint64_t> digests;
  for (const Parameter& parameter : group.parameters) digests.push_back(DigestOf(parameter));
  const uint64_t all = XXH64(digests.data(), digests.size() * sizeof(uint64_t), /*seed=*/0);
  const std::vector<std::vector<int64_t>> totals = Gather(group, {all});
  bool differs = false;
  for (const std::vector<int64_t>& total : totals) differs |= total != totals[0];
  if (!differs) return;
  const std::vector<std::vector<int64_t>> gathered = Gather(group, digests);
  for (size_t i = 0; i < digests.size(); ++i) {
    for (size_t member = 1; member < gathered.size(); ++member) {
      if (gathered[member][i] == gathered[0][i]) continue;
      const std::vector<int>& ranks = group.Members().world_ranks();
      Throw(absl::StatusCode::kFailedPrecondition, "CheckReplicas: parameter ",
            group.parameters[i].ToString(), " has other values on rank ", ranks[member],
            " than on rank ", ranks[0],
            ", though it is replicated between them; initialise or load it alike");
    }
  }
}

}  // namespace

void CheckReplicas(Module& module) {
  std::vector<Parameter> state = module.Parameters();
  for (const Module::NamedBuffer& entry : module.NamedBuffers()) state.push_back(entry.buffer);
  for (const ReplicaGroup& group : GroupsOf(state)) Check(group);
}

}  // namespace shardmesh::nn
