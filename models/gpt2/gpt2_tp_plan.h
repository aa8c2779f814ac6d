// SPDX-License-Identifier: Apache-2.0
//
// How a models::Gpt2 is split over a tensor-parallel axis.
//
//   tp::Parallelize(model, mesh, "tp", models::Gpt2TpPlan());
#ifndef SHARDMESH_MODELS_GPT2_GPT2_TP_PLAN_H_
#define SHARDMESH_MODELS_GPT2_GPT2_TP_PLAN_H_

#include "shardmesh/tp/parallelize.h"

namespace shardmesh::models {

/// Embedding, tied head and loss are split over the vocabulary, the MLP over its inner dim:
///
///   | module      | weight         | bias |
///   |-------------|----------------|------|
///   | wte         | [v, h] S(0)    | -    |
///   | mlp.c_fc    | [h, n] S(1)    | S(0) |
///   | mlp.c_proj  | [n, h] S(0)    | R    |
///   | mlp.adapter | A R, B S(1)    | -    |
///
/// Attention is replicated. The columns of c_attn are all queries, then all keys, then all values,
/// so a contiguous piece of them is no set of whole heads; a checkpoint of another order would be
/// needed to split it.
///
/// No extent has to be divisible. `adapters` says whether the model has them.
tp::Plan Gpt2TpPlan(bool adapters = false);

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_GPT2_GPT2_TP_PLAN_H_
