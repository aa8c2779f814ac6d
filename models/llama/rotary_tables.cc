// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/llama/rotary_tables.h"

#include <algorithm>
#include <numbers>

#include "shardmesh/tensor/elementary.h"

namespace shardmesh::models {
namespace {

double Scaled(double frequency, const RopeConfig& rope) {
  if (rope.type == RopeConfig::Type::kDefault) return frequency;
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double old = static_cast<double>(rope.original_max_position_embeddings);
  const double smooth = std::clamp(
      (old / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor),
      0.0, 1.0);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

template <typename T>
RotaryTables::CosSin Compute(ExecutionContext& context, int64_t length,
                             const std::vector<double>& frequencies) {
  std::vector<T> cos, sin;
  const int64_t pairs = static_cast<int64_t>(frequencies.size());
  cos.reserve(length * pairs);
  sin.reserve(length * pairs);
  for (int64_t position = 0; position < length; ++position) {
    for (double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      cos.push_back(static_cast<T>(elementary::Cos(angle)));
      sin.push_back(static_cast<T>(elementary::Sin(angle)));
    }
  }
  return {Tensor::FromValues<T>(context, {length, pairs}, cos),
          Tensor::FromValues<T>(context, {length, pairs}, sin)};
}

}  // namespace

RotaryTables::RotaryTables(int64_t head_dim, const RopeConfig& rope) {
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(head_dim);
    frequencies_.push_back(Scaled(1 / elementary::Power(rope.theta, exponent), rope));
  }
}

RotaryTables::CosSin RotaryTables::Get(ExecutionContext& context, int64_t length, DType compute) {
  CosSin& tables = compute == DType::kF64 ? f64_ : f32_;
  const int64_t held = tables.cos ? tables.cos.dim(0) : -1;
  if (held < length) {
    // At least doubled, so that a text that grows token by token rarely recomputes them.
    const int64_t grown = std::max(length, 2 * held);
    tables = compute == DType::kF64 ? Compute<double>(context, grown, frequencies_)
                                    : Compute<float>(context, grown, frequencies_);
  }
  return {tables.cos.Narrow(0, 0, length), tables.sin.Narrow(0, 0, length)};
}

}  // namespace shardmesh::models
