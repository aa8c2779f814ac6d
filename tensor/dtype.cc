// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/dtype.h"

#include <ostream>
#include <string>

#include "shardmesh/base/error.h"

namespace shardmesh {

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kBool:
      return "bool";
  }
  return "?";
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kI64,
                      DType::kBool}) {
    if (Name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << Name(dtype); }

void ThrowNotFloating(DType dtype, std::string_view what) {
  ThrowInvalid(std::string(what), ": needs a floating-point dtype, got ", std::string(Name(dtype)));
}

}  // namespace shardmesh
