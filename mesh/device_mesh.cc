// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/mesh/device_mesh.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shardmesh/base/check.h"
#include "shardmesh/base/error.h"
#include "shardmesh/base/rank_list.h"

namespace shardmesh {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

/// All ranks of a mesh as a grid of unnamed axes. Every rank has the same grid, and a slice has
/// that of the full mesh, so all ranks decide alike from it.
struct Grid {
  std::vector<int> sizes;
  std::vector<int> ranks;  // World ranks, row-major.

  int64_t Stride(int axis) const {
    return std::accumulate(sizes.begin() + axis + 1, sizes.end(), int64_t{1}, std::multiplies<>());
  }
  int CoordOf(int64_t position, int axis) const {
    return static_cast<int>(position / Stride(axis) % sizes[axis]);
  }
  int64_t PositionOf(int world_rank) const {
    return std::find(ranks.begin(), ranks.end(), world_rank) - ranks.begin();
  }

  // The ranks that differ from the one at `position` only in `axes`, row-major in the order given.
  std::vector<int> RanksAlong(int64_t position, const std::vector<int>& axes) const {
    for (const int axis : axes) position -= CoordOf(position, axis) * Stride(axis);
    std::vector<int64_t> positions = {position};
    for (const int axis : axes) {
      std::vector<int64_t> longer;
      for (const int64_t p : positions) {
        for (int i = 0; i < sizes[axis]; ++i) longer.push_back(p + i * Stride(axis));
      }
      positions = std::move(longer);
    }
    std::vector<int> result;
    for (const int64_t p : positions) result.push_back(ranks[p]);
    return result;
  }
};

std::string JoinedNames(const MeshShape& shape, std::span<const int> axes) {
  return absl::StrJoin(axes, "+",
                       [&](std::string* out, int axis) { out->append(shape.axis(axis).name); });
}

void CheckRanks(const Communicator& world, const MeshShape& shape, std::span<const int> ranks) {
  if (static_cast<int64_t>(ranks.size()) != shape.NumRanks()) {
    ThrowInvalid("mesh ", shape.ToString(), " has ", shape.NumRanks(), " ranks, ", ranks.size(),
                 " were given");
  }
  std::vector<bool> seen(world.size());
  for (const int rank : ranks) {
    if (rank < 0 || rank >= world.size()) {
      ThrowInvalid("mesh ", shape.ToString(), ": rank ", rank, " is not in the world of ",
                   world.size(), " ranks");
    }
    if (seen[rank]) ThrowInvalid("mesh ", shape.ToString(), ": rank ", rank, " is given twice");
    seen[rank] = true;
  }
}

}  // namespace

/// State shared by all meshes derived from one Create.
struct DeviceMesh::Root {
  explicit Root(Communicator& world)
      : world(world), context(world.context()), lifetime(world.lifetime()) {}

  // The group of these ranks of the world, of which this rank is one; made by the first call.
  // Local: the ranks of a slice are nobody else's business.
  Communicator& GroupOf(const std::vector<int>& world_ranks, const std::string& name);

  Communicator& world;        // Until the rank ends.
  ExecutionContext& context;  // The same.
  const std::shared_ptr<const RankLifetime> lifetime;
  std::unique_ptr<Communicator> whole;  // All ranks of Create; null on ranks outside.
  std::map<std::pair<std::vector<int>, std::string>, std::unique_ptr<Communicator>> groups;
};

struct DeviceMesh::Data {
  std::shared_ptr<Root> root;
  Grid grid;
  std::vector<int> grid_axes;  // For each axis of the mesh, its axis of the grid.
  MeshShape shape;
  std::vector<int> ranks;
  Coord coord;
  bool is_member = false;
  std::vector<Communicator*> axis_groups;  // One per axis; empty on ranks outside the mesh.

  // Caches.
  std::map<std::vector<int>, Communicator*> merged_groups;
  std::map<std::vector<std::string>, DeviceMesh> slices;

  // Fills in ranks, coord and is_member.
  void Locate();
  // The group along these axes of the mesh.
  Communicator& MakeGroup(std::span<const int> axes, const std::string& name) const;
};

