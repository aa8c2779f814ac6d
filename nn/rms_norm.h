// SPDX-License-Identifier: Apache-2.0
//
// y = x / sqrt(mean(x^2) + eps) * weight, over the last dim.
#ifndef SHARDMESH_NN_RMS_NORM_H_
#define SHARDMESH_NN_RMS_NORM_H_

#include <cstdint>

#include "shardmesh/nn/module.h"

namespace shardmesh::nn {

/// Parameter: "weight" [features], initially ones.
class RmsNorm : public Module {
 public:
  explicit RmsNorm(int64_t features, double eps = 1e-6, DType dtype = DType::kF32);

 protected:
  Outputs Forward(const Inputs& inputs) override;

 private:
  Parameter weight_;
  double eps_;
};

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_RMS_NORM_H_
