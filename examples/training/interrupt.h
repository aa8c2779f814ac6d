// SPDX-License-Identifier: Apache-2.0
//
// Ctrl-C as a question that a program asks when it suits.
#ifndef SHARDMESH_EXAMPLES_TRAINING_INTERRUPT_H_
#define SHARDMESH_EXAMPLES_TRAINING_INTERRUPT_H_

namespace shardmesh::examples {

/// From now on the first SIGINT of this process is only remembered; a second one ends the process.
void WatchInterrupt();

/// Whether there was one. Any thread. Ranks may see it at different times: agree before acting on
/// it (AnyRank).
bool Interrupted();

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_INTERRUPT_H_
