// SPDX-License-Identifier: Apache-2.0
//
// The mesh as it is written on the command line: "dp=2,tp=2".
#ifndef SHARDMESH_EXAMPLES_TRAINING_MESH_FLAG_H_
#define SHARDMESH_EXAMPLES_TRAINING_MESH_FLAG_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "shardmesh/mesh/mesh_shape.h"

namespace shardmesh::examples {

/// More ranks in one process than this are taken for a slip of the pen.
inline constexpr int kMaxRanks = 1024;

/// NAME=SIZE, separated by commas, at least one; first axis outermost. The axes are dp_replicate,
/// dp and tp, each at most once, in any order and of any size.
/// Errors: kInvalidArgument, one line that names the part that is wrong and what was expected.
absl::StatusOr<MeshShape> ParseMesh(std::string_view text);

/// The inverse of ParseMesh.
std::string UnparseMesh(const MeshShape& mesh);

/// Type of a flag that holds a mesh.
struct MeshFlag {
  MeshShape shape;
};
bool AbslParseFlag(absl::string_view text, MeshFlag* flag, std::string* error);
std::string AbslUnparseFlag(const MeshFlag& flag);

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_MESH_FLAG_H_
