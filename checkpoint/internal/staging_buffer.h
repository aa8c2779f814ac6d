// SPDX-License-Identifier: Apache-2.0
//
// Memory into which a state is copied while training waits.
//
//   char* next = buffer.Reserve(bytes);   // fresh pages the first time only
//   CopyToStaging(next, source, count);
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_STAGING_BUFFER_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_STAGING_BUFFER_H_

#include <cstdint>
#include <memory>

namespace shardmesh::checkpoint::internal {

/// Keeps its memory, so that a later copy finds its pages. In huge pages where the system has them.
class StagingBuffer {
 public:
  /// At least `bytes` bytes, whose values are undefined.
  char* Reserve(int64_t bytes);

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  std::unique_ptr<char, Free> memory_;
  int64_t bytes_ = 0;
};

/// As memcpy. Many bytes are written past the caches: they are read much later, by another thread,
/// and a cache line that is overwritten whole need not be read first.
void CopyToStaging(char* target, const char* source, int64_t bytes);

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_STAGING_BUFFER_H_
