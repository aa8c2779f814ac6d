// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/embedding.h"

#include "shardmesh/dtensor/ops.h"

namespace shardmesh::nn {

Embedding::Embedding(int64_t rows, int64_t features, DType dtype, Init init)
    : weight_(RegisterParameter("weight", {rows, features}, dtype, init)) {}

Outputs Embedding::Forward(const Inputs& inputs) {
  return shardmesh::Embedding(inputs[0], weight_.active());
}

}  // namespace shardmesh::nn
