// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/placement/layout.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shardmesh/base/error.h"

namespace shardmesh {

/// All layouts of the process: a pointer is an identity while a handle is alive. Those without
/// handles are freed when the table has doubled, so the cost of looking is a constant per layout.
class LayoutTable {
 public:
  static LayoutTable& Get() {
    static LayoutTable* const table = new LayoutTable;
    return *table;
  }

  Layout Intern(Layout::Data data) {
    const std::lock_guard lock(mutex_);
    auto found = layouts_.find(&data);
    if (found == layouts_.end()) {
      if (layouts_.size() >= next_sweep_) Sweep();
      found = layouts_.insert(std::make_unique<Interned>(std::move(data)).release()).first;
    }
    return Layout(static_cast<const Interned*>(*found));  // Counted before anyone can sweep.
  }

  size_t size() {
    const std::lock_guard lock(mutex_);
    return layouts_.size();
  }

 private:
  using Interned = Layout::Interned;
  static constexpr size_t kFirstSweep = 4096;

  // Handles that are destroyed are counted first. Then as many made ones prove that at the moment
  // between there was none; and there is none later, as handles are made of handles, or under the
  // mutex.
  static bool HasHandles(const Interned& layout) {
    uint64_t dropped = 0, made = 0;
    for (const auto& line : layout.counts) dropped += line.dropped.load(std::memory_order_acquire);
    for (const auto& line : layout.counts) made += line.made.load(std::memory_order_relaxed);
    return made != dropped;
  }

  void Sweep() {
    std::vector<std::unique_ptr<const Interned>> unused;
    for (const Layout::Data* data : layouts_) {
      const auto* layout = static_cast<const Interned*>(data);
      if (!HasHandles(*layout)) unused.emplace_back(layout);
    }
    for (const auto& layout : unused) layouts_.erase(layout.get());
    next_sweep_ = std::max(kFirstSweep, 2 * layouts_.size());
  }

  struct Hash {
    size_t operator()(const Layout::Data* a) const {
      return absl::HashOf(a->mesh, a->placements, a->shape, a->splits);
    }
  };
  struct Equal {
    bool operator()(const Layout::Data* a, const Layout::Data* b) const {
      return a->placements == b->placements && a->shape == b->shape && a->splits == b->splits &&
             a->mesh == b->mesh;
    }
  };

  std::mutex mutex_;
  absl::flat_hash_set<const Layout::Data*, Hash, Equal> layouts_;  // Interned ones.
  size_t next_sweep_ = kFirstSweep;
};

/// A thread's line of counters, for as long as the thread lives. Who takes it next sees all that
/// was counted there.
class Layout::LineOwner {
 public:
  LineOwner() {
    unsigned free = free_.load(std::memory_order_relaxed);
    while (free != 0) {
      const auto line = static_cast<unsigned>(std::countr_zero(free));
      if (!free_.compare_exchange_weak(free, free & ~(1u << line), std::memory_order_acquire,
                                       std::memory_order_relaxed))
        continue;
      line_ = line;
      return;
    }
    line_ = kSharedLine;
  }
  ~LineOwner() {
    const unsigned line = std::exchange(line_, kSharedLine);  // For handles that die later.
    if (line < kOwnLines) free_.fetch_or(1u << line, std::memory_order_acq_rel);
  }

 private:
  static inline constinit std::atomic<unsigned> free_ = (1u << kOwnLines) - 1;
};

void Layout::CountShared(std::atomic<uint64_t> Counts::*counter) const {
  if (line_ == kUnknownLine) {
    static thread_local const LineOwner owner;
    if (line_ < kOwnLines) return Count(counter);
  }
  (data_->counts[kSharedLine].*counter).fetch_add(1, std::memory_order_release);
}

namespace {

/// The number of bytes must fit into 64 bits for every dtype and for shards of any unevenness.
constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 64;

AxisList ShardingAxes(std::span<const Placement> placements) {
  AxisList axes;
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].IsShard()) axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

/// The arguments of Make, for the checks; each check names all of them when it throws.
struct Request {
  const MeshShape& mesh;
  std::span<const Placement> placements;
  const Dims& shape;

  template <typename... Parts>
  [[noreturn]] void Refuse(const Parts&... parts) const {
    const auto text = [](std::string* out, const Placement& p) {
      absl::StrAppend(out, p.ToString());
    };
    ThrowInvalid("layout ", shape.ToString(), " [",
                 absl::StrJoin(placements.begin(), placements.end(), ", ", text), "] @ ",
                 mesh.ToString(), ": ", parts...);
  }

  void CheckShape() const {
    int64_t elements = 1;
    for (const int64_t extent : shape) {
      if (extent < 0) Refuse("extent ", extent, " is negative");
      // Dims of extent 0 do not count, so that no box of an empty tensor can overflow either.
      const bool overflow = extent > 0 && __builtin_mul_overflow(elements, extent, &elements);
      if (overflow || elements > kMaxElements) Refuse("more than ", kMaxElements, " elements");
    }
  }

  /// The placements with dims counted from the first.
  Placements Normalized() const {
    if (static_cast<int>(placements.size()) != mesh.num_axes()) {
      Refuse(placements.size(), " placements for ", mesh.num_axes(), " mesh axes");
    }
    Placements result(placements.begin(), placements.end());
    for (Placement& placement : result) {
      if (!placement.IsShard()) continue;
      const int dim = placement.dim(), rank = shape.size();
      if (dim < -rank || dim >= rank) {
        Refuse(placement.ToString(), " is out of range for a tensor of ", rank, " dims");
      }
      placement = Shard(dim < 0 ? dim + rank : dim);
    }
    return result;
  }

