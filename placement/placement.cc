// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/placement.h"

#include <ostream>

#include "absl/strings/str_cat.h"

namespace shardmesh {

std::string Placement::ToString() const {
  switch (kind_) {
    case Kind::kReplicate:
      return "R";
    case Kind::kShard:
      return absl::StrCat("S(", dim_, ")");
    case Kind::kPartial:
      return absl::StrCat("P(", std::string(Name(op_)), ")");
  }
  return "?";
}

std::ostream& operator<<(std::ostream& out, const Placement& placement) {
  return out << placement.ToString();
}

}  // namespace shardmesh
