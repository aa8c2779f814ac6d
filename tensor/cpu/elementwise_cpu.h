// SPDX-License-Identifier: Apache-2.0
//
// Loops of a row of elementwise_ops.inc for every dtype that it takes. A row is a struct:
//
//   struct Row {
//     static constexpr int kArity = 2;
//     static constexpr uint32_t kFlags = ..;              // elementwise::Flags
//     template <typename A> static auto Value(A a, A b, A c, Params<A> p);
//     template <int kOperand, typename A> static auto Gradient(A g, A a, A b, A c, A y, Params<A>);
//   };
#ifndef SHARDMESH_TENSOR_CPU_ELEMENTWISE_CPU_H_
#define SHARDMESH_TENSOR_CPU_ELEMENTWISE_CPU_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "shardmesh/tensor/cpu/element_functions_cpu.h"
#include "shardmesh/tensor/cpu/isa_cpu.h"
#include "shardmesh/tensor/dtype.h"
#include "shardmesh/tensor/elementwise.h"

namespace shardmesh::cpu {

/// n elements of each operand, inputs first. params: three.
using ElementwiseLoop = void (*)(char* const* data, int64_t n, const double* params);

/// By dtype; null where the op is not defined.
struct ElementwiseLoops {
  static constexpr int kDTypes = 7;
  ElementwiseLoop value[kDTypes] = {};        ///< operands -> result
  ElementwiseLoop gradient[3][kDTypes] = {};  ///< g, what the row reads -> gradient of operand i
  ElementwiseLoop both[kDTypes] = {};         ///< g, what the row reads -> gradients of a and b
};

/// By row, of each number of operands.
const ElementwiseLoops* UnaryLoops();
const ElementwiseLoops* BinaryLoops();
const ElementwiseLoops* TernaryLoops();

namespace elementwise_internal {

template <typename A>
struct Params {
  explicit Params(const double* p)
      : p0(static_cast<A>(p[0])), p1(static_cast<A>(p[1])), p2(static_cast<A>(p[2])) {}
  A p0, p1, p2;
};
// Of integers and bools.
template <typename A>
using ParamsOf = Params<std::conditional_t<std::is_floating_point_v<A>, A, double>>;

template <typename Row>
constexpr bool Has(uint32_t flag) {
  return (Row::kFlags & flag) != 0;
}

template <typename Row, typename Loop>
SHARDMESH_ALWAYS_INLINE void RunLoop(char* const* data, int64_t n, const double* params) {
  if constexpr (Has<Row>(elementwise::kVector)) {
    RunForIsa<Loop>(data, n, params);
  } else {
    RunBaseline<Loop>(data, n, params);
  }
}

template <typename Row, typename T>
struct ValueLoop {
  using Out = std::conditional_t<Has<Row>(elementwise::kBoolResult), bool, T>;

