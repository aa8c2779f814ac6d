// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/linear.h"

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh::nn {
namespace {

void CheckHeads(const char* what, int64_t features, int64_t heads) {
  if (heads < 0 || (heads > 0 && features % heads != 0)) {
    ThrowInvalid("Linear: ", heads, " heads do not divide ", features, " ", what);
  }
}

}  // namespace

Linear::Linear(int64_t inputs, int64_t outputs, const LinearOptions& options)
    : Linear(Parameter({outputs, inputs}, options.dtype, options.weight_init), options) {}

Linear::Linear(const Parameter& weight, const LinearOptions& options)
    : options_(options), weight_(weight) {
  if (weight.shape().size() != 2 || weight.dtype() != options.dtype) {
    ThrowInvalid("Linear: the weight is a matrix of dtype ", std::string(Name(options.dtype)),
                 ", not ", weight.ToString());
  }
  CheckHeads("outputs", outputs(), options.output_heads);
  CheckHeads("inputs", inputs(), options.input_heads);
  RegisterParameter("weight", weight_);
  if (options.bias) {
    bias_ = RegisterParameter("bias", {outputs()}, options.dtype, Init::Constant(0));
  }
}

Outputs Linear::Forward(const Inputs& inputs) {
  return shardmesh::Linear(inputs[0], weight_.active(), bias_ ? bias_.active() : DTensor());
}

std::string Linear::Describe() const {
  return absl::StrCat("Linear(", inputs(), " -> ", outputs(), ")");
}

}  // namespace shardmesh::nn
