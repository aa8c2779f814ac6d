// SPDX-License-Identifier: Apache-2.0
//
// What the conformance tests share: a run on each world size, and the definition of a reduction.
#ifndef SHARDMESH_COMM_TESTING_CONFORMANCE_H_
#define SHARDMESH_COMM_TESTING_CONFORMANCE_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/comm/testing/sample_tensors.h"
#include "shardmesh/comm/testing/world_under_test.h"

namespace shardmesh::testing {

// One run on each world size.
inline void OnEveryWorld(absl::FunctionRef<void(Communicator&)> fn) {
  for (const int size : WorldSizes()) {
    EXPECT_EQ(RunWorld(size, fn), absl::OkStatus()) << size << " ranks";
  }
}

// Bitwise, so that NaN equals NaN and -0 differs from 0.
template <typename T>
bool SameBits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename T>
void ExpectElements(const Tensor& tensor, absl::FunctionRef<T(int64_t)> expected,
                    const std::string& what) {
  int64_t wrong = 0;
  ForEach<T>(tensor, [&](int64_t i, const T& value) {
    if (SameBits(value, expected(i)) || wrong++ > 0) return;
    ADD_FAILURE() << what << ": element " << i << " is " << static_cast<Accumulator<T>>(value)
                  << ", expected " << static_cast<Accumulator<T>>(expected(i));
  });
  EXPECT_EQ(wrong, 0) << what;
}

// The definition of a reduction: in rank order, in the accumulator's type, rounded once.
template <typename T, typename SourceOf>
T Reduced(ReduceOp op, int size, const SourceOf& source_of) {
  using A = Accumulator<T>;
  A result = static_cast<A>(source_of(0));
  for (int m = 1; m < size; ++m) {
    const A next = static_cast<A>(source_of(m));
    switch (op) {
      case ReduceOp::kSum:
        result += next;
        break;
      case ReduceOp::kProduct:
        result *= next;
        break;
      case ReduceOp::kMin:
        result = std::isnan(double(result)) ? result : !(next > result) ? next : result;
        break;
      case ReduceOp::kMax:
        result = std::isnan(double(result)) ? result : !(next < result) ? next : result;
        break;
    }
  }
  return static_cast<T>(result);
}

/// The samples of one item of one rank.
inline uint64_t SeedOf(int rank, int item) { return 1000 * item + rank; }

/// That `tensor` is the reduction of the samples of `item` over the members of `group`.
template <typename T>
void ExpectReduced(const Tensor& tensor, const Communicator& group, ReduceOp op, int item,
                   const std::string& what) {
  ExpectElements<T>(
      tensor,
      [&](int64_t i) {
        return Reduced<T>(op, group.size(), [&](int m) {
          return Sample<T>(SeedOf(group.world_ranks()[m], item), i);
        });
      },
      what);
}

}  // namespace shardmesh::testing

#endif  // SHARDMESH_COMM_TESTING_CONFORMANCE_H_
