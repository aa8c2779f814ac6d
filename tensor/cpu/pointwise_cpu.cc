// SPDX-License-Identifier: Apache-2.0
//
// Functions of one operand and their backwards, and the gate of a SwiGLU MLP.
#include <cmath>
#include <type_traits>

#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/element_cpu.h"
#include "shardmesh/tensor/cpu/log_cpu.h"
#include "shardmesh/tensor/cpu/loops_cpu.h"
#include "shardmesh/tensor/cpu/math_cpu.h"
#include "shardmesh/tensor/cpu/trigonometry_cpu.h"

namespace shardmesh {
namespace {

using cpu::Load;
using cpu::Store;

// ---- functions ---------------------------------------------------------------------------------

template <UnaryOp kOp, typename A>
SHARDMESH_ALWAYS_INLINE A Apply(A x) {
  if constexpr (kOp == UnaryOp::kNeg) {
    // 0 - x would make -0 of 0 only.
    if constexpr (std::is_floating_point_v<A>) return -x;
    return cpu::Difference(A{0}, x);
  }
  if constexpr (kOp == UnaryOp::kAbs) {
    if constexpr (std::is_floating_point_v<A>) return std::fabs(x);
    return x < A{0} ? cpu::Difference(A{0}, x) : x;
  }
  if constexpr (kOp == UnaryOp::kRelu) return x < A{0} ? A{0} : x;  // NaN stays.
  if constexpr (kOp == UnaryOp::kSquare) return cpu::Product(x, x);
  if constexpr (kOp == UnaryOp::kExp) return cpu::Exp(x);
  if constexpr (kOp == UnaryOp::kLog) return cpu::Log(x);
  if constexpr (kOp == UnaryOp::kSqrt) return std::sqrt(x);
  if constexpr (kOp == UnaryOp::kRsqrt) return A{1} / std::sqrt(x);
  if constexpr (kOp == UnaryOp::kReciprocal) return A{1} / x;
  if constexpr (kOp == UnaryOp::kTanh) return cpu::Tanh(x);
  if constexpr (kOp == UnaryOp::kSigmoid) return cpu::Sigmoid(x);
  if constexpr (kOp == UnaryOp::kSilu) return cpu::Silu(x);
  if constexpr (kOp == UnaryOp::kSin) return cpu::Sin(x);
  if constexpr (kOp == UnaryOp::kCos) return cpu::Cos(x);
}

// g f'(x). `v` is x or y = f(x): see BackwardReadsInput.
template <UnaryOp kOp, typename A>
SHARDMESH_ALWAYS_INLINE A ApplyBackward(A g, A v) {
  if constexpr (kOp == UnaryOp::kNeg) return -g;
  if constexpr (kOp == UnaryOp::kAbs)
    return v > A{0} ? g : v < A{0} ? -g : g * v;  // g * NaN, g * 0
  if constexpr (kOp == UnaryOp::kRelu) return v <= A{0} ? A{0} : g;
  if constexpr (kOp == UnaryOp::kSquare) return g * (A{2} * v);
  if constexpr (kOp == UnaryOp::kExp) return g * v;
  if constexpr (kOp == UnaryOp::kLog) return g / v;
  if constexpr (kOp == UnaryOp::kSqrt) return g / (A{2} * v);
  if constexpr (kOp == UnaryOp::kRsqrt) return g * (A{-0.5} * (v * v * v));
  if constexpr (kOp == UnaryOp::kReciprocal) return -g * (v * v);
  if constexpr (kOp == UnaryOp::kTanh) return g * (A{1} - v * v);
  if constexpr (kOp == UnaryOp::kSigmoid) return g * (v * (A{1} - v));
  if constexpr (kOp == UnaryOp::kSilu) return g * cpu::SiluDerivative(v);
  if constexpr (kOp == UnaryOp::kSin) return g * cpu::Cos(v);
  if constexpr (kOp == UnaryOp::kCos) return -g * cpu::Sin(v);
}

constexpr bool TakesIntegers(UnaryOp op) {
  return op == UnaryOp::kNeg || op == UnaryOp::kAbs || op == UnaryOp::kRelu ||
         op == UnaryOp::kSquare;
}

// Sine and cosine branch: large arguments are reduced by a call.
constexpr bool Vectorises(UnaryOp op) { return op != UnaryOp::kSin && op != UnaryOp::kCos; }

// ---- loops -------------------------------------------------------------------------------------

template <bool kVectorises, typename Loop, typename... Args>
void RunLoop(Args... args) {
  if constexpr (kVectorises) {
    cpu::RunForIsa<Loop>(args...);
  } else {
    cpu::RunBaseline<Loop>(args...);
  }
}

template <UnaryOp kOp, typename T>
struct UnaryLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(const T* x, T* out, int64_t n) {
    SHARDMESH_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i] = Store<T>(Apply<kOp>(Load(x[i])));
  }
  static void Kernel(char* const* data, int64_t n) {
    RunLoop<Vectorises(kOp), UnaryLoop>(reinterpret_cast<const T*>(data[0]),
                                        reinterpret_cast<T*>(data[1]), n);
  }
};

