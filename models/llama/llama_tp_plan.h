// SPDX-License-Identifier: Apache-2.0
//
// How a models::Llama is split over a tensor-parallel axis.
//
//   tp::Parallelize(model, mesh, "tp", models::LlamaTpPlan());
#ifndef SHARDMESH_MODELS_LLAMA_LLAMA_TP_PLAN_H_
#define SHARDMESH_MODELS_LLAMA_LLAMA_TP_PLAN_H_

#include "shardmesh/tp/parallelize.h"

namespace shardmesh::models {

/// Embedding, head and loss are split over the vocabulary, attention over heads, the MLP over its
/// inner dim. Collectives along the axis on tensors of batch x sequence x hidden (AR: all-reduce,
/// AG: all-gather, RS: reduce-scatter):
///
///   |               | forward | backward | sequence-parallel: forward | backward     |
///   |---------------|---------|----------|----------------------------|--------------|
///   | a block       | 2 AR    | 2 AR     | 2 AG and 2 RS              | 2 AG and 2 RS|
///   | the embedding | 1 AR    | -        | 1 RS                       | 1 AG         |
///   | the head      | -       | 1 AR     | 1 AG                       | 1 RS         |
///
/// With sequence parallelism, activations between attention and MLP are sharded over dim 1, and the
/// gradient of each norm weight needs an all-reduce of its own size. The loss communicates a few
/// numbers per row (dtensor/ops.h). The axis size must divide both the attention heads and the
/// key-value heads; no other extent has to be divisible.
tp::Plan LlamaTpPlan(bool sequence_parallel = false);

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_LLAMA_LLAMA_TP_PLAN_H_
