// SPDX-License-Identifier: Apache-2.0
//
// Parses untrusted JSON as a stream of values: only what the visitor keeps takes memory, and the
// parse stops at the first value that the visitor refuses. Stricter than the underlying parser
// (nlohmann's), which keeps the last of two equal keys, stops at a NUL byte, and has no limit on
// nesting.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_STRICT_JSON_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_STRICT_JSON_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace shardmesh::internal {

enum class JsonKind : uint8_t {
  kNull,
  kBool,
  kCount,   ///< An integer from 0 to 2^64 - 1, written without sign, fraction or exponent.
  kNumber,  ///< Any other number.
  kString,
  kArray,
  kObject,
};

/// "null", "a boolean", "a string", ...
std::string_view Describe(JsonKind kind);

/// One value. For an array or object it stands for the opening bracket; the items follow.
struct JsonValue {
  JsonKind kind = JsonKind::kNull;
  uint64_t count = 0;           ///< If kind is kCount.
  std::string* text = nullptr;  ///< If kind is kString; the visitor may move from it.
};

/// Receives the values in the order of the text. An error that it returns ends the parse.
class JsonVisitor {
 public:
  /// The keys from the root to a value, none for the root itself. An item of an array has the key
  /// "".
  using Path = std::span<const std::string>;

  virtual ~JsonVisitor() = default;
  virtual absl::Status OnValue(Path path, const JsonValue& value) = 0;
  /// The closing bracket of the array or object at `path`.
  virtual absl::Status OnEnd(Path path) = 0;
};

/// Errors: kInvalidArgument if `text` is not exactly one JSON value (RFC 8259, UTF-8), has equal
/// keys in one object or more than 32 levels; else the first error of the visitor. Messages name
/// the byte and the key before it, not the file.
absl::Status ParseStrictJson(std::string_view text, JsonVisitor& visitor);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_STRICT_JSON_H_
