// SPDX-License-Identifier: Apache-2.0
//
// The command line of train_llama.
//
//   absl::StatusOr<TrainFlags> flags = ParseTrainFlags({"--mesh=dp=2,tp=2", "--lr", "0.01"});
//
// Not Abseil's flags: those end the process with 1 after --help, repeat in an error the bytes that
// they were given, and read whatever --flagfile names.
#ifndef SHARDMESH_EXAMPLES_TRAINING_TRAIN_FLAGS_H_
#define SHARDMESH_EXAMPLES_TRAINING_TRAIN_FLAGS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "shardmesh/comm/launch.h"
#include "shardmesh/examples/training/run_checkpoints.h"
#include "shardmesh/examples/training/train_options.h"

namespace shardmesh::examples {

struct TrainFlags {
  TrainOptions options;
  CheckpointOptions checkpoints;
  std::string data;     ///< Path of the text; "" for the default.
  std::string metrics;  ///< Path of the file of metrics; "" for none.
  Backend backend = Backend::kAuto;
  bool help = false;
};

/// `arguments` are those of main() without the program's name: --name=value or --name value, with
/// one dash or two; for a boolean also --name and --noname. The last of equal names counts.
/// `options` are not validated.
/// Errors: kInvalidArgument, one printable line that names the flag, what was given and what was
/// expected.
absl::StatusOr<TrainFlags> ParseTrainFlags(const std::vector<std::string_view>& arguments);

/// One line per flag with its default and its meaning.
std::string TrainFlagsHelp();

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_TRAIN_FLAGS_H_