  static SHARDMESH_ALWAYS_INLINE void Run(char* const* data, int64_t n, const double* params) {
    using A = Accumulator<T>;
    const ParamsOf<A> p(params);
    const T* a = reinterpret_cast<const T*>(data[0]);
    const T* b = reinterpret_cast<const T*>(data[Row::kArity > 1 ? 1 : 0]);
    const T* c = reinterpret_cast<const T*>(data[Row::kArity > 2 ? 2 : 0]);
    Out* out = reinterpret_cast<Out*>(data[Row::kArity]);
    SHARDMESH_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<Out>(Row::template Value<A>(
          Load(a[i]), Row::kArity > 1 ? Load(b[i]) : A{}, Row::kArity > 2 ? Load(c[i]) : A{}, p));
    }
  }
  static void Loop(char* const* data, int64_t n, const double* params) {
    RunLoop<Row, ValueLoop>(data, n, params);
  }
};

// What a gradient reads, after g: operands in their order, then the result.
template <typename Row>
struct Reads {
  static constexpr uint32_t kMask =
      ((Row::kFlags / elementwise::kReadsA) & ((1u << Row::kArity) - 1)) |
      (Has<Row>(elementwise::kReadsResult) ? 1u << Row::kArity : 0u);
  static constexpr int kCount = std::popcount(kMask);
  static constexpr bool Has(int value) { return ((kMask >> value) & 1u) != 0; }
  static constexpr int At(int value) { return 1 + std::popcount(kMask & ((1u << value) - 1)); }
};

// Element i of what is read of operand (or result) `kValue`.
template <typename Row, int kValue, typename T>
SHARDMESH_ALWAYS_INLINE Accumulator<T> Read(char* const* data, int64_t i) {
  if constexpr (kValue <= Row::kArity && Reads<Row>::Has(kValue)) {
    return Load(reinterpret_cast<const T*>(data[Reads<Row>::At(kValue)])[i]);
  } else {
    return Accumulator<T>{};
  }
}

template <typename Row, int kOperand, typename T>
SHARDMESH_ALWAYS_INLINE T GradientOf(Accumulator<T> g, Accumulator<T> a, Accumulator<T> b,
                                     Accumulator<T> c, Accumulator<T> y,
                                     const Params<Accumulator<T>>& p) {
  return Store<T>(Row::template Gradient<kOperand, Accumulator<T>>(g, a, b, c, y, p));
}

template <typename Row, int kOperand, typename T>
struct GradientLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(char* const* data, int64_t n, const double* params) {
    using A = Accumulator<T>;
    const Params<A> p(params);
    const T* g = reinterpret_cast<const T*>(data[0]);
    T* out = reinterpret_cast<T*>(data[1 + Reads<Row>::kCount]);
    char* const local[5] = {data[0], data[1], data[Reads<Row>::kCount > 1 ? 2 : 0],
                            data[Reads<Row>::kCount > 2 ? 3 : 0],
                            data[Reads<Row>::kCount > 3 ? 4 : 0]};
    SHARDMESH_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const A a = Read<Row, 0, T>(local, i);
      const A b = Row::kArity > 1 ? Read<Row, 1, T>(local, i) : A{};
      const A c = Row::kArity > 2 ? Read<Row, 2, T>(local, i) : A{};
      const A y = Read<Row, Row::kArity, T>(local, i);
      out[i] = GradientOf<Row, kOperand, T>(Load(g[i]), a, b, c, y, p);
    }
  }
  static void Loop(char* const* data, int64_t n, const double* params) {
    RunLoop<Row, GradientLoop>(data, n, params);
  }
};

// Of a row that reads both operands, and not the result.
template <typename Row, typename T>
struct BothGradientsLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(char* const* data, int64_t n, const double* params) {
    using A = Accumulator<T>;
    const Params<A> p(params);
    const T* g = reinterpret_cast<const T*>(data[0]);
    const T* a = reinterpret_cast<const T*>(data[1]);
    const T* b = reinterpret_cast<const T*>(data[2]);
    T* da = reinterpret_cast<T*>(data[3]);
    T* db = reinterpret_cast<T*>(data[4]);
    SHARDMESH_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const A g_i = Load(g[i]), a_i = Load(a[i]), b_i = Load(b[i]);
      da[i] = GradientOf<Row, 0, T>(g_i, a_i, b_i, A{}, A{}, p);
      db[i] = GradientOf<Row, 1, T>(g_i, a_i, b_i, A{}, A{}, p);
    }
  }
  static void Loop(char* const* data, int64_t n, const double* params) {
    RunLoop<Row, BothGradientsLoop>(data, n, params);
  }
};

template <typename Row, int kOperand>
constexpr bool IsDifferentiable() {
  using Result = decltype(Row::template Gradient<kOperand, float>(
      0.0f, 0.0f, 0.0f, 0.0f, 0.0f, std::declval<const Params<float>&>()));
  return !std::is_same_v<Result, element::NotDifferentiable>;
}

