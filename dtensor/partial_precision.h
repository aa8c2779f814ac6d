// SPDX-License-Identifier: Apache-2.0
//
// In which dtype a Partial tensor of bf16 or f16 holds its summands.
//
//   {
//     PartialPrecisionScope small(mesh, PartialPrecision::kTensor);
//     y = Linear(x, w);        // k is sharded: y is Partial and holds bf16 summands, here and for
//   }                          // what its backward makes
//
//   | precision    | summand   | bytes reduced | error of a sum over p ranks                     |
//   |--------------|-----------|---------------|-------------------------------------------------|
//   | kAccumulator | f32       | 4 per element | one rounding, that of the result                |
//   | kTensor      | bf16, f16 | 2 per element | p + 1 roundings: each summand's too, relative   |
//   |              |           |               | to that summand; f16 summands may overflow      |
//
// The dtype of the tensor, and what it holds once it is reduced, is bf16 or f16 in both cases. f32
// and f64 are their own accumulators.
#ifndef SHARDMESH_DTENSOR_PARTIAL_PRECISION_H_
#define SHARDMESH_DTENSOR_PARTIAL_PRECISION_H_

#include <cstdint>

#include "shardmesh/mesh/device_mesh.h"

namespace shardmesh {

class Runtime;

enum class PartialPrecision : uint8_t { kAccumulator, kTensor };

/// While alive, what ops on this rank record and make. Must be used alike on all ranks. Scopes
/// nest; the default is kAccumulator.
class PartialPrecisionScope {
 public:
  PartialPrecisionScope(const DeviceMesh& mesh, PartialPrecision precision);
  ~PartialPrecisionScope();
  PartialPrecisionScope(const PartialPrecisionScope&) = delete;
  PartialPrecisionScope& operator=(const PartialPrecisionScope&) = delete;

 private:
  Runtime& runtime_;
  PartialPrecision before_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_PARTIAL_PRECISION_H_
