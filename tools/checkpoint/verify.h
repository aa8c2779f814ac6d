// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDMESH_TOOLS_CHECKPOINT_VERIFY_H_
#define SHARDMESH_TOOLS_CHECKPOINT_VERIFY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "shardmesh/tools/checkpoint/console.h"

namespace shardmesh::checkpoint::tool {

struct VerifyOptions {
  bool progress = false;
};

/// Reads every byte of a checkpoint and prints each fault: a file that is missing, of another
/// length or no safetensors file, a header or a box whose checksum is another, boxes that do not
/// cover their tensor once. Where there are no checksums, the rest is checked.
///
/// Returns the number of faults. Errors: those of Locate.
absl::StatusOr<int64_t> VerifyAll(const std::string& path, const VerifyOptions& options,
                                  Console& console);

}  // namespace shardmesh::checkpoint::tool

#endif  // SHARDMESH_TOOLS_CHECKPOINT_VERIFY_H_