Communicator& DeviceMesh::Root::GroupOf(const std::vector<int>& world_ranks,
                                        const std::string& name) {
  std::unique_ptr<Communicator>& group = groups[{world_ranks, name}];
  if (group != nullptr) return *group;
  std::vector<int> members;
  for (const int rank : world_ranks) {
    const std::vector<int>& all = whole->world_ranks();
    members.push_back(static_cast<int>(std::find(all.begin(), all.end(), rank) - all.begin()));
  }
  group = whole->Subgroup(members, name);
  return *group;
}

void DeviceMesh::Data::Locate() {
  const int64_t own = grid.PositionOf(root->world.world_rank());
  is_member = own < static_cast<int64_t>(grid.ranks.size());
  ranks = grid.RanksAlong(is_member ? own : 0, grid_axes);
  if (!is_member) return;
  for (const int axis : grid_axes) coord.push_back(grid.CoordOf(own, axis));
}

Communicator& DeviceMesh::Data::MakeGroup(std::span<const int> axes,
                                          const std::string& name) const {
  std::vector<int> along;
  for (const int axis : axes) along.push_back(grid_axes[axis]);
  const int64_t own = grid.PositionOf(root->world.world_rank());
  return root->GroupOf(grid.RanksAlong(own, along), name);
}

DeviceMesh DeviceMesh::Create(Communicator& world, const MeshShape& shape) {
  if (shape.NumRanks() != world.size()) {
    ThrowInvalid("mesh ", shape.ToString(), " needs ", shape.NumRanks(), " ranks, the world has ",
                 world.size());
  }
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return Create(world, shape, ranks);
}

DeviceMesh DeviceMesh::Create(Communicator& world, const MeshShape& shape,
                              std::span<const int> ranks) {
  CheckRanks(world, shape, ranks);
  const auto data = std::make_shared<Data>();
  data->root = std::make_shared<Root>(world);
  for (const MeshAxis& axis : shape.axes()) data->grid.sizes.push_back(axis.size);
  for (const int rank : ranks) data->grid.ranks.push_back(world.world_ranks()[rank]);
  data->grid_axes.resize(shape.num_axes());
  std::iota(data->grid_axes.begin(), data->grid_axes.end(), 0);
  data->shape = shape;
  data->Locate();

  // By its name all ranks see whether they mean the same mesh.
  const std::string name = shape.ToString();
  const auto key = static_cast<int>(data->grid.PositionOf(world.world_rank()));
  auto whole = world.Split(data->is_member ? 0 : -1, key, name);
  if (!data->is_member) return DeviceMesh(data);
  if (whole->world_ranks() != data->grid.ranks) {
    ThrowInvalid("ranks disagree about the mesh ", shape.ToString(), ": rank ", world.world_rank(),
                 " was given ", RankList(data->grid.ranks), ", together they are ",
                 RankList(whole->world_ranks()));
  }
  data->root->whole = std::move(whole);
  for (int axis = 0; axis < shape.num_axes(); ++axis) {
    data->axis_groups.push_back(&data->MakeGroup({&axis, 1}, shape.axis(axis).name));
  }
  return DeviceMesh(data);
}

const MeshShape& DeviceMesh::shape() const { return AnyData().shape; }
bool DeviceMesh::IsMember() const { return AnyData().is_member; }
const std::vector<int>& DeviceMesh::ranks() const { return AnyData().ranks; }
const Coord& DeviceMesh::coord() const { return MemberData().coord; }

ExecutionContext& DeviceMesh::context() const {
  const Root& root = *AnyData().root;
  if (root.lifetime->ended()) ThrowNotUsable("DeviceMesh::context");
  return root.context;
}

TypeMap& DeviceMesh::locals() const {
  CheckUsable("DeviceMesh::locals");
  return data_->root->world.locals();
}

bool DeviceMesh::IsUsableHere() const {
  return data_ != nullptr && data_->root->lifetime->IsUsableHere();
}

void DeviceMesh::ThrowNotUsable(std::string_view op) const {
  const std::string caller(op);
  const RankLifetime& lifetime = *AnyData().root->lifetime;
  if (lifetime.ended()) {
    Throw(absl::StatusCode::kFailedPrecondition, caller, ": mesh ", ToString(), " belongs to rank ",
          lifetime.world_rank(), " of a RunRanks whose ranks have returned");
  }
  Throw(absl::StatusCode::kFailedPrecondition, caller, ": mesh ", ToString(), " belongs to rank ",
        lifetime.world_rank(), " and was used on a thread that is not this rank's");
}

