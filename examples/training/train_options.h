// SPDX-License-Identifier: Apache-2.0
//
// What a training run does. The defaults are the work that runs are compared on.
#ifndef SHARDMESH_EXAMPLES_TRAINING_TRAIN_OPTIONS_H_
#define SHARDMESH_EXAMPLES_TRAINING_TRAIN_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "shardmesh/mesh/mesh_shape.h"
#include "shardmesh/nn/llama_config.h"
#include "shardmesh/optim/adamw.h"

namespace shardmesh::examples {

enum class Precision {
  kF32,
  kF64,   ///< Everything in f64, to see what rounding does.
  kBF16,  ///< Gathered weights and activations in bf16; shards, loss and reduction in f32.
};

/// "f32", "f64", "bf16": type of the flag --precision.
bool AbslParseFlag(absl::string_view text, Precision* precision, std::string* error);
std::string AbslUnparseFlag(Precision precision);

struct TrainOptions {
  MeshShape mesh = {{"dp", 2}, {"tp", 2}};
  nn::LlamaConfig model = {.vocab_size = 256,
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
  uint64_t seed = 1;  ///< Of initial values, windows of text and the sample.
  int64_t sample_bytes = 300;
  double temperature = 0.7;  ///< Of the sample; 0 takes the likeliest byte.

  /// Errors: kInvalidArgument, one line that names the option, its value and what was expected.
  absl::Status Validate() const;
};

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_TRAIN_OPTIONS_H_
