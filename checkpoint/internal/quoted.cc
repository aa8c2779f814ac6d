// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/quoted.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shardmesh::internal {
namespace {

std::string Escaped(std::string_view text) {
  return absl::CHexEscape(absl::string_view(text.data(), text.size()));
}

}  // namespace

std::string Quoted(std::string_view text) {
  constexpr size_t kLongest = 200;
  constexpr size_t kEnds = 80;
  if (text.size() <= kLongest) return absl::StrCat("'", Escaped(text), "'");
  return absl::StrCat("'", Escaped(text.substr(0, kEnds)), "...",
                      Escaped(text.substr(text.size() - kEnds)), "' (", text.size(), " bytes)");
}

}  // namespace shardmesh::internal
