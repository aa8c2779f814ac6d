// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <utility>
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

template <typename... Parts>
[[noreturn]] void Refuse(const Layout& from, const Layout& to, const AxisList& axes,
                         const Parts&... why) {
  ThrowInvalid("no transfers from ", from.ToString(), " to ", to.ToString(), " over ",
               Describe(from.mesh(), axes), ": ", why...);
}

void CheckAxes(const MeshShape& mesh, const AxisList& axes) {
  for (const int axis : axes) {
    if (axis < 0 || axis >= mesh.num_axes() || std::count(axes.begin(), axes.end(), axis) > 1) {
      ThrowInvalid("axes {", absl::StrJoin(axes, ", "), "} must be distinct axes of the mesh ",
                   mesh.ToString());
    }
  }
}

/// What a member of a group holds of a range of one dim, in some layout, and the coordinates along
/// those axes that split the dim.
struct Overlap {
  Coord coord;  // Other axes as in the rank that asks.
  ChunkRange range;
};

/// The transfers from or to one member of a group.
class Member {
 public:
  Member(const Layout& from, const Layout& to, const AxisList& axes, std::span<const int> coord)
      : from_(from), to_(to), axes_(axes), coord_(coord.begin(), coord.end()) {}

  RankTransfers Run() const;
  void AppendReceives(int position, std::vector<Transfer>& receives) const;

 private:
  bool IsInGroup(int axis) const {
    return std::find(axes_.begin(), axes_.end(), axis) != axes_.end();
  }
  int PositionOf(const Coord& coord) const {
    int position = 0;
    for (const int axis : axes_) position = position * from_.mesh().size(axis) + coord[axis];
    return position;
  }
  /// Whether the rank at `coord` holds the same box of `from_` as this one.
  bool HoldsTheSame(const Coord& coord) const {
    return std::all_of(axes_.begin(), axes_.end(), [&](int axis) {
      return !from_.placement(axis).IsShard() || coord[axis] == coord_[axis];
    });
  }
  /// Of the members that hold a box, the one that sends it to others has the lowest position.
  bool IsFirstHolder() const {
    return std::all_of(axes_.begin(), axes_.end(), [&](int axis) {
      return from_.placement(axis).IsShard() || coord_[axis] == 0;
    });
  }
  std::vector<Overlap> OverlapsInDim(const Layout& layout, int dim, ChunkRange wanted) const;
  /// Calls `fn` with the coordinate and the common box of each member whose box of `layout`
  /// overlaps `wanted`; along axes that split nothing, the coordinate is this rank's. Before, makes
  /// room in `transfers` for `copies` of each.
  template <typename Fn>
  void ForEachOverlap(const Layout& layout, const Box& wanted, int64_t copies,
                      std::vector<Transfer>& transfers, const Fn& fn) const;
  void AppendSends(int position, std::vector<Transfer>& sends) const;
  template <typename Fn>
  void ForEachReplica(const Coord& coord, const Fn& fn) const;

  const Layout& from_;
  const Layout& to_;
  const AxisList& axes_;
  const Coord coord_;
};

std::vector<Overlap> Member::OverlapsInDim(const Layout& layout, int dim, ChunkRange wanted) const {
  std::vector<Overlap> pieces = {{coord_, {0, layout.global_shape()[dim]}}};
  for (const int axis : layout.SplitAxes(dim)) {
    const int size = layout.mesh().size(axis);
    std::vector<Overlap> parts;
    for (const Overlap& piece : pieces) {
      const int64_t length = piece.range.end - piece.range.begin;
      if (length == 0) continue;
      int first = coord_[axis], last = first;
      if (IsInGroup(axis)) {
        const int64_t chunk = (length + size - 1) / size;
        const int64_t begin = std::max(wanted.begin, piece.range.begin) - piece.range.begin;
        const int64_t end = std::min(wanted.end, piece.range.end) - piece.range.begin;
        if (begin >= end) continue;
        first = static_cast<int>(begin / chunk);
        last = static_cast<int>((end - 1) / chunk);
      }
      parts.reserve(parts.size() + last - first + 1);
      for (int index = first; index <= last; ++index) {
        parts.push_back({piece.coord, Chunk(piece.range, index, size)});
        parts.back().coord[axis] = index;
      }
    }
    pieces = std::move(parts);
  }
  std::erase_if(pieces, [&](Overlap& piece) {
    piece.range = {std::max(wanted.begin, piece.range.begin),
                   std::min(wanted.end, piece.range.end)};
    return piece.range.begin >= piece.range.end;
  });
  return pieces;
}

template <typename Fn>
void Member::ForEachOverlap(const Layout& layout, const Box& wanted, int64_t copies,
                            std::vector<Transfer>& transfers, const Fn& fn) const {
  if (wanted.IsEmpty()) return;
  const int num_dims = wanted.num_dims();
  std::vector<std::vector<Overlap>> overlaps;
  for (int dim = 0; dim < num_dims; ++dim) {
    overlaps.push_back(OverlapsInDim(layout, dim, {wanted.begin[dim], wanted.end[dim]}));
    if (overlaps.back().empty()) return;
    copies *= static_cast<int64_t>(overlaps.back().size());
  }
  if (transfers.empty()) transfers.reserve(copies);
  std::vector<size_t> index(num_dims, 0);
  Coord coord = coord_;
  Box common = wanted;
  while (true) {
    for (int dim = 0; dim < num_dims; ++dim) {
      const Overlap& overlap = overlaps[dim][index[dim]];
      for (const int axis : layout.SplitAxes(dim)) coord[axis] = overlap.coord[axis];
      common.begin[dim] = overlap.range.begin;
      common.end[dim] = overlap.range.end;
    }
    fn(coord, common);
    int dim = num_dims - 1;
    while (dim >= 0 && ++index[dim] == overlaps[dim].size()) index[dim--] = 0;
    if (dim < 0) return;
  }
}

