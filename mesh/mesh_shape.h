// SPDX-License-Identifier: Apache-2.0
//
// The shape of a mesh: names, sizes and links of its axes, first axis outermost (row-major). It
// knows no ranks and no communicators, so planning for a mesh of 16,384 ranks runs on any machine.
//
//   MeshShape shape = {{"dp", 2}, {"tp", 4}};
//   shape.Size("tp");        // 4
//   shape.CoordOf(5);        // {1, 1}
//   shape.ToString();        // "[dp=2, tp=4]"
#ifndef SHARDMESH_MESH_MESH_SHAPE_H_
#define SHARDMESH_MESH_MESH_SHAPE_H_

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace shardmesh {

/// One value per mesh axis: a position in the mesh.
using Coord = absl::InlinedVector<int, 4>;

/// The cost of communication along one axis: seconds = latency * rounds + bytes / bandwidth, with
/// ceil(log2 p) rounds in a group of p, twice that for an all-reduce. A group of several axes has
/// the latency and the bandwidth of its slowest axis. Only ratios matter.
struct LinkCost {
  double latency_seconds = 5e-6;
  double bytes_per_second = 10e9;
  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};

/// The link is part of what an axis is: all ranks plan with it, so all must give the same.
struct MeshAxis {
  std::string name;
  int size = 1;
  LinkCost link = {};
  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

/// Immutable value type.
class MeshShape {
 public:
  static constexpr int kMaxAxes = 6;

  /// The mesh without axes: one rank.
  MeshShape() = default;
  /// Throws Error(kInvalidArgument) on an empty or repeated name, a name with a character other
  /// than letters, digits and '_', a size < 1, more than kMaxAxes axes, more ranks than an int
  /// counts, a latency that is negative or infinite, or a bandwidth that is not positive.
  MeshShape(std::initializer_list<MeshAxis> axes) : MeshShape(std::vector<MeshAxis>(axes)) {}
  explicit MeshShape(std::vector<MeshAxis> axes);

  int num_axes() const { return static_cast<int>(axes_.size()); }
  const MeshAxis& axis(int index) const { return axes_[index]; }
  const std::vector<MeshAxis>& axes() const { return axes_; }
  int size(int index) const { return axes_[index].size; }
  /// Product of all sizes.
  int64_t NumRanks() const;

  bool Has(std::string_view axis) const;
  /// Throws Error(kInvalidArgument) naming the axis and the mesh if there is no such axis.
  int Index(std::string_view axis) const;
  int Size(std::string_view axis) const { return axes_[Index(axis)].size; }

  /// Row-major position of rank `rank` in [0, NumRanks()), and back.
  /// Errors: both throw Error(kInvalidArgument) naming the mesh if there is no such rank or
  /// position.
  Coord CoordOf(int64_t rank) const;
  int64_t RankOf(std::span<const int> coord) const;
  int64_t RankOf(std::initializer_list<int> coord) const {
    return RankOf(std::span(coord.begin(), coord.size()));
  }
  /// Throws Error(kInvalidArgument) if `coord` is not a position in this mesh.
  void CheckCoord(std::span<const int> coord) const;

  /// "[dp=2, tp=4]"; a link that is not the default shows: "[dp=2 (10 us, 1 GB/s), tp=4]".
  std::string ToString() const;

  friend bool operator==(const MeshShape&, const MeshShape&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const MeshShape& shape) {
    for (const MeshAxis& axis : shape.axes_) {
      h = H::combine(std::move(h), axis.name, axis.size, axis.link.latency_seconds,
                     axis.link.bytes_per_second);
    }
    return H::combine(std::move(h), shape.axes_.size());
  }

 private:
  std::vector<MeshAxis> axes_;
};

std::ostream& operator<<(std::ostream& out, const MeshShape& shape);

}  // namespace shardmesh

#endif  // SHARDMESH_MESH_MESH_SHAPE_H_
