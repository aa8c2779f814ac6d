// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDMESH_TOOLS_CHECKPOINT_CONVERT_H_
#define SHARDMESH_TOOLS_CHECKPOINT_CONVERT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "shardmesh/checkpoint/file_system.h"
#include "shardmesh/tensor/dtype.h"
#include "shardmesh/tools/checkpoint/console.h"

namespace shardmesh::checkpoint::tool {

struct ConvertOptions {
  /// "huggingface", "shardmesh", or nothing: what the source is not.
  std::string to = {};
  std::optional<DType> dtype = {};  ///< Of all floating-point tensors.
  std::string names = {};           ///< NameFilter of tensors and plain values.
  std::string strip_prefix = {};    ///< Taken from names that begin with it, before add_prefix.
  std::string add_prefix = {};
  /// A file ends before the tensor with which it would be larger. At least one tensor a file.
  int64_t max_file_bytes = 5'000'000'000;
  std::string config = {};  ///< A file to copy to config.json.
  bool overwrite = false;   ///< Replace a checkpoint that is there, in one step.
  /// Compare the source's checksums first: what is written gets new ones.
  bool verify = true;
  bool sync = true;  ///< As SaveOptions::sync.
  bool progress = false;
  int64_t buffer_bytes = 4 << 20;
  FileSystem* files = nullptr;  ///< To write with; default: SystemFiles().
};

/// Writes `to` as a checkpoint of whole tensors, by name: Hugging Face's as ExportHuggingFace
/// writes it, a tied tensor under its first name and without plain values; Shardmesh's with
/// checksums, aliases and plain values. The directory is there once it is whole, or not at all.
///
/// Errors: kAlreadyExists; kInvalidArgument if `to` and `from` are in one another, or what
///         `overwrite` would replace is no checkpoint; kNotFound if no name matches;
///         kUnimplemented naming a tensor of a dtype that Shardmesh does not compute with;
///         kOutOfRange naming an element that `dtype` would make infinite; kDataLoss naming file
///         and tensor; the system's.
absl::Status Convert(const std::string& from, const std::string& to, const ConvertOptions& options,
                     Console& console);

}  // namespace shardmesh::checkpoint::tool

#endif  // SHARDMESH_TOOLS_CHECKPOINT_CONVERT_H_