void Member::AppendReceives(int position, std::vector<Transfer>& receives) const {
  const size_t first = receives.size();
  const Box wanted = to_.LocalBox(coord_);
  int64_t missing = wanted.NumElements();
  ForEachOverlap(from_, wanted, /*copies=*/1, receives, [&](const Coord& coord, const Box& common) {
    Coord holder = coord;
    if (!HoldsTheSame(coord)) {
      for (const int axis : axes_) {
        if (!from_.placement(axis).IsShard()) holder[axis] = 0;
      }
    }
    receives.push_back({PositionOf(holder), position, common});
    missing -= common.NumElements();
  });
  if (missing != 0) {
    Refuse(from_, to_, axes_, "no member holds all of ", wanted.ToString(), ", which the rank at (",
           absl::StrJoin(coord_, ", "), ") needs");
  }
  const auto by_source = [](const Transfer& a, const Transfer& b) { return a.source < b.source; };
  const auto begin = receives.begin() + static_cast<int64_t>(first);
  if (!std::is_sorted(begin, receives.end(), by_source))
    std::sort(begin, receives.end(), by_source);
}

/// Calls `fn` with `coord` at every coordinate along the axes of the group that do not split in
/// `to_`.
template <typename Fn>
void Member::ForEachReplica(const Coord& coord, const Fn& fn) const {
  Coord replica = coord;
  for (const int axis : axes_) {
    if (!to_.placement(axis).IsShard()) replica[axis] = 0;
  }
  while (true) {
    fn(replica);
    size_t i = axes_.size();
    for (; i > 0; --i) {
      const int axis = axes_[i - 1];
      if (to_.placement(axis).IsShard()) continue;
      if (++replica[axis] < to_.mesh().size(axis)) break;
      replica[axis] = 0;
    }
    if (i == 0) return;
  }
}

void Member::AppendSends(int position, std::vector<Transfer>& sends) const {
  int64_t copies = 1;
  for (const int axis : axes_) copies *= to_.placement(axis).IsShard() ? 1 : to_.mesh().size(axis);
  const Box held = from_.LocalBox(coord_);
  ForEachOverlap(to_, held, copies, sends, [&](const Coord& coord, const Box& common) {
    ForEachReplica(coord, [&](const Coord& target) {
      // Those that hold the box take their own.
      if (!HoldsTheSame(target) || target == coord_)
        sends.push_back({position, PositionOf(target), common});
    });
  });
  const auto by_target = [](const Transfer& a, const Transfer& b) { return a.target < b.target; };
  if (!std::is_sorted(sends.begin(), sends.end(), by_target))
    std::sort(sends.begin(), sends.end(), by_target);
}

RankTransfers Member::Run() const {
  RankTransfers transfers;
  for (const int axis : axes_) transfers.group_size *= from_.mesh().size(axis);
  transfers.position = PositionOf(coord_);
  AppendReceives(transfers.position, transfers.receives);
  if (IsFirstHolder()) {
    AppendSends(transfers.position, transfers.sends);
  } else {
    for (const Transfer& transfer : transfers.receives) {
      if (transfer.source == transfers.position) transfers.sends.push_back(transfer);
    }
  }
  return transfers;
}

/// Checks what all members can know.
void CheckGroup(const Layout& from, const Layout& to, const AxisList& axes,
                std::span<const int> coord) {
  if (!from || !to || from.mesh() != to.mesh() || from.global_shape() != to.global_shape()) {
    ThrowInvalid("no transfers from ", from.ToString(), " to ", to.ToString(),
                 ": mesh and global shape must be equal");
  }
  CheckAxes(from.mesh(), axes);
  from.mesh().CheckCoord(coord);
  for (const int axis : axes) {
    if (from.placement(axis).IsPartial() || to.placement(axis).IsPartial())
      Refuse(from, to, axes, "values would have to be reduced");
  }
}

}  // namespace

std::vector<Coord> GroupCoords(const MeshShape& mesh, const AxisList& axes,
                               std::span<const int> coord) {
  mesh.CheckCoord(coord);
  CheckAxes(mesh, axes);
  int64_t size = 1;
  for (const int axis : axes) size *= mesh.size(axis);
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
  CheckGroup(from, to, axes, coord);
  std::vector<Transfer> transfers;
  int position = 0;
  for (const Coord& member : GroupCoords(from.mesh(), axes, coord))
    Member(from, to, axes, member).AppendReceives(position++, transfers);
  return transfers;
}

RankTransfers TransfersOfRank(const Layout& from, const Layout& to, const AxisList& axes,
                              std::span<const int> coord) {
  CheckGroup(from, to, axes, coord);
  return Member(from, to, axes, coord).Run();
}

}  // namespace shardmesh
