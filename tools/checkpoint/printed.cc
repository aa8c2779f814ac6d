// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/printed.h"

#include <algorithm>
#include <charconv>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "shardmesh/base/quoted.h"

namespace shardmesh::checkpoint::tool {
namespace {

constexpr size_t kMaxNameChars = 200;
constexpr size_t kMaxTextChars = 60;
constexpr size_t kMaxItems = 8;

}  // namespace

std::string PrintedName(std::string_view name) {
  const bool is_plain = !name.empty() && name.size() <= kMaxNameChars &&
                        std::all_of(name.begin(), name.end(),
                                    [](char c) { return c > ' ' && c <= '~' && c != '\''; });
  return is_plain ? std::string(name) : Quoted(name, kMaxNameChars);
}

std::string PrintedBytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  auto value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return absl::StrFormat("%.1f %s", value, unit);
}

std::string PrintedCount(int64_t count, std::string_view noun) {
  return absl::StrCat(count, " ", std::string(noun), count == 1 ? "" : "s");
}

std::string PrintedValue(const StateValue& value) {
  struct Visit {
    std::string operator()(int64_t v) const { return absl::StrCat(v); }
    std::string operator()(double v) const {
      char text[64];
      return std::string(text, std::to_chars(text, text + sizeof(text), v).ptr);
    }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(const std::string& v) const { return Quoted(v, kMaxTextChars); }
    std::string operator()(const StateList& v) const {
      std::string text = "[";
      for (size_t i = 0; i < v.items.size() && i < kMaxItems; ++i)
        absl::StrAppend(&text, i == 0 ? "" : ", ", PrintedValue(v.items[i]));
      if (v.items.size() > kMaxItems) absl::StrAppend(&text, ", ... ", v.items.size(), " items");
      return text + "]";
    }
    std::string operator()(const Tensor&) const { return "tensor"; }
    std::string operator()(const DTensor&) const { return "tensor"; }
    std::string operator()(const UnsetTensor&) const { return "tensor"; }
  };
  return std::visit(Visit(), value);
}

}  // namespace shardmesh::checkpoint::tool
