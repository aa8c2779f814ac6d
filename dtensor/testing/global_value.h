// SPDX-License-Identifier: Apache-2.0
//
// Whole tensors that a test knows, and their pieces on the ranks of a mesh.
//
//   Random random(/*seed=*/7);
//   const GlobalValue x = RandomGlobal({5, 3}, random);
//   Pieces pieces;
//   OnMesh({{"dp", 2}}, [&](const DeviceMesh& mesh) {
//     pieces.Put(Neg(Place(mesh, Layout::Make(mesh.shape(), {Partial()}, x.shape), x)));
//   });
//   EXPECT_TRUE(pieces.AreOf(negated_x, /*tolerance=*/0));
//
// Nothing here communicates or calls the code under test: a value is cut and put together by
// Layout::LocalBox and plain loops.
#ifndef SHARDMESH_DTENSOR_TESTING_GLOBAL_VALUE_H_
#define SHARDMESH_DTENSOR_TESTING_GLOBAL_VALUE_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::testing {

/// Reproducible random bits (splitmix64). Value type.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u) {}
  uint64_t Next();
  /// In [0, bound).
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_;
};

/// A whole tensor. Elements in row-major order, exact in `dtype`.
struct GlobalValue {
  Dims shape;
  DType dtype = DType::kF64;
  std::vector<double> values = {};
};

/// Multiples of 1/256 in [low, high), so that sums of a few are exact and a Partial value is what
/// its summands add up to, bit for bit.
GlobalValue RandomGlobal(const Dims& shape, Random& random, double low = -2, double high = 2);
/// The same from random bits of its own.
GlobalValue Values(const Dims& shape, uint64_t seed);
/// Magnitudes in [low, high), of either sign.
GlobalValue RandomAwayFromZero(const Dims& shape, Random& random, double low, double high);
/// Integers in [low, high).
GlobalValue RandomIntegers(const Dims& shape, Random& random, int64_t low, int64_t high,
                           DType dtype = DType::kI64);
GlobalValue RandomBools(const Dims& shape, Random& random);
/// The elements of a local tensor as a whole one.
GlobalValue GlobalOf(const Tensor& x);
/// A local tensor of all elements.
Tensor WholeTensor(ExecutionContext& context, const GlobalValue& value);

/// The elements of `value` in `box`.
std::vector<double> BoxOf(const GlobalValue& value, const Box& box);

/// This rank's box of `value`. Where the layout is Partial, the ranks hold different parts that
/// combine to the value exactly: for a sum random summands larger than the value. The same `seed`
/// gives replicas the same parts.
Tensor LocalPart(ExecutionContext& context, const Layout& layout, const Coord& coord,
                 const GlobalValue& value, uint64_t seed = 1);
/// As a DTensor.
DTensor Place(const DeviceMesh& mesh, const Layout& layout, const GlobalValue& value,
              uint64_t seed = 1);
DTensor Place(const DeviceMesh& mesh, std::initializer_list<Placement> placements,
              const GlobalValue& value, uint64_t seed = 1);

/// What the ranks hold of one tensor, noted by each rank. Thread-safe.
class Pieces {
 public:
  void Put(const DTensor& x);

  /// Whether all ranks have put a piece of one layout, local shapes are boxes, replicas are equal
  /// bit for bit, and the pieces make up `expected`: not finite elements exactly, others within
  /// `tolerance` times the largest finite one.
  ::testing::AssertionResult AreOf(const GlobalValue& expected, double tolerance) const;
  /// The value they make up, if AreOf would find them in order.
  GlobalValue Value() const;
  Layout layout() const { return pieces_.empty() ? Layout() : pieces_[0].layout; }

 private:
  struct Piece {
    Layout layout;
    Coord coord;
    Dims shape;
    DType dtype;
    std::vector<double> values;
  };
  ::testing::AssertionResult Assemble(GlobalValue& result) const;

  mutable std::mutex mutex_;
  std::vector<Piece> pieces_;
};

/// Whether `actual` is `expected`, in the sense of Pieces::AreOf.
::testing::AssertionResult AreClose(const std::vector<double>& actual,
                                    const std::vector<double>& expected, double tolerance);
/// Equal bits.
bool SameBits(const std::vector<double>& a, const std::vector<double>& b);

/// Every layout of `shape` on `mesh`: R, S(d) and the Partials given on each axis, and every split
/// order.
std::vector<Layout> AllLayouts(const MeshShape& mesh, const Dims& shape,
                               const std::vector<ReduceOp>& partials = {ReduceOp::kSum});

/// Runs `fn` on every rank of a mesh of one process, one thread a rank; a test failure if it
/// throws.
void OnMesh(const MeshShape& shape, absl::FunctionRef<void(const DeviceMesh& mesh)> fn);

/// The message of the Error that `fn` throws; a test failure if it throws none.
std::string ErrorOf(absl::FunctionRef<void()> fn);

}  // namespace shardmesh::testing

#endif  // SHARDMESH_DTENSOR_TESTING_GLOBAL_VALUE_H_
