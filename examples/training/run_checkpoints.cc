// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/examples/training/run_checkpoints.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/status_macros.h"
#include "shardmesh/checkpoint/checkpoint_reader.h"
#include "shardmesh/checkpoint/export.h"
#include "shardmesh/checkpoint/load.h"
#include "shardmesh/models/llama/llama_config_json.h"
#include "shardmesh/nn/load.h"
#include "shardmesh/nn/state.h"

namespace shardmesh::examples {

absl::Status CheckpointOptions::Validate() const {
  if (every < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--checkpoint_every is ", every, "; expected at least 0"));
  }
  if (keep < 1 || keep > 1000000)
    return absl::InvalidArgumentError(absl::StrCat("--keep is ", keep, "; expected 1 to 1000000"));
  if (directory.empty() && every > 0)
    return absl::InvalidArgumentError("--checkpoint_every needs --checkpoint_dir");
  return absl::OkStatus();
}

absl::StatusOr<RunCheckpoints> RunCheckpoints::Open(const CheckpointOptions& options,
                                                    Communicator& world) {
  RunCheckpoints checkpoints(options);
  if (options.directory.empty()) return checkpoints;
  SHARDMESH_ASSIGN_OR_RETURN(
      checkpoints.manager_,
      checkpoint::CheckpointManager::Open(
          options.directory, world, {.keep_last = static_cast<int>(options.keep), .async = true}));
  return checkpoints;
}

absl::Status RunCheckpoints::Begin(Trainer& trainer) {
  std::string from = options_.resume;
  if (from == "never") from.clear();
  if (from == "auto") {
    from.clear();
    if (manager_ != nullptr) {
      if (const std::optional<int64_t> latest = manager_->Latest())
        from = manager_->PathOf(*latest);
    }
  }
  if (!from.empty()) {
    StateDict state = trainer.State();
    SHARDMESH_RETURN_IF_ERROR(checkpoint::Load(from, state));
    saved_step_ = trainer.next_step();
    return absl::OkStatus();
  }
  if (options_.init_from.empty()) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(const CheckpointReader reader,
                             CheckpointReader::Open(options_.init_from));
  return nn::LoadParameters(trainer.model(), reader);
}

absl::Status RunCheckpoints::AfterStep(Trainer& trainer) {
  if (options_.every == 0 || trainer.next_step() % options_.every != 0) return absl::OkStatus();
  saved_step_ = trainer.next_step();
  return manager_->Save(saved_step_, trainer.State());
}

absl::Status RunCheckpoints::Finish(Trainer& trainer) {
  if (manager_ == nullptr) return absl::OkStatus();
  if (saved_step_ != trainer.next_step()) {
    saved_step_ = trainer.next_step();
    SHARDMESH_RETURN_IF_ERROR(manager_->Save(saved_step_, trainer.State()));
  }
  return manager_->Wait();
}

absl::Status RunCheckpoints::Export(Trainer& trainer) {
  if (options_.export_to.empty()) return absl::OkStatus();
  checkpoint::ExportOptions options;
  options.texts = {{"config.json", models::ToJson(trainer.options().model)}};
  options.save.overwrite = true;
  return checkpoint::ExportHuggingFace(options_.export_to, nn::State(trainer.model()), options);
}

}  // namespace shardmesh::examples
