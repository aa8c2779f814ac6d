// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/mesh_flag.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"

namespace shardmesh::examples {
namespace {

constexpr char kExpectation[] = "expected NAME=SIZE,... with the axes dp_replicate, dp and tp";

// Of a part of the flag, which the flag's own message quotes as well.
constexpr size_t kMaxQuoted = 80;

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts..., "; ", kExpectation));
}

absl::StatusOr<MeshAxis> ParseAxis(std::string_view part) {
  const size_t equals = part.find('=');
  const std::string name(part.substr(0, equals));
  if (name != "dp_replicate" && name != "dp" && name != "tp") {
    return Refuse("unknown axis ", Quoted(name, kMaxQuoted));
  }
  if (equals == part.npos) return Refuse("axis ", name, " has no size");
  const std::string_view digits = part.substr(equals + 1);
  int size;
  if (!absl::SimpleAtoi(absl::string_view(digits.data(), digits.size()), &size) || size < 1 ||
      size > kMaxRanks) {
    return Refuse("size ", Quoted(digits, kMaxQuoted), " of axis ", name,
                  " is not a number from 1 to ", kMaxRanks);
  }
  return MeshAxis{name, size};
}

}  // namespace

absl::StatusOr<MeshShape> ParseMesh(std::string_view text) {
  std::vector<MeshAxis> axes;
  int64_t ranks = 1;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    SHARDMESH_ASSIGN_OR_RETURN(MeshAxis axis, ParseAxis(text.substr(begin, end - begin)));
    begin = end + 1;
    for (const MeshAxis& other : axes) {
      if (other.name == axis.name) return Refuse("axis ", axis.name, " appears twice");
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

}  // namespace shardmesh::examples
