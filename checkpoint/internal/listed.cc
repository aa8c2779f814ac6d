// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/listed.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace shardmesh::internal {

std::string Listed(std::vector<std::string> items) {
  constexpr size_t kMaxShown = 8;
  constexpr size_t kMaxChars = 300;
  std::sort(items.begin(), items.end());
  std::string text;
  size_t shown = 0;
  while (shown < std::min(items.size(), kMaxShown) && text.size() < kMaxChars) {
    absl::StrAppend(&text, shown == 0 ? ": " : ", ", items[shown]);
    ++shown;
  }
  if (shown < items.size()) absl::StrAppend(&text, " and ", items.size() - shown, " more");
  return text;
}

}  // namespace shardmesh::internal
