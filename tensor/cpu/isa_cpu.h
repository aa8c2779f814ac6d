// SPDX-License-Identifier: Apache-2.0
//
// One inner loop, compiled for several instruction sets and chosen at run time.
//
//   template <typename Op>
//   struct Loop {
//     static SHARDMESH_ALWAYS_INLINE void Run(const float* a, float* out, int64_t n) {
//       for (int64_t i = 0; i < n; ++i) out[i] = Op::Apply(a[i]);
//     }
//   };
//   RunForIsa<Loop<Negate>>(a, out, n);
//
// Whatever Run calls must be SHARDMESH_ALWAYS_INLINE too, or it is compiled for the baseline alone.
// Loops give the same bits in every version: products and sums are not contracted (the build's
// -ffp-contract=off), the order of a sum is written out as lanes, and there is no libm call whose
// result depends on the processor.
#ifndef SHARDMESH_TENSOR_CPU_ISA_CPU_H_
#define SHARDMESH_TENSOR_CPU_ISA_CPU_H_

#include <cstdint>

#define SHARDMESH_ALWAYS_INLINE inline __attribute__((always_inline))

namespace shardmesh::cpu {

enum class Isa : uint8_t { kBaseline, kAvx2, kAvx512 };

/// What this processor has. SHARDMESH_ISA=baseline|avx2|avx512 in the environment lowers it, for
/// tests.
Isa CurrentIsa();

template <typename Body, typename... Args>
__attribute__((noinline, target("arch=x86-64-v4,prefer-vector-width=512"))) void RunAvx512(
    Args... args) {
  Body::Run(args...);
}
template <typename Body, typename... Args>
__attribute__((noinline, target("arch=x86-64-v3"))) void RunAvx2(Args... args) {
  Body::Run(args...);
}
template <typename Body, typename... Args>
__attribute__((noinline)) void RunBaseline(Args... args) {
  Body::Run(args...);
}

/// Body::Run(args...), in the version for this processor.
template <typename Body, typename... Args>
SHARDMESH_ALWAYS_INLINE void RunForIsa(Args... args) {
  switch (CurrentIsa()) {
    case Isa::kAvx512:
      return RunAvx512<Body, Args...>(args...);
    case Isa::kAvx2:
      return RunAvx2<Body, Args...>(args...);
    case Isa::kBaseline:
      return RunBaseline<Body, Args...>(args...);
  }
}

}  // namespace shardmesh::cpu

#endif  // SHARDMESH_TENSOR_CPU_ISA_CPU_H_
