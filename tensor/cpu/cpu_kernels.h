// SPDX-License-Identifier: Apache-2.0
//
// The CPU's kernels, one family a source file. Each function fills its family's entries of the
// table.
#ifndef SHARDMESH_TENSOR_CPU_CPU_KERNELS_H_
#define SHARDMESH_TENSOR_CPU_CPU_KERNELS_H_

#include "shardmesh/tensor/kernel_table.h"

namespace shardmesh {

void FillCopyKernels(KernelTable& table);
void FillElementwiseKernels(KernelTable& table);
void FillBinaryKernels(KernelTable& table);
void FillReduceKernels(KernelTable& table);
void FillMatmulKernels(KernelTable& table);
void FillRowsKernels(KernelTable& table);
void FillLookupKernels(KernelTable& table);
void FillIndexingKernels(KernelTable& table);
void FillLinalgKernels(KernelTable& table);
void FillAttentionKernels(KernelTable& table);
void FillRandomKernels(KernelTable& table);
void FillOptimizerKernels(KernelTable& table);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_CPU_CPU_KERNELS_H_
