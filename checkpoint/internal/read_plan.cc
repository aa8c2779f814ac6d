// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/read_plan.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"

namespace shardmesh::checkpoint::internal {
namespace {

// So few are examined one by one.
constexpr size_t kFew = 4;

// Finds the pieces that overlap a box. They are sorted by their begin, dim by dim.
class Search {
 public:
  Search(const StoredArray& array, const Box& wanted, std::vector<ReadPart>& parts)
      : array_(array), wanted_(wanted), parts_(parts) {}

  // The pieces have the same begin in all dims before `dim`.
  void Run(std::span<const StoredPiece> pieces, int dim) {
    if (dim == wanted_.num_dims() || pieces.size() <= kFew) {
      for (const StoredPiece& piece : pieces) Examine(piece);
      return;
    }
    // No piece that ends in front of the box, and none that begins behind it.
    const int64_t largest = array_.largest_extents[dim];
    const auto first =
        std::partition_point(pieces.begin(), pieces.end(), [&](const StoredPiece& piece) {
          return piece.box.begin[dim] <= wanted_.begin[dim] - largest;
        });
    const auto last = std::partition_point(first, pieces.end(), [&](const StoredPiece& piece) {
      return piece.box.begin[dim] < wanted_.end[dim];
    });
    for (auto it = first; it != last;) {
      const int64_t begin = it->box.begin[dim];
      const auto next = std::partition_point(
          it, last, [&](const StoredPiece& piece) { return piece.box.begin[dim] == begin; });
      Run(std::span(it, next), dim + 1);
      it = next;
    }
  }

  int64_t examined() const { return examined_; }

 private:
  void Examine(const StoredPiece& piece) {
    ++examined_;
    const Box part = Intersect(wanted_, piece.box);
    if (!part.IsEmpty()) parts_.push_back({&piece, part});
  }

  const StoredArray& array_;
  const Box& wanted_;
  std::vector<ReadPart>& parts_;
  int64_t examined_ = 0;
};

}  // namespace

absl::Status PlanRead(const StoredArray& array, const Box& wanted, std::vector<ReadPart>& parts,
                      int64_t* examined) {
  if (wanted.IsEmpty()) return absl::OkStatus();
  const size_t first = parts.size();
  Search search(array, wanted, parts);
  search.Run(array.pieces, 0);
  if (examined != nullptr) *examined += search.examined();
  std::vector<Box> boxes;
  for (size_t i = first; i < parts.size(); ++i) boxes.push_back(parts[i].box);
  const absl::Status status = CheckBoxCoverage(wanted, boxes);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("array ", Quoted(array.name, /*max_chars=*/200),
                                                  " ", array.file_dtype, array.shape.ToString(),
                                                  ": ", status.message()));
}

}  // namespace shardmesh::checkpoint::internal