template <UnaryOp kOp, typename T>
struct UnaryBackwardLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(const T* g, const T* v, T* out, int64_t n) {
    SHARDMESH_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      out[i] = Store<T>(ApplyBackward<kOp>(Load(g[i]), Load(v[i])));
    }
  }
  static void Kernel(char* const* data, int64_t n) {
    RunLoop<Vectorises(kOp), UnaryBackwardLoop>(reinterpret_cast<const T*>(data[0]),
                                                reinterpret_cast<const T*>(data[1]),
                                                reinterpret_cast<T*>(data[2]), n);
  }
};

// out = silu(gate) * up
template <typename T>
struct SiluMulLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(const T* gate, const T* up, T* out, int64_t n) {
    SHARDMESH_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i] = Store<T>(cpu::Silu(Load(gate[i])) * Load(up[i]));
  }
  static void Kernel(char* const* data, int64_t n) {
    cpu::RunForIsa<SiluMulLoop>(reinterpret_cast<const T*>(data[0]),
                                reinterpret_cast<const T*>(data[1]), reinterpret_cast<T*>(data[2]),
                                n);
  }
};

// With s = sigmoid(gate): dgate = g up s (1 + gate (1 - s)), dup = g gate s.
template <typename T>
struct SiluMulBackwardLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(const T* g, const T* gate, const T* up, T* dgate, T* dup,
                                          int64_t n) {
    using A = Accumulator<T>;
    SHARDMESH_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const A g_i = Load(g[i]), x = Load(gate[i]), up_i = Load(up[i]);
      const A s = cpu::Sigmoid(x);
      dgate[i] = Store<T>(g_i * up_i * (s * (A{1} + x * (A{1} - s))));
      dup[i] = Store<T>(g_i * (x * s));
    }
  }
  static void Kernel(char* const* data, int64_t n) {
    cpu::RunForIsa<SiluMulBackwardLoop>(
        reinterpret_cast<const T*>(data[0]), reinterpret_cast<const T*>(data[1]),
        reinterpret_cast<const T*>(data[2]), reinterpret_cast<T*>(data[3]),
        reinterpret_cast<T*>(data[4]), n);
  }
};

// ---- kernels -----------------------------------------------------------------------------------

using RunKernel = void (*)(char* const* data, int64_t n);

template <UnaryOp kOp>
RunKernel UnaryKernel(DType dtype) {
  if constexpr (TakesIntegers(kOp)) {
    if (dtype == DType::kI32) return UnaryLoop<kOp, int32_t>::Kernel;
    if (dtype == DType::kI64) return UnaryLoop<kOp, int64_t>::Kernel;
  }
  return VisitFloating(dtype, Name(kOp),
                       []<typename T>() -> RunKernel { return UnaryLoop<kOp, T>::Kernel; });
}

