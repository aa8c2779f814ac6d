// SPDX-License-Identifier: Apache-2.0
//
// For tests: small checkpoints that ranks have saved, and the tool run on them in this process.
#ifndef SHARDMESH_TOOLS_CHECKPOINT_TESTING_SAMPLE_CHECKPOINTS_H_
#define SHARDMESH_TOOLS_CHECKPOINT_TESTING_SAMPLE_CHECKPOINTS_H_

#include <functional>
#include <string>
#include <vector>

#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/state/state_dict.h"
#include "shardmesh/tools/checkpoint/tool.h"

namespace shardmesh::checkpoint::tool::testing {

struct ToolResult {
  int code = 0;
  std::string out;
  std::string err;
};

ToolResult Tool(const std::vector<std::string>& arguments);

/// TestFolder()/name.
std::string InFolder(const std::string& name);
std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& bytes);
/// Flips a bit of the byte at `offset`, from the end if it is negative.
void Damage(const std::string& path, int64_t offset);

/// What every element is, unless a test changes it: small integers that every dtype holds.
using ValueOf = std::function<double(const std::string& name, int64_t index)>;
double SampleValue(const std::string& name, int64_t index);

/// Tensors in the order of their names: prime, uneven, without elements and scalar, of every dtype,
/// one tied ("embed.weight", "head.weight"), and plain values. Layouts follow from the mesh.
StateDict SampleState(const DeviceMesh& mesh, const ValueOf& value = SampleValue);

/// Saves SampleState from all ranks of the mesh.
void SaveSample(const std::string& path, const MeshShape& mesh, const ValueOf& value = SampleValue);
/// Calls `fn` on each rank.
void OnRanks(const MeshShape& mesh, const std::function<void(const DeviceMesh&)>& fn);

}  // namespace shardmesh::checkpoint::tool::testing

#endif  // SHARDMESH_TOOLS_CHECKPOINT_TESTING_SAMPLE_CHECKPOINTS_H_
