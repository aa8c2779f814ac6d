// SPDX-License-Identifier: Apache-2.0
//
// A gradient sink that keeps a buffer in one layout and notes how it was used.
#ifndef SHARDMESH_DTENSOR_TESTING_BUFFER_SINK_H_
#define SHARDMESH_DTENSOR_TESTING_BUFFER_SINK_H_

#include <cstdint>
#include <limits>

#include "shardmesh/dtensor/autograd.h"
#include "shardmesh/tensor/ops.h"

namespace shardmesh::testing {

/// Accepts the layout of its buffer alone. The buffer starts as NaN: a kernel that reads before it
/// was written is seen.
class BufferSink : public GradSink {
 public:
  BufferSink(const DeviceMesh& mesh, Layout layout, DType dtype)
      : mesh_(mesh),
        layout_(layout),
        buffer_(ops::Full(mesh.context(), layout.LocalShape(mesh.coord()), dtype,
                          std::numeric_limits<double>::quiet_NaN())) {}

  bool Accepts(const Layout& layout) const override { return layout == layout_; }
  Layout PreferredLayout() const override { return layout_; }
  DType dtype() const override { return buffer_.dtype(); }
  Target Open(const Layout&) override { return {buffer_, opened++ > 0}; }
  void CountStaging(int64_t bytes) override { staged_bytes += bytes; }

  /// What has been delivered.
  DTensor Gradient() const { return DTensor(mesh_, layout_, buffer_); }

  int opened = 0;
  int64_t staged_bytes = 0;

 private:
  DeviceMesh mesh_;
  Layout layout_;
  Tensor buffer_;
};

}  // namespace shardmesh::testing

#endif  // SHARDMESH_DTENSOR_TESTING_BUFFER_SINK_H_