  void CheckPartials() const {
    const Placement* first = nullptr;
    for (const Placement& placement : placements) {
      if (!placement.IsPartial()) continue;
      if (first != nullptr && first->op() != placement.op()) {
        Refuse(first->ToString(), " and ", placement.ToString(),
               " in one layout have no defined value; reduce one of them first");
      }
      first = &placement;
    }
  }

  void CheckSplitOrder(std::span<const int> order) const {
    const AxisList sharding = ShardingAxes(placements);
    AxisList sorted(order.begin(), order.end());
    std::sort(sorted.begin(), sorted.end());
    if (sorted == sharding) return;
    Refuse("split order {", absl::StrJoin(order.begin(), order.end(), ", "),
           "} must list each sharding axis once: {", absl::StrJoin(sharding, ", "), "}");
  }
};

}  // namespace

Layout Layout::Make(const MeshShape& mesh, std::span<const Placement> placements,
                    const Dims& global_shape) {
  return Make(mesh, placements, global_shape, ShardingAxes(placements));
}

Layout Layout::Make(const MeshShape& mesh, std::initializer_list<Placement> placements,
                    const Dims& global_shape) {
  return Make(mesh, std::span(placements.begin(), placements.size()), global_shape);
}

Layout Layout::Make(const MeshShape& mesh, std::span<const Placement> placements,
                    const Dims& global_shape, std::span<const int> split_order) {
  const Request request{mesh, placements, global_shape};
  request.CheckShape();
  Data data;
  data.mesh = mesh;
  data.placements = request.Normalized();
  data.shape = global_shape;
  request.CheckPartials();
  request.CheckSplitOrder(split_order);
  data.splits.resize(global_shape.size());
  for (const int axis : split_order) data.splits[data.placements[axis].dim()].push_back(axis);
  for (const Placement& placement : data.placements) {
    data.fully_replicated = data.fully_replicated && placement.IsReplicate();
    data.has_partial = data.has_partial || placement.IsPartial();
  }
  return LayoutTable::Get().Intern(std::move(data));
}

Layout Layout::Make(const MeshShape& mesh, std::initializer_list<Placement> placements,
                    const Dims& global_shape, std::initializer_list<int> split_order) {
  return Make(mesh, std::span(placements.begin(), placements.size()), global_shape,
              std::span(split_order.begin(), split_order.size()));
}

Layout Layout::Replicated(const MeshShape& mesh, const Dims& global_shape) {
  return Make(mesh, Placements(mesh.num_axes(), Replicate()), global_shape);
}

size_t Layout::NumInterned() { return LayoutTable::Get().size(); }

AxisList Layout::SplitOrder() const {
  AxisList order;
  for (const AxisList& axes : data_->splits) order.insert(order.end(), axes.begin(), axes.end());
  return order;
}

Box Layout::LocalBox(std::span<const int> coord) const {
  mesh().CheckCoord(coord);
  Box box = Box::Whole(global_shape());
  for (int d = 0; d < box.num_dims(); ++d) {
    const int64_t extent = box.end[d];
    ChunkRange piece{0, extent};
    for (const int axis : SplitAxes(d)) piece = Chunk(piece, coord[axis], mesh().size(axis));
    // An empty piece is at the end of the dim, where no other rank's box begins.
    if (piece.begin == piece.end) piece = {extent, extent};
    box.begin[d] = piece.begin;
    box.end[d] = piece.end;
  }
  return box;
}

Dims Layout::MaxLocalShape() const { return LocalShape(Coord(num_axes(), 0)); }

Layout Layout::With(int axis, Placement placement) const {
  if (axis < 0 || axis >= num_axes())
    ThrowInvalid("axis ", axis, " is not an axis of ", ToString());
  if (placement.IsShard()) {
    placement = Shard(NormalizeDim(placement.dim(), global_shape().size(), "Layout::With"));
  }
  if (placement == this->placement(axis)) return *this;
  Placements placements = this->placements();
  placements[axis] = placement;
  AxisList order = SplitOrder();
  order.erase(std::remove(order.begin(), order.end(), axis), order.end());
  if (placement.IsShard()) order.push_back(axis);
  return Make(mesh(), placements, global_shape(), order);
}

Layout Layout::WithShape(const Dims& global_shape) const {
  if (global_shape.size() != this->global_shape().size()) {
    ThrowInvalid("shape ", global_shape.ToString(), " has not as many dims as ", ToString());
  }
  return Make(mesh(), placements(), global_shape, SplitOrder());
}

Layout Layout::PartialAsReplicate() const {
  if (!HasPartial()) return *this;
  Placements placements = this->placements();
  for (Placement& placement : placements) {
    if (placement.IsPartial()) placement = Replicate();
  }
  return Make(mesh(), placements, global_shape(), SplitOrder());
}

std::string Layout::PlacementsToString() const {
  std::vector<std::string> texts;
  for (int axis = 0; axis < num_axes(); ++axis) {
    texts.push_back(placement(axis).ToString());
    if (!placement(axis).IsShard()) continue;
    const AxisList& splits = SplitAxes(placement(axis).dim());
    if (std::is_sorted(splits.begin(), splits.end())) continue;
    absl::StrAppend(&texts.back(), "/",
                    std::find(splits.begin(), splits.end(), axis) - splits.begin());
  }
  return absl::StrCat("[", absl::StrJoin(texts, ", "), "]");
}

std::string Layout::ToString() const {
  if (!*this) return "(no layout)";
  return absl::StrCat(global_shape().ToString(), " ", PlacementsToString(), " @ ",
                      mesh().ToString());
}

std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << layout.ToString();
}

}  // namespace shardmesh
