// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shardmesh/base/error.h"
#include "shardmesh/placement/plan.h"

namespace shardmesh {
namespace {

/// "axes {dp, tp}".
std::string Describe(const MeshShape& mesh, const AxisList& axes) {
  const auto name = [&](std::string* out, int axis) { absl::StrAppend(out, mesh.axis(axis).name); };
  return absl::StrCat("axes {", absl::StrJoin(axes, ", ", name), "}");
}

/// The first member to hold each distinct box. Boxes of two members in one layout are equal if the
/// members differ only along axes that do not shard, and disjoint otherwise.
std::vector<int> FirstHolders(const Layout& from, const AxisList& axes,
                              const std::vector<Coord>& members) {
  std::vector<int> holders;
  for (size_t member = 0; member < members.size(); ++member) {
    const auto is_first = [&](int axis) {
      return from.placement(axis).IsShard() || members[member][axis] == 0;
    };
    if (std::all_of(axes.begin(), axes.end(), is_first))
      holders.push_back(static_cast<int>(member));
  }
  return holders;
}

}  // namespace

std::vector<Coord> GroupCoords(const MeshShape& mesh, const AxisList& axes,
                               std::span<const int> coord) {
  mesh.CheckCoord(coord);
  int64_t size = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0 || axes[i] >= mesh.num_axes() ||
        std::count(axes.begin(), axes.end(), axes[i]) > 1) {
      ThrowInvalid("axes {", absl::StrJoin(axes, ", "), "} must be distinct axes of the mesh ",
                   mesh.ToString());
    }
    size *= mesh.size(axes[i]);
  }
  std::vector<Coord> members(size, Coord(coord.begin(), coord.end()));
  for (int64_t member = 0; member < size; ++member) {
    int64_t rest = member;
    for (size_t i = axes.size(); i-- > 0;) {
      members[member][axes[i]] = static_cast<int>(rest % mesh.size(axes[i]));
      rest /= mesh.size(axes[i]);
    }
  }
  return members;
}

std::vector<Transfer> Transfers(const Layout& from, const Layout& to, const AxisList& axes,
                                std::span<const int> coord) {
  if (!from || !to || from.mesh() != to.mesh() || from.global_shape() != to.global_shape()) {
    ThrowInvalid("no transfers from ", from.ToString(), " to ", to.ToString(),
                 ": mesh and global shape must be equal");
  }
  const std::vector<Coord> members = GroupCoords(from.mesh(), axes, coord);
  const auto refuse = [&](const auto&... why) {
    ThrowInvalid("no transfers from ", from.ToString(), " to ", to.ToString(), " over ",
                 Describe(from.mesh(), axes), ": ", why...);
  };
  for (const int axis : axes) {
    if (from.placement(axis).IsPartial() || to.placement(axis).IsPartial())
      refuse("values would have to be reduced");
  }
  std::vector<Box> held;
  for (const Coord& member : members) held.push_back(from.LocalBox(member));
  const std::vector<int> holders = FirstHolders(from, axes, members);

  std::vector<Transfer> transfers;
  for (int target = 0; target < static_cast<int>(members.size()); ++target) {
    const size_t first = transfers.size();
    const Box wanted = to.LocalBox(members[target]);
    int64_t missing = wanted.NumElements();
    for (const int holder : holders) {
      const Box common = Intersect(held[holder], wanted);
      if (common.IsEmpty()) continue;
      transfers.push_back({held[holder] == held[target] ? target : holder, target, common});
      missing -= common.NumElements();
    }
    if (missing != 0) {
      refuse("no member holds all of ", wanted.ToString(), ", which the rank at (",
             absl::StrJoin(members[target], ", "), ") needs");
    }
    std::sort(transfers.begin() + static_cast<int64_t>(first), transfers.end(),
              [](const Transfer& a, const Transfer& b) { return a.source < b.source; });
  }
  return transfers;
}

}  // namespace shardmesh