template <typename Row, int kOperand>
constexpr void AddGradient(ElementwiseLoops& loops) {
  if constexpr (kOperand < Row::kArity) {
    if constexpr (IsDifferentiable<Row, kOperand>()) {
      ElementwiseLoop* const by_dtype = loops.gradient[kOperand];
      by_dtype[static_cast<int>(DType::kF32)] = GradientLoop<Row, kOperand, float>::Loop;
      by_dtype[static_cast<int>(DType::kF64)] = GradientLoop<Row, kOperand, double>::Loop;
      by_dtype[static_cast<int>(DType::kBF16)] = GradientLoop<Row, kOperand, BFloat16>::Loop;
      by_dtype[static_cast<int>(DType::kF16)] = GradientLoop<Row, kOperand, Float16>::Loop;
    }
  }
}

template <typename Row>
constexpr ElementwiseLoops LoopsOf() {
  ElementwiseLoops loops;
  if constexpr (!Has<Row>(elementwise::kIntegers)) {
    loops.value[static_cast<int>(DType::kF32)] = ValueLoop<Row, float>::Loop;
    loops.value[static_cast<int>(DType::kF64)] = ValueLoop<Row, double>::Loop;
    loops.value[static_cast<int>(DType::kBF16)] = ValueLoop<Row, BFloat16>::Loop;
    loops.value[static_cast<int>(DType::kF16)] = ValueLoop<Row, Float16>::Loop;
    AddGradient<Row, 0>(loops);
    AddGradient<Row, 1>(loops);
    AddGradient<Row, 2>(loops);
  }
  if constexpr (Has<Row>(elementwise::kIntegers | elementwise::kNumbers)) {
    loops.value[static_cast<int>(DType::kI32)] = ValueLoop<Row, int32_t>::Loop;
    loops.value[static_cast<int>(DType::kI64)] = ValueLoop<Row, int64_t>::Loop;
  }
  if constexpr (Has<Row>(elementwise::kBools)) {
    loops.value[static_cast<int>(DType::kBool)] = ValueLoop<Row, bool>::Loop;
  }
  if constexpr (Has<Row>(elementwise::kFused)) {
    loops.both[static_cast<int>(DType::kF32)] = BothGradientsLoop<Row, float>::Loop;
    loops.both[static_cast<int>(DType::kF64)] = BothGradientsLoop<Row, double>::Loop;
    loops.both[static_cast<int>(DType::kBF16)] = BothGradientsLoop<Row, BFloat16>::Loop;
    loops.both[static_cast<int>(DType::kF16)] = BothGradientsLoop<Row, Float16>::Loop;
  }
  return loops;
}

}  // namespace elementwise_internal
}  // namespace shardmesh::cpu

// A row as a struct, in a namespace where the names that rows are written in are known.
#define SHARDMESH_ROW_BEGIN(Function, arity, flags)                       \
  struct Function##Row {                                                  \
    static constexpr int kArity = arity;                                  \
    static constexpr uint32_t kFlags = flags;                             \
    template <typename A>                                                 \
    static SHARDMESH_ALWAYS_INLINE auto Value(                            \
        [[maybe_unused]] A a, [[maybe_unused]] A b, [[maybe_unused]] A c, \
        [[maybe_unused]] const elementwise_internal::ParamsOf<A>& p) {    \
      [[maybe_unused]] const A x = a;                                     \
      [[maybe_unused]] const auto p0 = p.p0, p1 = p.p1, p2 = p.p2;
#define SHARDMESH_ROW_GRADIENTS                                                               \
  }                                                                                           \
  template <int kOperand, typename A>                                                         \
  static SHARDMESH_ALWAYS_INLINE auto Gradient(                                               \
      [[maybe_unused]] A g, [[maybe_unused]] A a, [[maybe_unused]] A b, [[maybe_unused]] A c, \
      [[maybe_unused]] A y, [[maybe_unused]] const elementwise_internal::Params<A>& p) {      \
    [[maybe_unused]] const A x = a;                                                           \
    [[maybe_unused]] const A p0 = p.p0, p1 = p.p1, p2 = p.p2;
#define SHARDMESH_ROW_END \
  }                       \
  }                       \
  ;

#endif  // SHARDMESH_TENSOR_CPU_ELEMENTWISE_CPU_H_
