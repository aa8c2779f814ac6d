// SPDX-License-Identifier: Apache-2.0
//
// Bytes between the processes of MPI_COMM_WORLD: small messages that nobody has to expect, and
// transfers that both sides have agreed on. The only file that calls MPI, and only its point-to-
// point functions: no call blocks, so every wait can end.
#ifndef SHARDMESH_COMM_MPI_TRANSPORT_H_
#define SHARDMESH_COMM_MPI_TRANSPORT_H_

#include <mpi.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace shardmesh::mpi {

struct Message {
  int sender = 0;
  std::string bytes;
};

/// A transfer in flight; its memory belongs to MPI until it has ended.
class Transfer {
 public:
  Transfer() = default;
  /// Whether it has ended.
  bool Test();
  /// Ends a receive that nothing has come for. A send cannot be taken back (Open MPI crashes): it
  /// and its memory are left to MPI.
  void Cancel();

 private:
  friend class Transport;
  absl::InlinedVector<MPI_Request, 1> requests_;  // One for each piece that an int can count.
  bool can_cancel_ = false;  // A receive, once: Open MPI crashes on a second time.
};

/// Not thread-safe. One for the process, made by Get.
class Transport {
 public:
  /// Initialises MPI if the program has not. Throws Error(kUnavailable) if MPI cannot start, and
  /// Error(kFailedPrecondition) if it has ended.
  static Transport& Get();

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Whether a second thread may use it, one at a time.
  bool allows_threads() const { return allows_threads_; }

  /// Sends a copy; messages to one peer arrive in their order.
  void Send(int peer, std::string bytes);
  /// The next message that has arrived.
  std::optional<Message> Receive();
  /// Will be received again, by the next who asks, before any other.
  void PutBack(std::vector<Message> messages);

  /// Transfers of one tag between two processes meet in the order in which each side starts them.
  Transfer StartSend(int peer, int tag, const void* from, int64_t bytes);
  Transfer StartReceive(int peer, int tag, void* to, int64_t bytes);
  /// Tags are below this.
  int num_tags() const { return num_tags_; }

  /// What every process gives, by rank. Collective, blocks; for the start of the program alone.
  std::vector<std::string> Exchange(const std::string& bytes);
  /// True when nothing that was sent is still on its way out.
  bool IsIdle();
  /// MPI_Finalize, if the process has called MPI_Init here, at its end. Only if no process has been
  /// given up: a finalize that waits for one never returns.
  void AllowFinalize(bool allow) { may_finalize_ = allow; }

 private:
  Transport();
  static void Finalize();
  void Reap();

  MPI_Comm messages_ = MPI_COMM_NULL, data_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, num_tags_ = 0;
  bool allows_threads_ = false, has_initialized_ = false, may_finalize_ = true;
  struct Outgoing {
    std::string bytes;
    MPI_Request request;
  };
  std::deque<Message> put_back_;
  std::deque<Outgoing> outgoing_;  // References stay valid at both ends.
};

}  // namespace shardmesh::mpi

#endif  // SHARDMESH_COMM_MPI_TRANSPORT_H_
