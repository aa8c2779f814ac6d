// SPDX-License-Identifier: Apache-2.0
//
// Numbers of other systems, read whole (tests/testdata/golden/README.md says what is where).
//
//   const SafetensorsFile expected = OpenGolden("llama/plain/expected_f64.safetensors");
//   const std::vector<double> losses = ReadGolden<double>(expected, "losses", DType::kF64);
#ifndef SHARDMESH_TESTS_TRAINING_GOLDEN_FILE_H_
#define SHARDMESH_TESTS_TRAINING_GOLDEN_FILE_H_

#include <string>
#include <utility>
#include <vector>

#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/safetensors_file.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::testing {

/// The path, as seen from a test, of a golden file or folder.
inline std::string GoldenPath(const std::string& name) { return "tests/testdata/golden/" + name; }

/// Throws Error if the file cannot be opened.
inline SafetensorsFile OpenGolden(const std::string& name) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(GoldenPath(name));
  ThrowIfError(file.status());
  return *std::move(file);
}

/// The elements of a tensor of `dtype`, which is T's. Throws Error if it does not exist or has
/// another dtype.
template <typename T>
std::vector<T> ReadGolden(const SafetensorsFile& file, const std::string& name, DType dtype) {
  const StoredTensor* stored = file.Find(name);
  if (stored == nullptr) Throw(absl::StatusCode::kNotFound, file.path(), " has no tensor ", name);
  ExecutionContext context;
  Tensor tensor = Tensor::Empty(context, Dims(stored->shape), dtype);
  ThrowIfError(file.Read(name, tensor));
  return tensor.ToVector<T>();
}

}  // namespace shardmesh::testing

#endif  // SHARDMESH_TESTS_TRAINING_GOLDEN_FILE_H_
