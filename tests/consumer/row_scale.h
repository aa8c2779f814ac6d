// SPDX-License-Identifier: Apache-2.0
#ifndef CONSUMER_ROW_SCALE_H_
#define CONSUMER_ROW_SCALE_H_

#include "shardmesh/dtensor/dtensor.h"

namespace consumer {

/// An op of this project: each row of x times its number. Shape: x [n, d], s [n] -> [n, d]; f32 or
/// f64, the same for both.
shardmesh::DTensor RowScale(const shardmesh::DTensor& x, const shardmesh::DTensor& s);

}  // namespace consumer

#endif  // CONSUMER_ROW_SCALE_H_
