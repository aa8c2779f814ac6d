// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/internal/strided_view.h"

#include <algorithm>
#include <cstring>

#include "shardmesh/tensor/internal/output_data.h"

namespace shardmesh::internal {
namespace {

// Between strided elements, contiguous ones being the special case of stride == size.
template <typename Word>
void CopyWords(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, sizeof(Word));
  }
}

void CopyRun(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t count,
             int64_t element_bytes) {
  if (from_stride == element_bytes && to_stride == element_bytes) {
    std::memcpy(to, from, count * element_bytes);
    return;
  }
  switch (element_bytes) {
    case 1:
      return CopyWords<uint8_t>(from, from_stride, to, to_stride, count);
    case 2:
      return CopyWords<uint16_t>(from, from_stride, to, to_stride, count);
    case 4:
      return CopyWords<uint32_t>(from, from_stride, to, to_stride, count);
    default:
      return CopyWords<uint64_t>(from, from_stride, to, to_stride, count);
  }
}

}  // namespace

StridedView::StridedView(const Tensor& tensor)
    : elements_(tensor.NumElements()), element_bytes_(SizeOf(tensor.dtype())) {
  if (elements_ == 0) return;
  // Of a target; the communicator has counted the write when the collective was posted.
  data_ = static_cast<char*>(OutputData(tensor));
  for (int d = 0; d < tensor.num_dims(); ++d) {
    const int64_t extent = tensor.dim(d);
    const int64_t stride = tensor.strides()[d] * element_bytes_;
    if (extent == 1) continue;
    if (rank_ > 0 && strides_[rank_ - 1] == extent * stride) {
      shape_[rank_ - 1] *= extent;
      strides_[rank_ - 1] = stride;
    } else {
      shape_[rank_] = extent;
      strides_[rank_++] = stride;
    }
  }
}

template <typename Fn>
void StridedView::ForEachRun(int64_t begin, int64_t count, const Fn& fn) const {
  if (count == 0) return;
  if (rank_ == 0) return fn(data_, int64_t{1});
  const int last = rank_ - 1;
  int64_t index[Dims::kMaxRank];
  char* at = data_;
  for (int d = last; d >= 0; --d) {
    index[d] = begin % shape_[d];
    begin /= shape_[d];
    at += index[d] * strides_[d];
  }
  while (true) {
    const int64_t run = std::min(count, shape_[last] - index[last]);
    fn(at, run);
    count -= run;
    if (count == 0) return;
    // The run ended at the end of the last dim: carry.
    at -= index[last] * strides_[last];
    index[last] = 0;
    int d = last - 1;
    for (; ++index[d] == shape_[d]; --d) {
      at -= (shape_[d] - 1) * strides_[d];
      index[d] = 0;
    }
    at += strides_[d];
  }
}

bool StridedView::IsSameAs(const StridedView& other) const {
  return data_ == other.data_ && rank_ == other.rank_ &&
         std::equal(shape_, shape_ + rank_, other.shape_) &&
         std::equal(strides_, strides_ + rank_, other.strides_);
}

void StridedView::Pack(int64_t begin, int64_t count, void* out) const {
  char* to = static_cast<char*>(out);
  const int64_t stride = rank_ == 0 ? element_bytes_ : strides_[rank_ - 1];
  ForEachRun(begin, count, [&](const char* from, int64_t run) {
    CopyRun(from, stride, to, element_bytes_, run, element_bytes_);
    to += run * element_bytes_;
  });
}

void StridedView::Unpack(const void* in, int64_t begin, int64_t count) const {
  const char* from = static_cast<const char*>(in);
  const int64_t stride = rank_ == 0 ? element_bytes_ : strides_[rank_ - 1];
  ForEachRun(begin, count, [&](char* to, int64_t run) {
    CopyRun(from, element_bytes_, to, stride, run, element_bytes_);
    from += run * element_bytes_;
  });
}

void StridedView::Copy(const StridedView& from, const StridedView& to, int64_t begin,
                       int64_t count) {
  if (count == 0 || from.IsSameAs(to)) return;
  if (from.IsContiguous()) return to.Unpack(from.At(begin), begin, count);
  if (to.IsContiguous()) return from.Pack(begin, count, to.At(begin));
  char tile[8192];
  const int64_t tile_elements = static_cast<int64_t>(sizeof(tile)) / from.element_bytes_;
  for (const int64_t end = begin + count; begin < end; begin += tile_elements) {
    const int64_t n = std::min(tile_elements, end - begin);
    from.Pack(begin, n, tile);
    to.Unpack(tile, begin, n);
  }
}

}  // namespace shardmesh::internal