template <UnaryOp kOp>
RunKernel UnaryBackwardKernel(DType dtype) {
  return VisitFloating(dtype, Name(kOp),
                       []<typename T>() -> RunKernel { return UnaryBackwardLoop<kOp, T>::Kernel; });
}

// select.template operator()<op>() for a run-time op.
template <typename Select>
RunKernel SelectUnary(UnaryOp op, const Select& select) {
  switch (op) {
    case UnaryOp::kNeg:
      return select.template operator()<UnaryOp::kNeg>();
    case UnaryOp::kAbs:
      return select.template operator()<UnaryOp::kAbs>();
    case UnaryOp::kExp:
      return select.template operator()<UnaryOp::kExp>();
    case UnaryOp::kLog:
      return select.template operator()<UnaryOp::kLog>();
    case UnaryOp::kSqrt:
      return select.template operator()<UnaryOp::kSqrt>();
    case UnaryOp::kRsqrt:
      return select.template operator()<UnaryOp::kRsqrt>();
    case UnaryOp::kReciprocal:
      return select.template operator()<UnaryOp::kReciprocal>();
    case UnaryOp::kTanh:
      return select.template operator()<UnaryOp::kTanh>();
    case UnaryOp::kSigmoid:
      return select.template operator()<UnaryOp::kSigmoid>();
    case UnaryOp::kSilu:
      return select.template operator()<UnaryOp::kSilu>();
    case UnaryOp::kRelu:
      return select.template operator()<UnaryOp::kRelu>();
    case UnaryOp::kSquare:
      return select.template operator()<UnaryOp::kSquare>();
    case UnaryOp::kSin:
      return select.template operator()<UnaryOp::kSin>();
    case UnaryOp::kCos:
      break;
  }
  return select.template operator()<UnaryOp::kCos>();
}

void Unary(ExecutionContext& context, UnaryOp op, const Tensor& x, Tensor& out) {
  const RunKernel kernel =
      SelectUnary(op, [&]<UnaryOp kOp>() { return UnaryKernel<kOp>(x.dtype()); });
  cpu::ForEachRun(context, {&x}, {&out}, kernel);
}

void UnaryBackward(ExecutionContext& context, UnaryOp op, const Tensor& grad, const Tensor& x,
                   const Tensor& y, Tensor& out) {
  const RunKernel kernel =
      SelectUnary(op, [&]<UnaryOp kOp>() { return UnaryBackwardKernel<kOp>(grad.dtype()); });
  const Tensor& read = BackwardReadsInput(op) ? x : BackwardReadsOutput(op) ? y : grad;
  cpu::ForEachRun(context, {&grad, &read}, {&out}, kernel);
}

void SiluMul(ExecutionContext& context, const Tensor& gate, const Tensor& up, Tensor& out) {
  const RunKernel kernel = VisitFloating(
      gate.dtype(), "silu_mul", []<typename T>() -> RunKernel { return SiluMulLoop<T>::Kernel; });
  cpu::ForEachRun(context, {&gate, &up}, {&out}, kernel);
}

void SiluMulBackward(ExecutionContext& context, const Tensor& grad, const Tensor& gate,
                     const Tensor& up, Tensor& dgate, Tensor& dup) {
  const RunKernel kernel = VisitFloating(gate.dtype(), "silu_mul", []<typename T>() -> RunKernel {
    return SiluMulBackwardLoop<T>::Kernel;
  });
  cpu::ForEachRun(context, {&grad, &gate, &up}, {&dgate, &dup}, kernel);
}

}  // namespace

void FillPointwiseKernels(KernelTable& table) {
  table.unary = Unary;
  table.unary_backward = UnaryBackward;
  table.silu_mul = SiluMul;
  table.silu_mul_backward = SiluMulBackward;
}

}  // namespace shardmesh
