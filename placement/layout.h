// SPDX-License-Identifier: Apache-2.0
//
// Mesh shape, placements (with split order) and global shape: everything needed to know every
// rank's box.
//
//   MeshShape mesh = {{"dp", 2}, {"tp", 4}};
//   Layout layout = Layout::Make(mesh, {Shard(0), Replicate()}, {512, 64});
//   layout.LocalBox({1, 2});    // rows 256..512
//   layout.ToString();          // "[512,64] [S(0), R] @ [dp=2, tp=4]"
#ifndef SHARDMESH_PLACEMENT_LAYOUT_H_
#define SHARDMESH_PLACEMENT_LAYOUT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "shardmesh/base/dims.h"
#include "shardmesh/mesh/mesh_shape.h"
#include "shardmesh/placement/box.h"
#include "shardmesh/placement/placement.h"

namespace shardmesh {

using Placements = absl::InlinedVector<Placement, 4>;
/// Mesh axes in some order.
using AxisList = absl::InlinedVector<int, 4>;

/// An interned, immutable handle of one pointer: equal layouts are the same pointer. `==` and hash
/// use only the pointer. A copy adds to a counter of the thread, a move costs nothing. A layout
/// that has no handle any more is freed some time later. Thread-safe.
class Layout {
 public:
  /// An undefined layout; only `==`, bool and assignment are allowed.
  Layout() = default;
  Layout(const Layout& other) : data_(other.data_) {
    if (data_ != nullptr) Count(&Counts::made);
  }
  Layout(Layout&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Layout& operator=(const Layout& other) {
    if (data_ != other.data_) Layout(other).Swap(*this);
    return *this;
  }
  Layout& operator=(Layout&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~Layout() {
    if (data_ != nullptr) Count(&Counts::dropped);
  }

  /// A layout whose axes split each dim in mesh order. Negative shard dims count from the last.
  ///
  /// Errors: throws Error(kInvalidArgument), naming mesh, placements and shape, if the number of
  /// placements is not the number of axes, a shard dim is out of range, an extent is negative,
  /// the number of bytes may exceed 64 bits, or Partial placements differ in op.
  static Layout Make(const MeshShape& mesh, std::span<const Placement> placements,
                     const Dims& global_shape);
  static Layout Make(const MeshShape& mesh, std::initializer_list<Placement> placements,
                     const Dims& global_shape);
  /// `split_order` lists every sharding axis once. Of several axes that split the same dim, the one
  /// listed first is the outermost split. {1, 0}: axis 1 splits the dim and axis 0 splits each
  /// piece, as when FSDP is applied after TP.
  static Layout Make(const MeshShape& mesh, std::span<const Placement> placements,
                     const Dims& global_shape, std::span<const int> split_order);
  static Layout Make(const MeshShape& mesh, std::initializer_list<Placement> placements,
                     const Dims& global_shape, std::initializer_list<int> split_order);
  static Layout Replicated(const MeshShape& mesh, const Dims& global_shape);

  explicit operator bool() const { return data_ != nullptr; }
  const MeshShape& mesh() const { return data_->mesh; }
  const Dims& global_shape() const { return data_->shape; }
  int num_axes() const { return static_cast<int>(data_->placements.size()); }
  const Placements& placements() const { return data_->placements; }
  const Placement& placement(int axis) const { return data_->placements[axis]; }
  const Placement& placement(std::string_view axis) const { return placement(mesh().Index(axis)); }
  /// The axes that split `dim`, outermost split first.
  const AxisList& SplitAxes(int dim) const { return data_->splits[dim]; }
  /// A split order with which Make returns this layout.
  AxisList SplitOrder() const;
  bool IsFullyReplicated() const { return data_->fully_replicated; }
  bool HasPartial() const { return data_->has_partial; }

  /// The box of the rank at `coord` (one value per axis): nested ceil-chunks in split order. An
  /// axis that is Replicate or Partial does not split. In a dim in which the rank holds nothing,
  /// the box begins and ends at the end of the dim; use Relative, not subtraction, to find it
  /// inside another box. All parts of the library take boxes from this function.
  ///
  /// Errors: throws Error(kInvalidArgument) if `coord` is not in the mesh.
  Box LocalBox(std::span<const int> coord) const;
  Box LocalBox(std::initializer_list<int> coord) const {
    return LocalBox(std::span(coord.begin(), coord.size()));
  }
  Dims LocalShape(std::span<const int> coord) const { return LocalBox(coord).Extents(); }
  Dims LocalShape(std::initializer_list<int> coord) const { return LocalBox(coord).Extents(); }
  /// The extents of the box at coordinate 0: the largest of all ranks in every dim.
  Dims MaxLocalShape() const;

  /// This layout with axis `axis` changed. A new Shard becomes the innermost split of its dim; the
  /// other splits keep their order. If the axis already has this placement, nothing changes.
  Layout With(int axis, Placement placement) const;
  /// The same placements and split order over another shape of the same number of dims.
  Layout WithShape(const Dims& global_shape) const;
  /// This layout with every Partial replaced by Replicate.
  Layout PartialAsReplicate() const;

  /// "[512,64] [S(0), R] @ [dp=2, tp=4]". If axes split the same dim in an order other than mesh
  /// order, each shows its position in that order: "[S(0)/1, S(0)/0]".
  std::string ToString() const;
  /// "[S(0), R]".
  std::string PlacementsToString() const;

  friend bool operator==(const Layout& a, const Layout& b) { return a.data_ == b.data_; }
  template <typename H>
  friend H AbslHashValue(H h, const Layout& layout) {
    return H::combine(std::move(h), layout.data_);
  }
  /// Of no other layout while a handle of this one is alive: whoever keeps it keeps a handle too.
  const void* id() const { return data_; }
  /// Layouts of the process that are not freed yet, with or without handles.
  static size_t NumInterned();

 private:
  /// Handles that were made and destroyed, in one line of memory per thread that counts: ranks that
  /// use one layout do not wait for each other. The last line is for threads that came too late to
  /// have one of their own.
  struct alignas(64) Counts {
    std::atomic<uint64_t> made = 0, dropped = 0;
  };
  static constexpr unsigned kOwnLines = 7, kSharedLine = kOwnLines, kUnknownLine = kOwnLines + 1;
  struct Data {
    MeshShape mesh;
    Placements placements;
    Dims shape;
    std::vector<AxisList> splits;  // One list per dim.
    bool fully_replicated = true;
    bool has_partial = false;
  };
  struct Interned : Data {
    explicit Interned(Data data) : Data(std::move(data)) {}
    mutable std::array<Counts, kOwnLines + 1> counts;
  };
  friend class LayoutTable;
  explicit Layout(const Interned* data) : data_(data) { Count(&Counts::made); }

  // The release lets whoever finds that all handles are destroyed free what they have read.
  void Count(std::atomic<uint64_t> Counts::*counter) const {
    if (line_ >= kOwnLines) return CountShared(counter);
    std::atomic<uint64_t>& count = data_->counts[line_].*counter;
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  void CountShared(std::atomic<uint64_t> Counts::*counter) const;
  void Swap(Layout& other) noexcept { std::swap(data_, other.data_); }

  class LineOwner;
  static inline constinit thread_local unsigned line_ = kUnknownLine;
  const Interned* data_ = nullptr;
};

std::ostream& operator<<(std::ostream& out, const Layout& layout);

}  // namespace shardmesh

#endif  // SHARDMESH_PLACEMENT_LAYOUT_H_
