// SPDX-License-Identifier: Apache-2.0
//
// JSON from outside, as a stream of values: nothing is built from it but what the visitor keeps,
// and the parse stops at the first value that the visitor refuses. Stricter than the parser
// underneath (nlohmann's), which keeps the last of two equal keys, ends at a NUL byte, and nests
// without limit.
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

/// One value. Of an array or object it is the opening bracket: what is inside follows.
struct JsonValue {
  JsonKind kind = JsonKind::kNull;
  uint64_t count = 0;           ///< Of a kCount.
  std::string* text = nullptr;  ///< Of a kString; may be moved from.
};

/// Receives the values in the order of the text.
class JsonVisitor {
 public:
  /// The keys that lead from the root to a value; an item of an array has the key "". Empty for the
  /// root.
  using Path = std::span<const std::string>;

  virtual ~JsonVisitor() = default;
  virtual absl::Status OnValue(Path path, const JsonValue& value) = 0;
  /// The closing bracket of the array or object at `path`.
  virtual absl::Status OnEnd(Path path) = 0;
};

/// Errors: kInvalidArgument for text that is not one JSON value (RFC 8259, UTF-8), equal keys in
/// one object, or more than 32 levels; else the first error of the visitor. Messages do not name
/// the file.
absl::Status ParseStrictJson(std::string_view text, JsonVisitor& visitor);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_STRICT_JSON_H_
