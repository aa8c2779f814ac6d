// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/comm/mpi/transport.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "shardmesh/base/error.h"

namespace shardmesh::mpi {
namespace {

// What MPI counts with an int.
constexpr int64_t kMostBytesOfAPiece = int64_t{1} << 30;

void Check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  Throw(absl::StatusCode::kUnavailable, "MPI: ", what, ": ", std::string(text, length));
}

}  // namespace

bool Transfer::Test() {
  while (!requests_.empty()) {
    int done = 0;
    Check(MPI_Test(&requests_.back(), &done, MPI_STATUS_IGNORE), "a transfer");
    if (done == 0) return false;
    requests_.pop_back();
  }
  return true;
}

void Transfer::Cancel() {
  if (!std::exchange(can_cancel_, false)) return;
  for (MPI_Request& request : requests_) {
    if (request != MPI_REQUEST_NULL) Check(MPI_Cancel(&request), "MPI_Cancel");
  }
}

Transport& Transport::Get() {
  static Transport* const transport = new Transport;
  return *transport;
}

Transport::Transport() {
  int is_initialized = 0, is_finalized = 0, level = MPI_THREAD_SINGLE;
  Check(MPI_Initialized(&is_initialized), "MPI_Initialized");
  Check(MPI_Finalized(&is_finalized), "MPI_Finalized");
  if (is_finalized != 0)
    Throw(absl::StatusCode::kFailedPrecondition, "MPI: the program has called MPI_Finalize");
  if (is_initialized == 0) {
    Check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    has_initialized_ = true;
    std::atexit(&Transport::Finalize);
  } else {
    Check(MPI_Query_thread(&level), "MPI_Query_thread");
  }
  allows_threads_ = level >= MPI_THREAD_SERIALIZED;
  for (MPI_Comm* const communicator : {&messages_, &data_}) {
    Check(MPI_Comm_dup(MPI_COMM_WORLD, communicator), "MPI_Comm_dup");
    Check(MPI_Comm_set_errhandler(*communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  Check(MPI_Comm_rank(messages_, &rank_), "MPI_Comm_rank");
  Check(MPI_Comm_size(messages_, &size_), "MPI_Comm_size");
  void* most = nullptr;
  int is_known = 0;
  Check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &is_known), "MPI_TAG_UB");
  num_tags_ = is_known != 0 ? *static_cast<int*>(most) : 32767;
}

void Transport::Finalize() {
  Transport& transport = Get();
  if (!transport.may_finalize_) return;
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  if (is_finalized == 0) MPI_Finalize();
}

void Transport::Reap() {
  while (!outgoing_.empty()) {
    int done = 0;
    Check(MPI_Test(&outgoing_.front().request, &done, MPI_STATUS_IGNORE), "a message");
    if (done == 0) return;
    outgoing_.pop_front();
  }
}

void Transport::Send(int peer, std::string bytes) {
  Reap();
  Outgoing& outgoing = outgoing_.emplace_back(Outgoing{std::move(bytes), MPI_REQUEST_NULL});
  Check(MPI_Isend(outgoing.bytes.data(), static_cast<int>(outgoing.bytes.size()), MPI_BYTE, peer, 0,
                  messages_, &outgoing.request),
        "MPI_Isend");
}

void Transport::PutBack(std::vector<Message> messages) {
  for (Message& message : messages) put_back_.push_back(std::move(message));
}

std::optional<Message> Transport::Receive() {
  if (!put_back_.empty()) {
    Message message = std::move(put_back_.front());
    put_back_.pop_front();
    return message;
  }
  int has_arrived = 0, bytes = 0;
  MPI_Message handle = MPI_MESSAGE_NULL;
  MPI_Status status;
  Check(MPI_Improbe(MPI_ANY_SOURCE, 0, messages_, &has_arrived, &handle, &status), "MPI_Improbe");
  if (has_arrived == 0) {
    Reap();
    return std::nullopt;
  }
  Check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
  Message message = {status.MPI_SOURCE, std::string(static_cast<size_t>(bytes), '\0')};
  Check(MPI_Mrecv(message.bytes.data(), bytes, MPI_BYTE, &handle, MPI_STATUS_IGNORE), "MPI_Mrecv");
  return message;
}

Transfer Transport::StartSend(int peer, int tag, const void* from, int64_t bytes) {
  Transfer transfer;
  for (int64_t begin = 0; begin < bytes; begin += kMostBytesOfAPiece) {
    transfer.requests_.push_back(MPI_REQUEST_NULL);
    Check(MPI_Isend(static_cast<const char*>(from) + begin,
                    static_cast<int>(std::min(kMostBytesOfAPiece, bytes - begin)), MPI_BYTE, peer,
                    tag, data_, &transfer.requests_.back()),
          "MPI_Isend");
  }
  return transfer;
}

Transfer Transport::StartReceive(int peer, int tag, void* to, int64_t bytes) {
  Transfer transfer;
  transfer.can_cancel_ = true;
  for (int64_t begin = 0; begin < bytes; begin += kMostBytesOfAPiece) {
    transfer.requests_.push_back(MPI_REQUEST_NULL);
    Check(MPI_Irecv(static_cast<char*>(to) + begin,
                    static_cast<int>(std::min(kMostBytesOfAPiece, bytes - begin)), MPI_BYTE, peer,
                    tag, data_, &transfer.requests_.back()),
          "MPI_Irecv");
  }
  return transfer;
}

std::vector<std::string> Transport::Exchange(const std::string& bytes) {
  int own = static_cast<int>(bytes.size());
  std::vector<int> sizes(static_cast<size_t>(size_)), begins(static_cast<size_t>(size_));
  Check(MPI_Allgather(&own, 1, MPI_INT, sizes.data(), 1, MPI_INT, messages_), "MPI_Allgather");
  int total = 0;
  for (int r = 0; r < size_; ++r) {
    begins[r] = total;
    total += sizes[r];
  }
  std::string all(static_cast<size_t>(total), '\0');
  Check(MPI_Allgatherv(bytes.data(), own, MPI_BYTE, all.data(), sizes.data(), begins.data(),
                       MPI_BYTE, messages_),
        "MPI_Allgatherv");
  std::vector<std::string> result;
  for (int r = 0; r < size_; ++r) result.push_back(all.substr(begins[r], sizes[r]));
  return result;
}

bool Transport::IsIdle() {
  Reap();
  return outgoing_.empty();
}

}  // namespace shardmesh::mpi
