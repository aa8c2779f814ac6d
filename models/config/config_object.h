// SPDX-License-Identifier: Apache-2.0
//
// One JSON object of a config.json, read field by field. A field that is neither read nor known to
// be harmless is refused: it may change what the model computes.
//
//   SHARDMESH_ASSIGN_OR_RETURN(ConfigObject object, ConfigObject::Parse(text, "config.json"));
//   object.Require("vocab_size");
//   object.Read("vocab_size", config.vocab_size);
//   object.Only("hidden_act", "silu");
//   object.PassCommonFields();
//   SHARDMESH_RETURN_IF_ERROR(object.Finish("a Llama"));
#ifndef SHARDMESH_MODELS_CONFIG_CONFIG_OBJECT_H_
#define SHARDMESH_MODELS_CONFIG_CONFIG_OBJECT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::models {

/// Keeps the first error, which names the source and the field. A field that is null counts as
/// absent.
class ConfigObject {
 public:
  /// Errors: kInvalidArgument naming `source`, for text that is not one strict JSON object (equal
  /// keys in one object, more than 32 levels, numbers that are not finite) or longer than 16 MiB.
  static absl::StatusOr<ConfigObject> Parse(std::string_view text, std::string_view source);

  const absl::Status& status() const { return status_; }

  /// The value, or null if the field is absent. The field counts as read.
  const nlohmann::json* Find(const char* name);
  /// The object in a field, which counts as read; an empty one if the field is absent.
  ConfigObject Child(const char* name);

  /// Fails with kInvalidArgument if the field is absent.
  void Require(const char* name);
  /// Fail with kInvalidArgument if the field is of another type or, for an integer, above 2^31 - 1;
  /// leave `out` as it is if the field is absent.
  void Read(const char* name, int64_t& out);
  void Read(const char* name, double& out);
  void Read(const char* name, bool& out);
  void Read(const char* name, std::string& out);
  template <typename T>
  void Read(const char* name, std::optional<T>& out) {
    T value = T();
    Read(name, value);
    if (Find(name) != nullptr) out = std::move(value);
  }
  /// For a field with one value that is computed: fails with kUnimplemented on any other, with
  /// kInvalidArgument on one of another type. Null is another value where true is expected, as
  /// Python takes it for false.
  void Only(const char* name, const nlohmann::json& value);

  /// Passes over the fields of all models that do not change what is computed, and checks those
  /// with one value (the tables in config_object.cc, also in docs/checkpoint_format.md).
  void PassCommonFields();
  /// The names that PassCommonFields passes over.
  static std::set<std::string> HarmlessFields();

  void Fail(absl::StatusCode code, const std::string& what);
  void Fail(const std::string& what) { Fail(absl::StatusCode::kInvalidArgument, what); }
  /// "name is value, expected ...".
  void Refuse(const char* name, const nlohmann::json& value, const std::string& expected);

  /// The first error; else kInvalidArgument listing the fields that nothing has asked for. `model`
  /// says what has no such fields: "a Llama".
  absl::Status Finish(const std::string& model);

  /// `value` as JSON in ASCII, its end left out if it is long.
  static std::string Shown(const nlohmann::json& value);

 private:
  ConfigObject(nlohmann::json object, std::string where)
      : object_(std::move(object)), where_(std::move(where)) {}

  nlohmann::json object_;
  std::string where_;  ///< Begins each message.
  std::set<std::string, std::less<>> known_;
  absl::Status status_;
};

/// The text of a configuration file. Errors: those of RegularFile, naming `path`.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path);

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_CONFIG_CONFIG_OBJECT_H_
