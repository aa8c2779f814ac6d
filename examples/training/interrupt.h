// SPDX-License-Identifier: Apache-2.0
//
// Signals that ask a program to end, as a question that it asks when it suits.
#ifndef SHARDMESH_EXAMPLES_TRAINING_INTERRUPT_H_
#define SHARDMESH_EXAMPLES_TRAINING_INTERRUPT_H_

#include <string_view>

namespace shardmesh::examples {

/// From now on the first SIGINT, SIGTERM or SIGHUP of this process is only remembered; a second one
/// of the same kind ends the process. SIGHUP stays ignored where it was (nohup).
void WatchInterrupt();

/// The signal that came, or 0. Any thread. Ranks may see it at different times: agree before acting
/// on it (AnyRank).
int InterruptSignal();

/// "SIGINT", "SIGTERM", "SIGHUP".
std::string_view SignalName(int signal);

}  // namespace shardmesh::examples

#endif  // SHARDMESH_EXAMPLES_TRAINING_INTERRUPT_H_
