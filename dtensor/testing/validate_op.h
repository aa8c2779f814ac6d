// SPDX-License-Identifier: Apache-2.0
//
// The proof of a sharding rule: an op, forward and backward, with its operands in any combination
// of layouts on several meshes, against the same op on a mesh of one rank. For the ops of the
// library and those of users.
//
//   SHARDMESH_VALIDATE_OP(RowScale, OfUnevenRows,
//                         {"row_scale",
//                          {Values({5, 3}, 1), Values({5}, 2)},
//                          [](std::span<const DTensor> o) { return RowScale(o[0], o[1]); }})
#ifndef SHARDMESH_DTENSOR_TESTING_VALIDATE_OP_H_
#define SHARDMESH_DTENSOR_TESTING_VALIDATE_OP_H_

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "shardmesh/dtensor/testing/global_value.h"

namespace shardmesh::testing {

/// One op with its static arguments, and its operands. Floating-point operands are differentiated.
struct OpCase {
  std::string name;
  std::vector<GlobalValue> operands;
  std::function<DTensor(std::span<const DTensor> operands)> apply;

  /// "sum(dims 0 2) f64[3,5,2]".
  std::string ToString() const;
};

/// Fails the current test, naming the op, shapes, mesh and layouts, where a result or a gradient
/// differs by more than 1e-12 of its magnitude from that on one rank, has another dtype or shape,
/// or where a rank throws.
///
/// Meshes have 2 to 6 ranks and one axis of size 1. Operands come in all layouts, split orders and
/// Partials (sum of large random summands, minimum, maximum, product); upstream gradients in all
/// layouts; some gradients go into sinks; some operands want none. Combinations beyond a limit are
/// sampled, the same ones in every run; SHARDMESH_VALIDATOR_COMBINATIONS=1000000 takes them all.
/// Extents should be few, and not multiples of the ranks: at least one of 5 and one of 3.
void ValidateOp(const OpCase& op_case);

/// A GoogleTest of one case.
#define SHARDMESH_VALIDATE_OP(suite, name, ...)                                 \
  TEST(suite, name) {                                                           \
    ::shardmesh::testing::ValidateOp(::shardmesh::testing::OpCase __VA_ARGS__); \
  }                                                                             \
  static_assert(true, "a semicolon may follow")

}  // namespace shardmesh::testing

#endif  // SHARDMESH_DTENSOR_TESTING_VALIDATE_OP_H_
