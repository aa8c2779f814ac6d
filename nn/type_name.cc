// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/nn/type_name.h"

#include <cxxabi.h>

#include <cstdlib>

namespace shardmesh::nn {

std::string TypeName(const std::type_info& type) {
  int status = 0;
  char* const demangled = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  const std::string name = demangled == nullptr ? type.name() : demangled;
  std::free(demangled);
  return name;
}

}  // namespace shardmesh::nn
