// SPDX-License-Identifier: Apache-2.0
//
// Elements of a file in another dtype.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_CONVERT_ELEMENTS_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_CONVERT_ELEMENTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "shardmesh/tensor/dtype.h"

namespace shardmesh::internal {

/// Converts `count` elements; `source` need not be aligned. Returns the index of the first one that
/// `to` cannot take, with everything before it converted, or nothing.
///
/// | to            | from floating                  | from an integer or bool        |
/// |---------------|--------------------------------|--------------------------------|
/// | floating      | rounded to nearest             | rounded to nearest             |
/// | integer, bool | taken if the value is the same | taken if the value is the same |
///
/// From f64 to bf16 and f16 it goes by way of f32, as a cast of a tensor does.
/// A bool is a byte that is 0 or 1; another byte is taken by nothing, bool included.
std::optional<int64_t> ConvertElements(DType from, const void* source, DType to, void* target,
                                       int64_t count);

/// The value at `source`, as text that tells it from any other of its dtype.
std::string ElementToString(DType dtype, const void* source);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_CONVERT_ELEMENTS_H_
