// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/sampler.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/dtensor/ops.h"
#include "shardmesh/examples/training/counter_hash.h"

namespace shardmesh::examples {
namespace {

/// Logits of the byte after the last `sequence` bytes of `text`. The ids always have length
/// `sequence`, so that layouts are decided once. Ids after the text do not change the result,
/// because attention is causal.
std::vector<double> NextLogits(nn::Module& model, const DeviceMesh& mesh, std::string_view text,
                               int64_t sequence) {
  const auto length = std::min(static_cast<int64_t>(text.size()), sequence);
  std::vector<int64_t> ids(sequence, 0);
  std::transform(text.end() - length, text.end(), ids.begin(),
                 [](char byte) { return static_cast<uint8_t>(byte); });
  const DTensor inputs =
      Distribute(mesh, Tensor::FromValues<int64_t>(mesh.context(), {1, sequence}, ids),
                 std::vector<Placement>(mesh.shape().num_axes(), Replicate()));
  return FullTensor(Slice(model(inputs), /*dim=*/1, length - 1, 1)).ToVector<double>();
}

}  // namespace

int64_t PickIndex(std::span<const double> logits, double temperature, double u) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return largest - logits.begin();
  std::vector<double> sums;
  double sum = 0;
  for (const double logit : logits) {
    sums.push_back(sum += std::exp((logit - *largest) / temperature));
  }
  // u * sum may round to sum itself, which no entry exceeds.
  const auto found = std::upper_bound(sums.begin(), sums.end() - 1, u * sum);
  return found - sums.begin();
}

std::string Sample(nn::Module& model, const DeviceMesh& mesh, std::string_view prompt,
                   const SampleOptions& options, const std::function<bool()>& keep_going) {
  const NoGrad no_grad(mesh);
  const bool was_training = model.training();
  model.Eval();
  std::string text(prompt);
  for (int64_t i = 0; i < options.bytes && keep_going(); ++i) {
    const std::vector<double> logits = NextLogits(model, mesh, text, options.sequence);
    const double u =
        UnitInterval(CounterHash(options.seed, /*a=*/~uint64_t{0}, static_cast<uint64_t>(i)));
    text.push_back(static_cast<char>(PickIndex(logits, options.temperature, u)));
  }
  model.Train(was_training);
  return text.substr(prompt.size());
}

}  // namespace shardmesh::examples
