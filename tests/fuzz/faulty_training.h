// SPDX-License-Identifier: Apache-2.0
//
// The training of a small Llama on a 2-D mesh, with a fault in it.
#ifndef SHARDMESH_TESTS_FUZZ_FAULTY_TRAINING_H_
#define SHARDMESH_TESTS_FUZZ_FAULTY_TRAINING_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "shardmesh/tests/fuzz/fault.h"

namespace shardmesh::testing {

struct TrainingSetup {
  int dp = 2;
  int tp = 2;
  bool sequence_parallel = false;
  bool bf16 = false;
  int threads_per_rank = 1;
  absl::Duration timeout = absl::Minutes(2);

  int NumRanks() const { return dp * tp; }
  std::string ToString() const;
};

struct TrainingResult {
  absl::Status status;                ///< Of RunRanks.
  std::vector<absl::Status> by_rank;  ///< What left the training on each rank.
  bool has_fired = false;             ///< Whether the fault's point was reached.
  int num_points = 0;                 ///< Of rank 0.
  /// Losses and final parameters of each rank, all alike; empty where a rank did not come to the
  /// end.
  std::vector<std::vector<double>> values;
};

TrainingResult TrainWithFault(const TrainingSetup& setup, const Fault& fault);

}  // namespace shardmesh::testing

#endif  // SHARDMESH_TESTS_FUZZ_FAULTY_TRAINING_H_
