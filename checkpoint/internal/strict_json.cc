// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/checkpoint/internal/strict_json.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "shardmesh/base/quoted.h"

namespace shardmesh::internal {
namespace {

constexpr size_t kMaxLevels = 32;

/// Tracks the path to the current value. An event that returns false ends the parse with status().
class SaxHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SaxHandler(std::string_view text, JsonVisitor& visitor) : text_(text), visitor_(visitor) {}

  const absl::Status& status() const { return status_; }

  bool null() override { return Scalar({.kind = JsonKind::kNull}); }
  bool boolean(bool) override { return Scalar({.kind = JsonKind::kBool}); }
  // Called for integers written with a minus sign.
  bool number_integer(number_integer_t) override { return Scalar({.kind = JsonKind::kNumber}); }
  bool number_unsigned(number_unsigned_t value) override {
    return Scalar({.kind = JsonKind::kCount, .count = value});
  }
  bool number_float(number_float_t, const string_t&) override {
    return Scalar({.kind = JsonKind::kNumber});
  }
  bool string(string_t& text) override {
    return Scalar({.kind = JsonKind::kString, .text = &text});
  }
  bool binary(binary_t&) override { return Fail("binary value"); }  // Not in JSON text.

  bool start_object(std::size_t) override { return Open({.kind = JsonKind::kObject}); }
  bool start_array(std::size_t) override { return Open({.kind = JsonKind::kArray}); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second) {
      return Fail(absl::StrCat("the key ", Quoted(key), " appears twice in one JSON object"));
    }
    path_.back() = std::move(key);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    const std::string where = absl::StrCat("invalid JSON at byte ", position, LastKey(), ": ");
    for (const std::string_view word : {"Infinity", "NaN"}) {
      if (position == 0 || position > text_.size()) break;
      if (text_.substr(position - 1, word.size()) != word) continue;
      return Fail(absl::StrCat(where, std::string(word), ", expected a finite number"));
    }
    return Fail(where + Quoted(error.what()));
  }

 private:
  bool Fail(const std::string& message) {
    status_ = absl::InvalidArgumentError(message);
    return false;
  }

  /// ", after the key 'a.b'": the path to the value that was read last or is being read.
  std::string LastKey() const {
    std::string keys;
    for (const std::string& key : path_) {
      if (!key.empty()) absl::StrAppend(&keys, keys.empty() ? "" : ".", key);
    }
    return keys.empty() ? "" : absl::StrCat(", after the key ", Quoted(keys, /*max_chars=*/100));
  }

  bool Scalar(const JsonValue& value) {
    status_ = visitor_.OnValue(path_, value);
    return status_.ok();
  }

  bool Open(const JsonValue& value) {
    if (path_.size() >= kMaxLevels) {
      return Fail(absl::StrCat("JSON nested more than ", kMaxLevels, " levels deep"));
    }
    if (!Scalar(value)) return false;
    path_.emplace_back();
    keys_.emplace_back();
    return true;
  }

  bool Close() {
    path_.pop_back();
    keys_.pop_back();
    status_ = visitor_.OnEnd(path_);
    return status_.ok();
  }

  const std::string_view text_;
  JsonVisitor& visitor_;
  absl::Status status_;
  std::vector<std::string> path_;                       // Per level: the key of the current value.
  std::vector<absl::flat_hash_set<std::string>> keys_;  // Per level: the keys so far.
};

}  // namespace

std::string_view Describe(JsonKind kind) {
  switch (kind) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kBool:
      return "a boolean";
    case JsonKind::kCount:
      return "a non-negative integer";
    case JsonKind::kNumber:
      return "a number that is not an integer from 0 to 2^64 - 1";
    case JsonKind::kString:
      return "a string";
    case JsonKind::kArray:
      return "an array";
    case JsonKind::kObject:
      return "an object";
  }
  return "?";
}

absl::Status ParseStrictJson(std::string_view text, JsonVisitor& visitor) {
  if (const size_t nul = text.find('\0'); nul != text.npos) {
    return absl::InvalidArgumentError(absl::StrCat("invalid JSON: NUL at byte ", nul));
  }
  SaxHandler handler(text, visitor);
  try {
    const bool complete = nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
    if (complete || !handler.status().ok()) return handler.status();
    return absl::InvalidArgumentError("invalid JSON");
  } catch (const std::exception& error) {  // Unexpected: the parser reports errors to the handler.
    return absl::InvalidArgumentError(absl::StrCat("invalid JSON: ", Quoted(error.what())));
  }
}

}  // namespace shardmesh::internal