const DeviceMesh::Data& DeviceMesh::AnyData() const {
  if (data_ == nullptr)
    ThrowInvalid("a DeviceMesh that is no mesh was used; make one by DeviceMesh::Create");
  return *data_;
}

const DeviceMesh::Data& DeviceMesh::MemberData() const {
  const Data& data = AnyData();
  if (!data.is_member) {
    ThrowInvalid("rank ", data.root->lifetime->world_rank(), " is not in the mesh ",
                 data.shape.ToString(), " of ranks ", RankList(data.ranks));
  }
  return data;
}

DeviceMesh DeviceMesh::Slice(const std::vector<std::string>& axes) const {
  const Data& data = MemberData();
  CheckUsable("DeviceMesh::Slice");
  if (const auto found = data.slices.find(axes); found != data.slices.end()) return found->second;
  if (axes.empty())
    ThrowInvalid("a slice of mesh ", data.shape.ToString(), " needs at least one axis");
  const auto slice = std::make_shared<Data>();
  slice->root = data.root;
  slice->grid = data.grid;
  std::vector<MeshAxis> shape;
  for (const std::string& name : axes) {
    const int axis = data.shape.Index(name);
    shape.push_back(data.shape.axis(axis));
    slice->grid_axes.push_back(data.grid_axes[axis]);
    slice->axis_groups.push_back(data.axis_groups[axis]);
  }
  slice->shape = MeshShape(std::move(shape));
  slice->Locate();
  return data_->slices.emplace(axes, DeviceMesh(slice)).first->second;
}

DeviceMesh DeviceMesh::Flatten(const std::vector<std::string>& axes, std::string_view name) const {
  CheckUsable("DeviceMesh::Flatten");
  const Data& data = *data_;
  if (axes.empty())
    ThrowInvalid("Flatten on mesh ", data.shape.ToString(), " needs at least one axis");
  std::vector<int> flattened;  // Axes of the mesh.
  for (const std::string& axis : axes) {
    flattened.push_back(data.shape.Index(axis));
    if (std::count(flattened.begin(), flattened.end(), flattened.back()) > 1) {
      ThrowInvalid("Flatten on mesh ", data.shape.ToString(), ": axis \"", axis,
                   "\" is given twice");
    }
  }
  const auto is_flattened = [&](int axis) {
    return std::find(flattened.begin(), flattened.end(), axis) != flattened.end();
  };

  // The new grid has the axes outside this mesh first, then those of the new mesh. Each entry lists
  // the axes of the old grid that it consists of.
  std::vector<std::vector<int>> sources;
  for (int g = 0; g < static_cast<int>(data.grid.sizes.size()); ++g) {
    if (std::count(data.grid_axes.begin(), data.grid_axes.end(), g) == 0) sources.push_back({g});
  }
  const auto result = std::make_shared<Data>();
  result->root = data.root;
  std::vector<MeshAxis> shape;
  int position = 0;  // Of the new axis.
  for (int axis = 0; axis < data.shape.num_axes(); ++axis) {
    if (is_flattened(axis) && axis != flattened[0]) continue;
    result->grid_axes.push_back(static_cast<int>(sources.size()));
    sources.push_back({data.grid_axes[axis]});
    shape.push_back(data.shape.axis(axis));
    if (axis != flattened[0]) continue;
    position = static_cast<int>(shape.size()) - 1;
    shape.back() = {std::string(name), 1, shape.back().link};
    sources.back().clear();
    for (const int source : flattened) {
      sources.back().push_back(data.grid_axes[source]);
      shape.back().size *= data.shape.size(source);
      LinkCost& link = shape.back().link;
      const LinkCost& other = data.shape.axis(source).link;
      link.latency_seconds = std::max(link.latency_seconds, other.latency_seconds);
      link.bytes_per_second = std::min(link.bytes_per_second, other.bytes_per_second);
    }
  }
  std::vector<int> order;
  for (const std::vector<int>& axis : sources) {
    int size = 1;
    for (const int g : axis) size *= data.grid.sizes[g];
    result->grid.sizes.push_back(size);
    order.insert(order.end(), axis.begin(), axis.end());
  }
  result->grid.ranks = data.grid.RanksAlong(0, order);
  result->shape = MeshShape(std::move(shape));
  result->Locate();
  if (!result->is_member) return DeviceMesh(result);
  for (int axis = 0; axis < data.shape.num_axes(); ++axis) {
    if (!is_flattened(axis)) result->axis_groups.push_back(data.axis_groups[axis]);
  }
  Communicator& group = result->MakeGroup({&position, 1}, result->shape.axis(position).name);
  result->axis_groups.insert(result->axis_groups.begin() + position, &group);
  return DeviceMesh(result);
}

