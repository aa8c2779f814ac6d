// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/models/gpt2/low_rank_adapter.h"

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh::models {

LowRankAdapter::LowRankAdapter(int64_t inputs, int64_t outputs, int64_t rank, DType dtype) {
  if (rank < 1) ThrowInvalid("LowRankAdapter: rank ", rank, ", expected 1 or more");
  a_ = RegisterParameter("A", {inputs, rank}, dtype, nn::Init::Normal(0, 0.02));
  b_ = RegisterParameter("B", {rank, outputs}, dtype, nn::Init::Constant(0));
}

nn::Outputs LowRankAdapter::Forward(const Inputs& inputs) {
  return MatMul(MatMul(inputs[0], a_.active()), b_.active());
}

}  // namespace shardmesh::models
