// SPDX-License-Identifier: Apache-2.0
//
// CHECK for states that a correct program cannot reach. It is on in every build and ends the
// process; bytes from outside (files, flags, peers) must never reach one.
//
//   SHARDMESH_CHECK(begin <= end) << "box " << begin << ".." << end;
#ifndef SHARDMESH_BASE_CHECK_H_
#define SHARDMESH_BASE_CHECK_H_

#include <sstream>

namespace shardmesh::internal {

/// Collects a message and, when destroyed, prints it with its place and aborts.
class CheckFailure {
 public:
  CheckFailure(const char* condition, const char* file, int line);
  ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

/// Gives the streamed form the type void, so that it fits the conditional expression of the macro.
struct Voidify {
  void operator&(std::ostream&) {}
};

}  // namespace shardmesh::internal

#define SHARDMESH_CHECK(condition)                 \
  (condition) ? static_cast<void>(0)               \
              : ::shardmesh::internal::Voidify() & \
                    ::shardmesh::internal::CheckFailure(#condition, __FILE__, __LINE__).stream()

#endif  // SHARDMESH_BASE_CHECK_H_
