// SPDX-License-Identifier: Apache-2.0
//
// The checkpoints of a run, each in a directory "step-<number>" (CheckpointManager).
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_STEP_DIRECTORIES_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_STEP_DIRECTORIES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardmesh::checkpoint::internal {

inline constexpr std::string_view kStepPrefix = "step-";

/// 100 of "step-100"; nothing of "step-0100", "step--1" and other names.
std::optional<int64_t> StepOf(std::string_view name);

/// Whether the directory has an index and all files of it, in full length.
bool IsWhole(const std::string& path);

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_STEP_DIRECTORIES_H_