DeviceMesh DeviceMesh::Unflatten(std::string_view axis, const std::vector<MeshAxis>& parts) const {
  CheckUsable("DeviceMesh::Unflatten");
  const Data& data = *data_;
  const int index = data.shape.Index(axis);
  const MeshShape part_shape{std::vector<MeshAxis>(parts)};  // Checks names and sizes.
  if (parts.empty() || part_shape.NumRanks() != data.shape.size(index)) {
    ThrowInvalid("Unflatten on mesh ", data.shape.ToString(), ": axis \"", View(axis),
                 "\" of size ", data.shape.size(index), " cannot become ", part_shape.ToString());
  }
  const int grid_axis = data.grid_axes[index];
  const int added = part_shape.num_axes() - 1;
  const auto result = std::make_shared<Data>();
  result->root = data.root;
  result->grid = data.grid;
  auto& sizes = result->grid.sizes;
  sizes.erase(sizes.begin() + grid_axis);
  for (int i = 0; i <= added; ++i) sizes.insert(sizes.begin() + grid_axis + i, part_shape.size(i));

  std::vector<MeshAxis> shape;
  for (int a = 0; a < data.shape.num_axes(); ++a) {
    const int moved = data.grid_axes[a] + (data.grid_axes[a] > grid_axis ? added : 0);
    if (a != index) {
      shape.push_back(data.shape.axis(a));
      result->grid_axes.push_back(moved);
      continue;
    }
    for (int i = 0; i <= added; ++i) {
      shape.push_back(part_shape.axis(i));
      result->grid_axes.push_back(grid_axis + i);
    }
  }
  result->shape = MeshShape(std::move(shape));
  result->Locate();
  if (!result->is_member) return DeviceMesh(result);
  for (int a = 0; a < result->shape.num_axes(); ++a) {
    const bool is_part = a >= index && a <= index + added;
    result->axis_groups.push_back(is_part ? &result->MakeGroup({&a, 1}, result->shape.axis(a).name)
                                          : data.axis_groups[a < index ? a : a - added]);
  }
  return DeviceMesh(result);
}

Communicator& DeviceMesh::Group(int axis) const {
  const Data& data = MemberData();
  CheckUsable("DeviceMesh::Group");
  if (axis < 0 || axis >= data.shape.num_axes()) {
    ThrowInvalid("mesh ", data.shape.ToString(), " has no axis number ", axis);
  }
  return *data.axis_groups[axis];
}

Communicator& DeviceMesh::Group(std::span<const int> axes) const {
  const Data& data = MemberData();
  CheckUsable("DeviceMesh::Group");
  std::vector<int> sorted(axes.begin(), axes.end());
  std::sort(sorted.begin(), sorted.end());
  if (const auto found = data.merged_groups.find(sorted); found != data.merged_groups.end())
    return *found->second;
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end() ||
      (!sorted.empty() && (sorted.front() < 0 || sorted.back() >= data.shape.num_axes()))) {
    ThrowInvalid("mesh ", data.shape.ToString(), " has no group of axes ",
                 absl::StrJoin(sorted, ", "));
  }
  Communicator& group = data.MakeGroup(sorted, JoinedNames(data.shape, sorted));
  data_->merged_groups.emplace(std::move(sorted), &group);
  return group;
}

Communicator& DeviceMesh::WorldGroup() const {
  std::vector<int> axes(MemberData().shape.num_axes());
  std::iota(axes.begin(), axes.end(), 0);
  return Group(axes);
}

bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
  if (a.data_ == b.data_) return true;
  return a && b && a.data_->shape == b.data_->shape && a.data_->ranks == b.data_->ranks;
}

}  // namespace shardmesh
