// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/quoted.h"

#include "absl/strings/str_cat.h"

namespace shardmesh {
namespace {

std::string Escaped(char c) {
  switch (c) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\\':
    case '\'':
      return {'\\', c};
    default:
      break;
  }
  if (c >= ' ' && c <= '~') return {c};
  const auto byte = static_cast<unsigned char>(c);
  constexpr char kDigits[] = "0123456789abcdef";
  return {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
}

/// The longest beginning of `text` that takes at most `max_chars` characters. Sets `count` to its
/// length in bytes.
std::string Beginning(std::string_view text, size_t max_chars, size_t& count) {
  std::string escaped;
  for (count = 0; count < text.size(); ++count) {
    const std::string next = Escaped(text[count]);
    if (escaped.size() + next.size() > max_chars) break;
    escaped += next;
  }
  return escaped;
}

/// The longest end of `text` that takes at most `max_chars` characters.
std::string End(std::string_view text, size_t max_chars) {
  std::string escaped;
  for (size_t i = text.size(); i > 0; --i) {
    const std::string next = Escaped(text[i - 1]);
    if (escaped.size() + next.size() > max_chars) break;
    escaped.insert(0, next);
  }
  return escaped;
}

}  // namespace

std::string Quoted(std::string_view text, size_t max_chars) {
  size_t count;
  const std::string whole = Beginning(text, max_chars, count);
  if (count == text.size()) return absl::StrCat("'", whole, "'");
  return absl::StrCat("'", Beginning(text, max_chars / 2, count), "...", End(text, max_chars / 2),
                      "' (", text.size(), " bytes)");
}

}  // namespace shardmesh
