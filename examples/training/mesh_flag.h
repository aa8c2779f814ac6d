// SPDX-License-Identifier: Apache-2.0
//
// The mesh as it is written on the command line: "dp=2,tp=2".
#ifndef SHARDMESH_EXAMPLES_TRAINING_MESH_FLAG_H_
#define SHARDMESH_EXAMPLES_TRAINING_MESH_FLAG_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "shardmesh/mesh/mesh_shape.h"

namespace shardmesh::examples {

/// The most ranks of a mesh; more in one process are taken for a typing error.
inline constexpr int kMaxRanks = 1024;

/// NAME=SIZE, separated by commas, at least one; first axis outermost. The axes are dp_replicate,
/// dp and tp, each at most once, in any order and of any size.
/// Errors: kInvalidArgument, one line that names the part that is wrong and what was expected.
absl::StatusOr<MeshShape> ParseMesh(std::string_view text);

/// The inverse of ParseMesh.
std::string UnparseMesh(const MeshShape& mesh);

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_MESH_FLAG_H_
