// SPDX-License-Identifier: Apache-2.0
//
// (x A) B with a small inner dim: what is trained beside a frozen weight (Hu et al., LoRA: Low-Rank
// Adaptation of Large Language Models).
//
//   models::LowRankAdapter adapter(768, 3072, /*rank=*/8, DType::kF32);
//   DTensor y = c_fc(x) + adapter(x);
#ifndef SHARDMESH_MODELS_GPT2_LOW_RANK_ADAPTER_H_
#define SHARDMESH_MODELS_GPT2_LOW_RANK_ADAPTER_H_

#include <cstdint>

#include "shardmesh/nn/module.h"

namespace shardmesh::models {

/// Parameters: "A" [inputs, rank], initially normal, and "B" [rank, outputs], initially zeros, so
/// that a new adapter changes nothing.
class LowRankAdapter : public nn::Module {
 public:
  LowRankAdapter(int64_t inputs, int64_t outputs, int64_t rank, DType dtype);

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  nn::Parameter a_;
  nn::Parameter b_;
};

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_GPT2_LOW_RANK_ADAPTER_H_
