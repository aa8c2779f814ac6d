// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/array_stream.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/internal/box_runs.h"

namespace shardmesh::checkpoint::internal {

using shardmesh::internal::BoxRuns;

ArrayStream::ArrayStream(ExecutionContext& context, PieceFiles& files, const StoredArray& array,
                         DType dtype, int64_t max_elements)
    : context_(context),
      files_(files),
      array_(array),
      dtype_(dtype),
      num_elements_(array.shape.NumElements()),
      max_elements_(std::max<int64_t>(1, std::min(max_elements, num_elements_))) {
  for (const StoredPiece& piece : array.pieces) {
    if (!piece.box.IsEmpty()) pieces_.push_back(&piece);
  }
  if (array.shape.empty()) return;
  std::sort(pieces_.begin(), pieces_.end(), [](const StoredPiece* a, const StoredPiece* b) {
    return a->box.begin[0] < b->box.begin[0];
  });
}

absl::StatusOr<ArrayStream::Part> ArrayStream::Next() {
  if (next_ == num_elements_) return Part();
  if (!buffer_) buffer_ = Tensor::Empty(context_, {max_elements_}, dtype_);
  const Box box = NextBox();
  UpdateNear(box);
  for (const StoredPiece* piece : near_) SHARDMESH_RETURN_IF_ERROR(ReadFrom(*piece, box));
  const Part part = {static_cast<const char*>(buffer_.raw_data()), next_, box.NumElements()};
  next_ += part.count;
  return part;
}

Box ArrayStream::NextBox() const {
  const Dims& shape = array_.shape;
  Box box = Box::Whole(shape);
  int64_t rest = next_;
  int64_t row = num_elements_;  // Elements of one index of the dims so far.
  for (int d = 0; d < shape.size(); ++d) {
    row /= shape[d];
    box.begin[d] = rest / row;
    rest %= row;
    const int64_t rows = std::max<int64_t>(1, max_elements_ / row);
    box.end[d] = std::min(box.begin[d] + rows, shape[d]);
    if (row <= max_elements_) return box;  // All of the dims after it.
  }
  return box;
}

void ArrayStream::UpdateNear(const Box& box) {
  const bool is_scalar = array_.shape.empty();
  while (next_piece_ < pieces_.size() &&
         (is_scalar || pieces_[next_piece_]->box.begin[0] < box.end[0])) {
    near_.push_back(pieces_[next_piece_++]);
  }
  if (is_scalar) return;
  std::erase_if(near_, [&](const StoredPiece* piece) { return piece->box.end[0] <= box.begin[0]; });
}

absl::Status ArrayStream::ReadFrom(const StoredPiece& piece, const Box& box) {
  const Box part = Intersect(box, piece.box);
  if (part.IsEmpty()) return absl::OkStatus();
  BoxRuns runs(box.Extents(), Relative(part, box));
  if (runs.run_elements() == part.NumElements()) {
    Tensor target = Tensor::Over(buffer_.storage(), part.Extents(), dtype_, *runs.Next());
    return files_.Read(array_, piece, part, target);
  }
  if (!staging_) staging_ = Tensor::Empty(context_, {max_elements_}, dtype_);
  Tensor target = Tensor::Over(staging_.storage(), part.Extents(), dtype_);
  SHARDMESH_RETURN_IF_ERROR(files_.Read(array_, piece, part, target));
  const int64_t element_bytes = SizeOf(dtype_);
  const int64_t run_bytes = runs.run_elements() * element_bytes;
  const char* source = static_cast<const char*>(staging_.raw_data());
  char* const data = static_cast<char*>(buffer_.mutable_raw_data());
  while (const std::optional<int64_t> first = runs.Next()) {
    std::memcpy(data + *first * element_bytes, source, static_cast<size_t>(run_bytes));
    source += run_bytes;
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::checkpoint::internal
