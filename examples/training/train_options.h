// SPDX-License-Identifier: Apache-2.0
//
// The options of a training run. Benchmarks compare runs with the defaults.
#ifndef SHARDMESH_EXAMPLES_TRAINING_TRAIN_OPTIONS_H_
#define SHARDMESH_EXAMPLES_TRAINING_TRAIN_OPTIONS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shardmesh/mesh/mesh_shape.h"
#include "shardmesh/models/llama/llama_config.h"
#include "shardmesh/optim/adamw.h"

namespace shardmesh::examples {

enum class Precision {
  kF32,
  kF64,   ///< Everything in f64, to see what rounding does.
  kBF16,  ///< Gathered weights and activations in bf16; shards, loss and reduction in f32.
};

/// "f32", "f64" or "bf16".
/// Errors: kInvalidArgument for any other text; the message says what was expected alone.
absl::StatusOr<Precision> ParsePrecision(std::string_view text);
/// The inverse of ParsePrecision.
std::string UnparsePrecision(Precision precision);

struct TrainOptions {
  MeshShape mesh = {{"dp", 2}, {"tp", 2}};
  models::LlamaConfig model = {.vocab_size = 256,
                               .hidden_size = 128,
                               .intermediate_size = 384,
                               .num_hidden_layers = 4,
                               .num_attention_heads = 4,
                               .num_key_value_heads = 2};
  int64_t steps = 100;
  int64_t batch = 16;  ///< Rows of the global batch.
  int64_t sequence = 128;
  /// `lr` is the peak; the schedule sets it.
  optim::AdamWOptions optimizer = {.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1};
  int64_t warmup_steps = 10;
  double min_lr_ratio = 0.1;
  double max_grad_norm = 1.0;
  Precision precision = Precision::kF32;
  bool sequence_parallel = false;
  bool explicit_moves = false;  ///< Steps run under ReshardPolicy::kExplicit.
  uint64_t seed = 1;            ///< Of initial values, windows of text and the sample.
  int64_t sample_bytes = 300;
  double temperature = 0.7;  ///< Of the sample; 0 takes the likeliest byte.

  /// Also checks that no number of elements of the model, or of one step's activations, overflows.
  /// Errors: kInvalidArgument, one line that names the option as train_llama's flag does, its value
  /// and what was expected.
  absl::Status Validate() const;
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_TRAIN_OPTIONS_H_
