// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/cpu/isa_cpu.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "shardmesh/base/error.h"

namespace shardmesh::cpu {
namespace {

Isa Detect() {
  Isa isa = Isa::kBaseline;
  if (__builtin_cpu_supports("x86-64-v3")) isa = Isa::kAvx2;
  if (__builtin_cpu_supports("x86-64-v4")) isa = Isa::kAvx512;
  const char* wanted = std::getenv("SHARDMESH_ISA");
  if (wanted == nullptr) return isa;
  if (std::string_view(wanted) == "baseline") return Isa::kBaseline;
  if (std::string_view(wanted) == "avx2") return std::min(isa, Isa::kAvx2);
  if (std::string_view(wanted) == "avx512") return isa;
  ThrowInvalid("the environment variable SHARDMESH_ISA is '", wanted,
               "', expected baseline, avx2 or avx512");
}

}  // namespace

Isa CurrentIsa() {
  static const Isa isa = Detect();
  return isa;
}

}  // namespace shardmesh::cpu
