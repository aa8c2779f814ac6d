// SPDX-License-Identifier: Apache-2.0
//
// A table of vectors, one per index.
//
//   nn::Embedding embed(/*rows=*/256, /*features=*/64);
//   DTensor x = embed(ids);   // ids i64 [..] -> x [.., 64]
#ifndef SHARDMESH_NN_EMBEDDING_H_
#define SHARDMESH_NN_EMBEDDING_H_

#include <cstdint>

#include "shardmesh/nn/module.h"

namespace shardmesh::nn {

/// Parameter: "weight" [rows, features].
class Embedding : public Module {
 public:
  Embedding(int64_t rows, int64_t features, DType dtype = DType::kF32,
            Init init = Init::Normal(0, 0.02));

  const Parameter& weight() const { return weight_; }

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  Parameter weight_;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_EMBEDDING_H_
