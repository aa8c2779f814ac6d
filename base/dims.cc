// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/dims.h"

#include <algorithm>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shardmesh/base/error.h"

namespace shardmesh {

Dims::Dims(std::span<const int64_t> values) {
  if (values.size() > kMaxRank) {
    ThrowInvalid("a tensor has at most ", kMaxRank, " dims, got ", values.size());
  }
  size_ = static_cast<int>(values.size());
  std::copy(values.begin(), values.end(), values_);
}

Dims Dims::Filled(int count, int64_t value) {
  Dims result;
  for (int i = 0; i < count; ++i) result.push_back(value);
  return result;
}

void Dims::push_back(int64_t value) { insert(size_, value); }

void Dims::insert(int position, int64_t value) {
  if (size_ == kMaxRank)
    ThrowInvalid("a tensor has at most ", kMaxRank, " dims: cannot add one to ", ToString());
  for (int i = size_; i > position; --i) values_[i] = values_[i - 1];
  values_[position] = value;
  ++size_;
}

void Dims::erase(int position) {
  for (int i = position; i + 1 < size_; ++i) values_[i] = values_[i + 1];
  --size_;
}

std::string Dims::ToString() const {
  return absl::StrCat("[", absl::StrJoin(begin(), end(), ","), "]");
}

std::ostream& operator<<(std::ostream& out, const Dims& dims) { return out << dims.ToString(); }

int NormalizeDim(int64_t dim, int rank, const char* what) {
  if (dim < -rank || dim >= rank) {
    ThrowInvalid(what, ": dim ", dim, " is out of range for a tensor of ", rank, " dims");
  }
  return static_cast<int>(dim < 0 ? dim + rank : dim);
}

Dims BroadcastShapes(const Dims& a, const Dims& b, const char* what) {
  const int rank = std::max(a.size(), b.size());
  Dims result = Dims::Filled(rank, 1);
  for (int i = 1; i <= rank; ++i) {
    const int64_t x = i <= a.size() ? a[a.size() - i] : 1;
    const int64_t y = i <= b.size() ? b[b.size() - i] : 1;
    if (x != y && x != 1 && y != 1) {
      ThrowInvalid(what, ": shapes ", a.ToString(), " and ", b.ToString(), " do not broadcast");
    }
    result[rank - i] = x == 1 ? y : x;
  }
  return result;
}

}  // namespace shardmesh
