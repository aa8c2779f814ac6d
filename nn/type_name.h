// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDMESH_NN_TYPE_NAME_H_
#define SHARDMESH_NN_TYPE_NAME_H_

#include <string>
#include <typeinfo>

namespace shardmesh::nn {

/// As C++ writes it, "shardmesh::nn::Linear"; for messages.
std::string TypeName(const std::type_info& type);

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_TYPE_NAME_H_
