// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/mesh_flag.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "shardmesh/base/status_macros.h"

namespace shardmesh::examples {
namespace {

constexpr char kExpectation[] = "expected NAME=SIZE,... with the axes dp_replicate, dp and tp";

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts..., "; ", kExpectation));
}

absl::StatusOr<MeshAxis> ParseAxis(absl::string_view part) {
  const std::vector<absl::string_view> sides = absl::StrSplit(part, absl::MaxSplits('=', 1));
  const absl::string_view name = sides[0];
  if (name != "dp_replicate" && name != "dp" && name != "tp") {
    return Refuse("unknown axis '", name, "'");
  }
  if (sides.size() == 1) return Refuse("axis ", name, " has no size");
  int size;
  if (!absl::SimpleAtoi(sides[1], &size) || size < 1 || size > kMaxRanks) {
    return Refuse("size '", sides[1], "' of axis ", name, " is not a number from 1 to ", kMaxRanks);
  }
  return MeshAxis{std::string(name), size};
}

}  // namespace

absl::StatusOr<MeshShape> ParseMesh(std::string_view text) {
  std::vector<MeshAxis> axes;
  int64_t ranks = 1;
  for (absl::string_view part : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    SHARDMESH_ASSIGN_OR_RETURN(MeshAxis axis, ParseAxis(part));
    for (const MeshAxis& other : axes) {
      if (other.name == axis.name) return Refuse("axis ", axis.name, " stands there twice");
    }
    ranks *= axis.size;
    axes.push_back(std::move(axis));
  }
  if (ranks > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("a mesh of ", ranks, " ranks; one process runs at most ", kMaxRanks));
  }
  return MeshShape(std::move(axes));
}

std::string UnparseMesh(const MeshShape& mesh) {
  return absl::StrJoin(mesh.axes(), ",", [](std::string* out, const MeshAxis& axis) {
    absl::StrAppend(out, axis.name, "=", axis.size);
  });
}

bool AbslParseFlag(absl::string_view text, MeshFlag* flag, std::string* error) {
  absl::StatusOr<MeshShape> shape = ParseMesh(std::string_view(text.data(), text.size()));
  if (!shape.ok()) {
    *error = std::string(shape.status().message());
    return false;
  }
  flag->shape = *std::move(shape);
  return true;
}

std::string AbslUnparseFlag(const MeshFlag& flag) { return UnparseMesh(flag.shape); }

}  // namespace shardmesh::examples
