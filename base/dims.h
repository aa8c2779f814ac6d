// SPDX-License-Identifier: Apache-2.0
//
// One integer per dimension: the shape, strides or offsets of a tensor. Fixed capacity,
// no allocation, trivially copyable: dispatch copies many of them.
//
//   Dims shape = {16, 128, 64};
//   shape.NumElements();   // 131072
//   shape.ToString();      // "[16,128,64]"
#ifndef SHARDMESH_BASE_DIMS_H_
#define SHARDMESH_BASE_DIMS_H_

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>

namespace shardmesh {

/// Up to kMaxRank 64-bit integers. Thread-compatible value type.
class Dims {
 public:
  static constexpr int kMaxRank = 8;

  Dims() = default;
  Dims(std::initializer_list<int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  /// Throws Error(kInvalidArgument) if there are more than kMaxRank values.
  explicit Dims(std::span<const int64_t> values);
  /// `count` copies of `value`.
  static Dims Filled(int count, int64_t value);

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t operator[](int i) const { return values_[i]; }
  int64_t& operator[](int i) { return values_[i]; }
  int64_t back() const { return values_[size_ - 1]; }
  const int64_t* begin() const { return values_; }
  const int64_t* end() const { return values_ + size_; }
  int64_t* begin() { return values_; }
  int64_t* end() { return values_ + size_; }
  operator std::span<const int64_t>() const { return {values_, static_cast<size_t>(size_)}; }

  /// Throws Error(kInvalidArgument) if the list is full.
  void push_back(int64_t value);
  void insert(int position, int64_t value);
  void erase(int position);

  /// Product of all values; 1 for the empty list.
  int64_t NumElements() const {
    int64_t product = 1;
    for (int i = 0; i < size_; ++i) product *= values_[i];
    return product;
  }

  std::string ToString() const;

  friend bool operator==(const Dims& a, const Dims& b) {
    if (a.size_ != b.size_) return false;
    for (int i = 0; i < a.size_; ++i) {
      if (a.values_[i] != b.values_[i]) return false;
    }
    return true;
  }

  template <typename H>
  friend H AbslHashValue(H h, const Dims& d) {
    return H::combine(H::combine_contiguous(std::move(h), d.values_, d.size_), d.size_);
  }

 private:
  int64_t values_[kMaxRank] = {};
  int size_ = 0;
};

std::ostream& operator<<(std::ostream& out, const Dims& dims);

/// Maps -1 to the last dim and so on. Throws Error(kInvalidArgument) naming `what` if `dim` is not
/// in [-rank, rank).
int NormalizeDim(int64_t dim, int rank, const char* what);

/// The shape two shapes broadcast to (NumPy's rule). Throws Error(kInvalidArgument) naming `what`
/// and both shapes.
Dims BroadcastShapes(const Dims& a, const Dims& b, const char* what);

}  // namespace shardmesh

#endif  // SHARDMESH_BASE_DIMS_H_
