// SPDX-License-Identifier: Apache-2.0
//
// Kernels that move elements: fill, copy with conversion, where, accumulate.
#include <algorithm>
#include <cstring>

#include "shardmesh/base/check.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/element_cpu.h"
#include "shardmesh/tensor/cpu/loops_cpu.h"

namespace shardmesh {
namespace {

using RunKernel = void (*)(char* const* data, int64_t n);

// Calls visitor.template operator()<T>() with an unsigned type of `dtype`'s size.
template <typename Visitor>
decltype(auto) VisitSize(DType dtype, const Visitor& visitor) {
  switch (SizeOf(dtype)) {
    case 1:
      return visitor.template operator()<uint8_t>();
    case 2:
      return visitor.template operator()<uint16_t>();
    case 4:
      return visitor.template operator()<uint32_t>();
    default:
      return visitor.template operator()<uint64_t>();
  }
}

// ---- fill --------------------------------------------------------------------------------------

void Fill(ExecutionContext& context, double value, Tensor& out) {
  VisitDType(out.dtype(), [&]<typename T>() {
    const T element = ConvertTo<T>(value);
    cpu::ForEachRun(context, {}, {&out}, [&](char* const* data, int64_t n) {
      std::fill_n(reinterpret_cast<T*>(data[0]), n, element);
    });
  });
}

// ---- copy --------------------------------------------------------------------------------------

template <typename From, typename To>
struct ConvertLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(const From* x, To* out, int64_t n) {
    SHARDMESH_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i] = ConvertTo<To>(x[i]);
  }
  // Of integers, the baseline's version will do.
  static void Kernel(char* const* data, int64_t n) {
    const From* x = reinterpret_cast<const From*>(data[0]);
    To* out = reinterpret_cast<To*>(data[1]);
    if constexpr (IsFloating(kDTypeOf<From>) && IsFloating(kDTypeOf<To>)) {
      cpu::RunForIsa<ConvertLoop>(x, out, n);
    } else {
      cpu::RunBaseline<ConvertLoop>(x, out, n);
    }
  }
};

template <typename T>
void CopyRun(char* const* data, int64_t n) {
  std::memcpy(data[1], data[0], n * sizeof(T));
}

void Copy(ExecutionContext& context, const Tensor& x, Tensor& out) {
  RunKernel kernel;
  if (x.dtype() == out.dtype()) {
    kernel = VisitSize(x.dtype(), []<typename T>() -> RunKernel { return CopyRun<T>; });
  } else {
    kernel = VisitDType(x.dtype(), [&]<typename From>() {
      return VisitDType(out.dtype(),
                        []<typename To>() -> RunKernel { return ConvertLoop<From, To>::Kernel; });
    });
  }
  cpu::ForEachRun(context, {&x}, {&out}, kernel);
}

// ---- where -------------------------------------------------------------------------------------

template <typename T>
struct WhereLoop {
  // The condition as bytes of 0 and 1: loops over bool do not vectorise.
  static SHARDMESH_ALWAYS_INLINE void Run(const uint8_t* cond, const T* a, const T* b, T* out,
                                          int64_t n) {
    SHARDMESH_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const T a_i = a[i], b_i = b[i];  // Both are read, so that there is no branch.
      out[i] = cond[i] != 0 ? a_i : b_i;
    }
  }
  static void Kernel(char* const* data, int64_t n) {
    cpu::RunForIsa<WhereLoop>(
        reinterpret_cast<const uint8_t*>(data[0]), reinterpret_cast<const T*>(data[1]),
        reinterpret_cast<const T*>(data[2]), reinterpret_cast<T*>(data[3]), n);
  }
};

void Where(ExecutionContext& context, const Tensor& cond, const Tensor& a, const Tensor& b,
           Tensor& out) {
  const RunKernel kernel =
      VisitSize(out.dtype(), []<typename T>() -> RunKernel { return WhereLoop<T>::Kernel; });
  cpu::ForEachRun(context, {&cond, &a, &b}, {&out}, kernel);
}

// ---- accumulate --------------------------------------------------------------------------------

// The sum in out's accumulator: f32 += bf16 rounds once, in f32.
template <typename From, typename To>
struct AccumulateLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(const From* x, const To* sum, To* out, int64_t n) {
    using A = Accumulator<To>;
    SHARDMESH_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      out[i] = cpu::Store<To>(cpu::Plus(cpu::Load(sum[i]), static_cast<A>(cpu::Load(x[i]))));
    }
  }
  static void Kernel(char* const* data, int64_t n) {
    cpu::RunForIsa<AccumulateLoop>(reinterpret_cast<const From*>(data[0]),
                                   reinterpret_cast<const To*>(data[1]),
                                   reinterpret_cast<To*>(data[2]), n);
  }
};

void Accumulate(ExecutionContext& context, const Tensor& x, Tensor& out) {
  const RunKernel kernel = VisitDType(x.dtype(), [&]<typename From>() -> RunKernel {
    if (out.dtype() == kDTypeOf<From>) return AccumulateLoop<From, From>::Kernel;
    if constexpr (IsFloating(kDTypeOf<From>)) {
      if (out.dtype() == DType::kF64) return AccumulateLoop<From, double>::Kernel;
      if constexpr (sizeof(From) == 2) {
        if (out.dtype() == DType::kF32) return AccumulateLoop<From, float>::Kernel;
      }
    }
    return nullptr;
  });
  SHARDMESH_CHECK(kernel != nullptr) << "accumulate " << x.ToString() << " into " << out.ToString();
  cpu::ForEachRun(context, {&x, &out}, {&out}, kernel);
}

}  // namespace

void FillCopyKernels(KernelTable& table) {
  table.fill = Fill;
  table.copy = Copy;
  table.where = Where;
  table.accumulate = Accumulate;
}

}  // namespace shardmesh
