// SPDX-License-Identifier: Apache-2.0
//
// y = x W + b, as Hugging Face's GPT-2 stores it: weight [inputs, outputs], the transpose of a
// Linear's.
//
//   models::Conv1d c_fc(768, 3072, DType::kF32, nn::Init::Normal(0, 0.02));
//   DTensor y = c_fc(x);      // x [.., 768] -> y [.., 3072]
#ifndef SHARDMESH_MODELS_GPT2_CONV1D_H_
#define SHARDMESH_MODELS_GPT2_CONV1D_H_

#include <cstdint>

#include "shardmesh/nn/module.h"

namespace shardmesh::models {

/// Parameters: "weight" [inputs, outputs] and "bias" [outputs], initially zeros.
class Conv1d : public nn::Module {
 public:
  Conv1d(int64_t inputs, int64_t outputs, DType dtype, nn::Init weight_init);

  int64_t inputs() const { return weight_.shape()[0]; }
  int64_t outputs() const { return weight_.shape()[1]; }

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  nn::Parameter weight_;
  nn::Parameter bias_;
};

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_GPT2_CONV1D_H_
