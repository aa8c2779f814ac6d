// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps, fused: each element is read and written once.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "shardmesh/base/error.h"
#include "shardmesh/tensor/cpu/cpu_kernels.h"
#include "shardmesh/tensor/cpu/isa_cpu.h"
#include "shardmesh/tensor/internal/output_data.h"

namespace shardmesh {
namespace {

using cpu::RunForIsa;
using internal::OutputData;

constexpr int64_t kPerTile = 16384;

/// A gradient's element in the dtype of the parameter.
template <typename T, typename G>
SHARDMESH_ALWAYS_INLINE T ToParameter(G value) {
  if constexpr (std::is_same_v<G, BFloat16> || std::is_same_v<G, Float16>) {
    return static_cast<T>(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// Calls visitor.template operator()<T, G>() with the types of parameter and gradient.
template <typename Visitor>
void VisitParameterAndGradient(const char* op, const Tensor& p, const Tensor& grad,
                               const Visitor& visitor) {
  VisitFloating(grad.dtype(), op, [&]<typename G>() {
    if (p.dtype() == DType::kF32) return visitor.template operator()<float, G>();
    if (p.dtype() == DType::kF64) return visitor.template operator()<double, G>();
    ThrowInvalid(op, ": parameters are f32 or f64, not ", p.ToString());
  });
}

template <typename Fn>
void ForTiles(ExecutionContext& context, int64_t count, const Fn& fn) {
  context.ParallelFor((count + kPerTile - 1) / kPerTile, [&](int64_t tile) {
    const int64_t begin = tile * kPerTile;
    fn(begin, std::min(kPerTile, count - begin));
  });
}

// ---- AdamW --------------------------------------------------------------------------------------

/// By squaring: the C library's pow differs between processors.
double Power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 != 0) result *= base;
  }
  return result;
}

/// What all elements have in common in one step.
template <typename T>
struct AdamWFactors {
  T keep;  ///< 1 - lr * weight_decay.
  T one_minus_beta1;
  T beta2, one_minus_beta2;
  T sqrt_correction2;  ///< sqrt(1 - beta2^step).
  T eps;
  T rate;  ///< lr / (1 - beta1^step).

  explicit AdamWFactors(const AdamWStep& o)
      : keep(static_cast<T>(1.0 - o.lr * o.weight_decay)),
        one_minus_beta1(static_cast<T>(1.0 - o.beta1)),
        beta2(static_cast<T>(o.beta2)),
        one_minus_beta2(static_cast<T>(1.0 - o.beta2)),
        sqrt_correction2(static_cast<T>(std::sqrt(1.0 - Power(o.beta2, o.step)))),
        eps(static_cast<T>(o.eps)),
        rate(static_cast<T>(o.lr / (1.0 - Power(o.beta1, o.step)))) {}
};

// Source: I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", ICLR 2019.
template <typename T, typename G>
struct AdamWLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(AdamWFactors<T> f, const G* grad, T* p, T* m, T* v,
                                          int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const T g = ToParameter<T>(grad[i]);
      m[i] += (g - m[i]) * f.one_minus_beta1;
      v[i] = v[i] * f.beta2 + g * g * f.one_minus_beta2;
      // No update where eps and all gradients so far are 0.
      const T root = std::sqrt(v[i]) / f.sqrt_correction2 + f.eps;
      const T update = root == T{0} ? T{0} : m[i] / root;
      p[i] = p[i] * f.keep - f.rate * update;
    }
  }
};

void AdamW(ExecutionContext& context, const AdamWStep& options, const Tensor& grad, Tensor& p,
           Tensor& m, Tensor& v) {
  VisitParameterAndGradient("adamw", p, grad, [&]<typename T, typename G>() {
    const AdamWFactors<T> factors(options);
    const G* gs = grad.data<G>();
    T *ps = OutputData<T>(p), *ms = OutputData<T>(m), *vs = OutputData<T>(v);
    ForTiles(context, p.NumElements(), [&](int64_t begin, int64_t count) {
      RunForIsa<AdamWLoop<T, G>>(factors, gs + begin, ps + begin, ms + begin, vs + begin, count);
    });
  });
}

// ---- SGD ----------------------------------------------------------------------------------------

template <typename T, typename G>
struct SgdLoop {
  static SHARDMESH_ALWAYS_INLINE void Run(T lr, T momentum, T weight_decay, bool first,
                                          const G* grad, T* p, T* buffer, int64_t n) {
    if (buffer == nullptr) {
      for (int64_t i = 0; i < n; ++i) p[i] -= lr * (ToParameter<T>(grad[i]) + weight_decay * p[i]);
      return;
    }
    if (first) {
      for (int64_t i = 0; i < n; ++i) buffer[i] = ToParameter<T>(grad[i]) + weight_decay * p[i];
    } else {
      for (int64_t i = 0; i < n; ++i) {
        buffer[i] = momentum * buffer[i] + (ToParameter<T>(grad[i]) + weight_decay * p[i]);
      }
    }
    for (int64_t i = 0; i < n; ++i) p[i] -= lr * buffer[i];
  }
};

void Sgd(ExecutionContext& context, double lr, double momentum, double weight_decay, bool first,
         const Tensor& grad, Tensor& p, Tensor& buffer) {
  VisitParameterAndGradient("sgd", p, grad, [&]<typename T, typename G>() {
    const G* gs = grad.data<G>();
    T* ps = OutputData<T>(p);
    T* buffers = buffer ? OutputData<T>(buffer) : nullptr;
    ForTiles(context, p.NumElements(), [&](int64_t begin, int64_t count) {
      RunForIsa<SgdLoop<T, G>>(static_cast<T>(lr), static_cast<T>(momentum),
                               static_cast<T>(weight_decay), first, gs + begin, ps + begin,
                               buffers == nullptr ? nullptr : buffers + begin, count);
    });
  });
}

}  // namespace

void FillOptimizerKernels(KernelTable& table) {
  table.adamw = AdamW;
  table.sgd = Sgd;
}

}  // namespace shardmesh
