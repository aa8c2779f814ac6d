// SPDX-License-Identifier: Apache-2.0
//
// A named n-dimensional grid of ranks, with one communicator per axis.
//
//   DeviceMesh mesh = DeviceMesh::Create(world, {{"dp", 2}, {"tp", 4}});
//   mesh.Size("tp");          // 4
//   mesh.LocalRank("tp");     // this rank's coordinate along tp
//   mesh.Group("tp");         // communicator of the ranks that differ only in tp
#ifndef SHARDMESH_MESH_DEVICE_MESH_H_
#define SHARDMESH_MESH_DEVICE_MESH_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardmesh/comm/communicator.h"
#include "shardmesh/mesh/mesh_shape.h"

namespace shardmesh {

/// An immutable shared handle that belongs to one rank. Equality: same shape, same ranks. All
/// errors throw Error(kInvalidArgument) naming the mesh and what does not fit it; communicators,
/// context and locals throw Error(kFailedPrecondition) after the rank has ended or on another
/// thread.
class DeviceMesh {
 public:
  /// An undefined mesh: only operator bool and assignment are allowed.
  DeviceMesh() = default;

  /// World rank r has the row-major coordinate r.
  /// Collective: all ranks of the world must call.
  /// Errors: throws Error(kInvalidArgument) naming both if the sizes do not multiply to the size of
  /// the world.
  static DeviceMesh Create(Communicator& world, const MeshShape& shape);
  /// ranks[i] is the world rank at row-major position i: any permutation or subset. Ranks outside
  /// the mesh must call too; they get a mesh with IsMember() == false, which has no coordinates and
  /// no groups.
  static DeviceMesh Create(Communicator& world, const MeshShape& shape, std::span<const int> ranks);

  explicit operator bool() const { return data_ != nullptr; }
  const MeshShape& shape() const;
  bool IsMember() const;
  /// World ranks, row-major.
  const std::vector<int>& ranks() const;
  const Coord& coord() const;
  int Size(std::string_view axis) const { return shape().Size(axis); }
  int LocalRank(std::string_view axis) const { return coord()[shape().Index(axis)]; }

  /// The mesh of one axis, or of several in the order given, through this rank: other axes are
  /// fixed at this rank's coordinate. Local: Create has made the communicators. Repeated calls
  /// return equal meshes.
  DeviceMesh operator[](std::string_view axis) const { return Slice({std::string(axis)}); }
  DeviceMesh Slice(const std::vector<std::string>& axes) const;
  /// The mesh in which `axes` (adjacent or not, in the order given, first outermost) become one
  /// axis `name`, at the position of the first of them in that order, with the latency and the
  /// bandwidth of the slowest of them. Local; repeated calls return an equal mesh.
  DeviceMesh Flatten(const std::vector<std::string>& axes, std::string_view name) const;
  /// The mesh in which axis `axis` becomes `parts`, first outermost; their sizes must multiply to
  /// its size. Local.
  DeviceMesh Unflatten(std::string_view axis, const std::vector<MeshAxis>& parts) const;

  /// The communicator of the ranks that differ from this one only in `axis`, ordered by coordinate.
  Communicator& Group(int axis) const;
  Communicator& Group(std::string_view axis) const { return Group(shape().Index(axis)); }
  /// The same for several axes, row-major in mesh order; named "dp+tp". Local: what the ranks of a
  /// slice do among themselves is no business of other slices.
  Communicator& Group(std::span<const int> axes) const;
  /// The communicator of all ranks of the mesh.
  Communicator& WorldGroup() const;

  ExecutionContext& context() const;
  TypeMap& locals() const;

  /// Whether this is the thread of the mesh's rank, and the rank has not ended.
  bool IsUsableHere() const;
  /// Errors: throws Error(kInvalidArgument) naming `op` if this is no mesh,
  /// Error(kFailedPrecondition) naming op, mesh and rank unless IsUsableHere().
  void CheckUsable(std::string_view op) const {
    if (!IsUsableHere()) ThrowNotUsable(op);
  }

  std::string ToString() const { return shape().ToString(); }
  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b);

 private:
  struct Root;
  struct Data;
  explicit DeviceMesh(std::shared_ptr<Data> data) : data_(std::move(data)) {}
  const Data& AnyData() const;
  const Data& MemberData() const;
  [[noreturn]] void ThrowNotUsable(std::string_view op) const;

  std::shared_ptr<Data> data_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_MESH_DEVICE_MESH_H_
