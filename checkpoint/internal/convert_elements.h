// SPDX-License-Identifier: Apache-2.0
//
// Converts elements of a file to another dtype.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_CONVERT_ELEMENTS_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_CONVERT_ELEMENTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "shardmesh/tensor/dtype.h"

namespace shardmesh::internal {

/// Converts `count` elements; `source` need not be aligned. Returns the index of the first element
/// that is refused, after converting those before it, or nothing if there is none.
///
/// | to             | from floating-point, integer or bool                                   |
/// |----------------|------------------------------------------------------------------------|
/// | floating-point | rounded to nearest; a finite value that becomes infinite is refused    |
/// | integer, bool  | exact; a value that would change is refused                            |
///
/// f64 to bf16 and f16 rounds to f32 first, as a cast of a tensor does. A stored bool is a byte 0
/// or 1; any other byte is refused for every `to`, bool included.
std::optional<int64_t> ConvertElements(DType from, const void* source, DType to, void* target,
                                       int64_t count);

/// The value at `source`, with enough digits to distinguish it from all others of its dtype.
std::string ElementToString(DType dtype, const void* source);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_CONVERT_ELEMENTS_H_
