// SPDX-License-Identifier: Apache-2.0
//
// How far two tensors are apart, element by element.
//
//   ElementDifference difference(DType::kF32, DType::kBF16, {.rtol = 1e-2});
//   difference.Add(a, b, /*count=*/100);
//   difference.num_different();
#ifndef SHARDMESH_TOOLS_CHECKPOINT_ELEMENT_DIFFERENCE_H_
#define SHARDMESH_TOOLS_CHECKPOINT_ELEMENT_DIFFERENCE_H_

#include <cstdint>
#include <string>

#include "shardmesh/tensor/dtype.h"

namespace shardmesh::checkpoint::tool {

/// | a, b                     | equal if                                         | in maxima  |
/// |--------------------------|--------------------------------------------------|------------|
/// | finite                   | |a - b| <= atol + rtol * max(|a|, |b|); 0 and -0 | yes        |
/// | both NaN                 | always: sign and payload say nothing of a value  | no         |
/// | a NaN and a number       | never                                            | no         |
/// | an infinity and a number | it is the same infinity                          | infinite   |
/// | any, with `bits`         | all bits are the same                            | as above   |
struct Tolerance {
  double rtol = 0;
  double atol = 0;
  bool bits = false;  ///< Of one dtype.
};

/// Values are compared in a type that holds both exactly: integers as integers, floating-point ones
/// as f64, one of each as long double.
class ElementDifference {
 public:
  ElementDifference(DType a, DType b, const Tolerance& tolerance)
      : a_(a), b_(b), tolerance_(tolerance) {}

  /// The next `count` elements of both; need not be aligned.
  void Add(const char* a, const char* b, int64_t count);

  int64_t num_elements() const { return num_elements_; }
  int64_t num_different() const { return num_different_; }
  /// Of those that differ, how many are a NaN in one of the two alone.
  int64_t num_nan() const { return num_nan_; }
  /// Over all elements, also those within the tolerance. |a - b|, and that over max(|a|, |b|).
  double max_absolute() const { return max_absolute_; }
  double max_relative() const { return max_relative_; }
  /// The first that differs: its index, and both values. -1 if there is none.
  int64_t first() const { return first_; }
  const std::string& first_a() const { return first_a_; }
  const std::string& first_b() const { return first_b_; }

 private:
  template <typename A, typename B>
  void AddTyped(const char* a, const char* b, int64_t count);
  /// Whether the tolerance lets the pair pass.
  template <typename Wide>
  bool Compare(Wide a, Wide b);

  DType a_, b_;
  Tolerance tolerance_;
  int64_t num_elements_ = 0;
  int64_t num_different_ = 0;
  int64_t num_nan_ = 0;
  double max_absolute_ = 0;
  double max_relative_ = 0;
  int64_t first_ = -1;
  std::string first_a_, first_b_;
};

}  // namespace shardmesh::checkpoint::tool

#endif  // SHARDMESH_TOOLS_CHECKPOINT_ELEMENT_DIFFERENCE_H_
