// SPDX-License-Identifier: Apache-2.0
//
// Where kernels and communicators write.
//
//   T* out_data = internal::OutputData<T>(out);   // In a kernel, on any thread.
//
// Everyone else writes through Tensor::mutable_data.
#ifndef SHARDMESH_TENSOR_INTERNAL_OUTPUT_DATA_H_
#define SHARDMESH_TENSOR_INTERNAL_OUTPUT_DATA_H_

#include "shardmesh/tensor/tensor.h"

namespace shardmesh::internal {

/// As Tensor::mutable_raw_data and mutable_data, but the storage's version stays. The op or the
/// collective counts the write: once per call, on the thread of the rank, also if there is no
/// element to write, so that versions change alike on all ranks. Results in new memory have
/// version 0.
inline void* OutputData(const Tensor& out) { return const_cast<void*>(out.raw_data()); }
template <typename T>
T* OutputData(const Tensor& out) {
  return const_cast<T*>(out.data<T>());
}

}  // namespace shardmesh::internal

#endif  // SHARDMESH_TENSOR_INTERNAL_OUTPUT_DATA_H_
