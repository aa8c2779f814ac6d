// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/check.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace shardmesh::internal {
namespace {

// The include prefix puts `_virtual_includes/<target>/shardmesh/` into __FILE__, after an
// `external/shardmesh/` where another project builds this one; readers want the path in the tree.
const char* PathInTree(const char* file) {
  constexpr char kPrefix[] = "shardmesh/";
  while (const char* found = std::strstr(file, kPrefix)) file = found + std::strlen(kPrefix);
  return file;
}

}  // namespace

CheckFailure::CheckFailure(const char* condition, const char* file, int line) {
  stream_ << PathInTree(file) << ":" << line << ": CHECK failed: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", stream_.str().c_str());
  std::abort();
}

}  // namespace shardmesh::internal
