// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/index_runs.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh {
namespace {

using internal::kGap;

constexpr Op kPad{"pad"};

// Which index of an extent of n stands `i` places after its first element.
int64_t SourceOf(PadMode mode, int64_t i, int64_t n) {
  if (i >= 0 && i < n) return i;
  switch (mode) {
    case PadMode::kConstant:
      return kGap;
    case PadMode::kReflect:
      return i < 0 ? -i : 2 * (n - 1) - i;
    case PadMode::kReplicate:
      return std::clamp<int64_t>(i, 0, n - 1);
    case PadMode::kCircular:
      return i < 0 ? i + n : i - n;
  }
  return kGap;
}

// The largest pad of an extent of n.
int64_t LargestPad(PadMode mode, int64_t n, int64_t otherwise) {
  switch (mode) {
    case PadMode::kConstant:
      return otherwise;
    case PadMode::kReflect:
      return n - 1;
    case PadMode::kReplicate:
      return n == 0 ? 0 : otherwise;
    case PadMode::kCircular:
      return n;
  }
  return otherwise;
}

}  // namespace

DTensor Pad(const DTensor& x, const std::vector<int64_t>& pads, PadMode mode, double value) {
  internal::CheckUsable(kPad.name, x);
  const int count = static_cast<int>(pads.size() / 2);
  if (pads.size() % 2 != 0 || count > x.num_dims()) {
    ThrowInvalid(kPad.name, ": ", pads.size(), " pads, expected two for each dim, for at most the ",
                 "dims of ", x.ToString());
  }
  DTensor y = x;
  for (int i = 0; i < count; ++i) {
    const int dim = x.num_dims() - 1 - i;
    const int64_t n = x.shape()[dim], before = pads[2 * i], after = pads[2 * i + 1];
    if (before == 0 && after == 0) continue;
    const int64_t largest = LargestPad(mode, n, std::max(before, after));
    if (before < -n || after < -n || n + before + after < 0 || std::max(before, after) > largest) {
      ThrowInvalid(kPad.name, ": pads ", before, " and ", after, " do not fit dim ", dim, " of ",
                   x.ToString(), mode == PadMode::kConstant ? "" : " in this mode");
    }
    std::vector<int64_t> map(n + before + after);
    for (size_t k = 0; k < map.size(); ++k)
      map[k] = SourceOf(mode, static_cast<int64_t>(k) - before, n);
    y = internal::TakeRuns(kPad, y, dim, internal::RunsOf(map), static_cast<int64_t>(map.size()),
                           mode == PadMode::kConstant ? value : 0);
  }
  return y;
}

}  // namespace shardmesh
