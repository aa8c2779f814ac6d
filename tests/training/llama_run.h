// SPDX-License-Identifier: Apache-2.0
//
// Trains a Llama on a mesh of ranks in this process and records everything that must not depend on
// the mesh.
#ifndef SHARDMESH_TESTS_TRAINING_LLAMA_RUN_H_
#define SHARDMESH_TESTS_TRAINING_LLAMA_RUN_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/mesh/mesh_shape.h"
#include "shardmesh/models/llama/llama.h"
#include "shardmesh/models/llama/llama_config.h"

namespace shardmesh::testing {

/// One global batch: ids and targets, row-major [rows, length].
struct TokenBatch {
  int64_t rows = 0;
  int64_t length = 0;
  std::vector<int64_t> ids;
  std::vector<int64_t> targets;
};

struct LlamaRunOptions {
  models::LlamaConfig config;
  MeshShape mesh;  ///< Axes of dp_replicate, dp and tp; batches are sharded over the first two.
  DType dtype = DType::kF32;
  bool bf16 = false;  ///< Gather and compute in bf16.
  bool sequence_parallel = false;
  int steps = 1;
  std::function<TokenBatch(int step)> batch;
  std::function<double(int step)> lr;
  double beta1 = 0.9, beta2 = 0.95, weight_decay = 0.1;
  double max_norm = 1.0;
  uint64_t seed = 1;
  bool synchronous = false;  ///< RunOptions::synchronous.
  std::string weights;       ///< A safetensors file or directory; empty: random.
  /// Called on every rank at the end of every step.
  std::function<void(const DeviceMesh& mesh, models::Llama& model, int step)> after_step;
};

using NamedValues = std::map<std::string, std::vector<double>>;

struct LlamaRun {
  std::vector<double> losses, grad_norms;
  NamedValues initial, final;  ///< Full tensors by parameter name.
  NamedValues gradients;       ///< Of step 0, before clipping.
  std::vector<double> logits;  ///< Of step 0.
};

/// Runs `options.steps` steps. Every rank records; a rank whose record differs from rank 0's in a
/// bit is an error.
absl::StatusOr<LlamaRun> RunLlama(const LlamaRunOptions& options);

/// Applies tensor parallelism (if the mesh has an axis tp) and FullyShard to every block and the
/// root.
void ParallelizeLlama(models::Llama& model, const DeviceMesh& mesh, const LlamaRunOptions& options);

/// A token tensor whose rows are sharded over the data-parallel axes of `mesh`.
DTensor ShardedTokens(const DeviceMesh& mesh, int64_t rows, int64_t length,
                      const std::vector<int64_t>& values);

/// Runs of a Llama of three layers with uneven extents, four query heads on two key heads.
LlamaRunOptions ThreeLayers(const MeshShape& mesh, int64_t vocab_size);

/// Ids (i * stride + 5) % vocab_size.
std::vector<int64_t> StridedIds(int64_t count, int64_t stride, int64_t vocab_size);

/// Largest difference over the largest magnitude of `expected`.
double RelativeError(const std::vector<double>& actual, const std::vector<double>& expected);

}  // namespace shardmesh::testing

#endif  // SHARDMESH_TESTS_TRAINING_LLAMA_RUN_H_
