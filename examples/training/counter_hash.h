// SPDX-License-Identifier: Apache-2.0
//
// Random bits as a pure function of three counters: those of (seed, step, row) are the same on
// every mesh, in every process and in any order of calls.
#ifndef SHARDMESH_EXAMPLES_TRAINING_COUNTER_HASH_H_
#define SHARDMESH_EXAMPLES_TRAINING_COUNTER_HASH_H_

#include <cstdint>

namespace shardmesh::examples {

/// The output of SplitMix64 in state `x`.
constexpr uint64_t SplitMix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// SplitMix(SplitMix(SplitMix(seed) + a) + b). It selects the windows that a run trains on.
/// Source: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators (2014), for SplitMix.
constexpr uint64_t CounterHash(uint64_t seed, uint64_t a, uint64_t b) {
  return SplitMix(SplitMix(SplitMix(seed) + a) + b);
}

/// In [0, 1), from the upper 53 bits.
constexpr double UnitInterval(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_COUNTER_HASH_H_
