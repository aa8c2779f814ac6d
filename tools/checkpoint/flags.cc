// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/checkpoint/flags.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "shardmesh/base/quoted.h"
#include "shardmesh/base/status_macros.h"

namespace shardmesh::checkpoint::tool {
namespace {

absl::Status Expected(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what));
}

absl::Status Parse(const std::string& text, bool& value) {
  return absl::SimpleAtob(text, &value) ? absl::OkStatus() : Expected("true or false");
}

absl::Status Parse(const std::string& text, int64_t& value) {
  const bool is_count = absl::SimpleAtoi(text, &value) && value >= 0;
  return is_count ? absl::OkStatus() : Expected("a count below 2^63");
}

absl::Status Parse(const std::string& text, double& value) {
  const bool is_fine = absl::SimpleAtod(text, &value) && std::isfinite(value) && value >= 0;
  return is_fine ? absl::OkStatus() : Expected("a finite number, 0 or more");
}

absl::Status Parse(const std::string& text, std::string& value) {
  value = text;
  return absl::OkStatus();
}

absl::Status Parse(const std::string& text, std::optional<DType>& value) {
  value = DTypeFromName(text);
  const bool is_floating = value && IsFloating(*value);
  return is_floating ? absl::OkStatus() : Expected("f32, f64, bf16 or f16");
}

const Flag* Find(std::span<const Flag> flags, std::string_view name) {
  for (const Flag& flag : flags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseFlags(std::span<const std::string_view> arguments,
                                                    std::span<const Flag> flags) {
  std::vector<std::string> others;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--") {
      for (++i; i < arguments.size(); ++i) others.emplace_back(arguments[i]);
      break;
    }
    if (!argument.starts_with("-") || argument == "-") {
      others.emplace_back(argument);
      continue;
    }
    const std::string_view given = argument.substr(argument.starts_with("--") ? 2 : 1);
    const size_t equals = given.find('=');
    const std::string_view name = given.substr(0, equals);
    std::optional<std::string> value;
    if (equals != given.npos) value = std::string(given.substr(equals + 1));
    const Flag* flag = Find(flags, name);
    if (flag == nullptr && !value && name.starts_with("no")) {
      flag = Find(flags, name.substr(2));
      if (flag != nullptr && !flag->IsBoolean()) flag = nullptr;
      value = "false";
    }
    if (flag == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", Quoted(argument)));
    if (!value && flag->IsBoolean()) value = "true";
    if (!value) {
      if (++i == arguments.size())
        return absl::InvalidArgumentError(absl::StrCat(std::string(argument), " has no value"));
      value = std::string(arguments[i]);
    }
    const absl::Status status =
        std::visit([&](auto* target) { return Parse(*value, *target); }, flag->value);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--", std::string(flag->name), " is ",
                                                     Quoted(*value), "; ", status.message()));
    }
  }
  return others;
}

std::string FlagsHelp(std::span<const Flag> flags) {
  std::string text;
  for (const Flag& flag : flags) {
    std::string form = absl::StrCat("--", std::string(flag.name));
    if (!flag.IsBoolean()) absl::StrAppend(&form, "=", std::string(flag.value_name));
    absl::StrAppendFormat(&text, "    %-24s %s\n", form, std::string(flag.meaning));
  }
  return text;
}

}  // namespace shardmesh::checkpoint::tool
