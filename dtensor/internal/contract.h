// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDMESH_DTENSOR_INTERNAL_CONTRACT_H_
#define SHARDMESH_DTENSOR_INTERNAL_CONTRACT_H_

#include <string>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::internal {

/// The product of a and b, whose dims have the labels given (one character each, none twice),
/// summed over the labels that `to` lacks. A label of one operand alone must be in `to`; labels
/// have one extent. Every label is a factor of the sharding rule.
DTensor Contract(const DTensor& a, const std::string& labels_a, const DTensor& b,
                 const std::string& labels_b, const std::string& to);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_CONTRACT_H_
