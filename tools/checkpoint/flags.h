// SPDX-License-Identifier: Apache-2.0
//
// The arguments of a subcommand: paths, and flags in any order between them.
//
//   bool pieces = false;
//   const Flag flags[] = {{"pieces", &pieces, "", "show each piece"}};
//   absl::StatusOr<std::vector<std::string>> paths = ParseFlags(arguments, flags);
#ifndef SHARDMESH_TOOLS_CHECKPOINT_FLAGS_H_
#define SHARDMESH_TOOLS_CHECKPOINT_FLAGS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "shardmesh/tensor/dtype.h"

namespace shardmesh::checkpoint::tool {

struct Flag {
  std::string_view name;
  std::variant<bool*, double*, int64_t*, std::string*, std::optional<DType>*> value;
  std::string_view value_name;  ///< Of a flag that is no bool: "PATTERN".
  std::string_view meaning;

  bool IsBoolean() const { return std::holds_alternative<bool*>(value); }
};

/// Sets what the flags refer to and returns the other arguments. A flag is --name=value or
/// --name value, a bool --name or --noname; after "--" nothing is a flag. Numbers are not negative.
/// Errors: kInvalidArgument naming the argument.
absl::StatusOr<std::vector<std::string>> ParseFlags(std::span<const std::string_view> arguments,
                                                    std::span<const Flag> flags);

/// A line for each flag.
std::string FlagsHelp(std::span<const Flag> flags);

}  // namespace shardmesh::checkpoint::tool

#endif  // SHARDMESH_TOOLS_CHECKPOINT_FLAGS_H_
