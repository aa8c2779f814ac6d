// SPDX-License-Identifier: Apache-2.0
//
// Where a tensor's elements live. `meta` has shapes and dtypes but no elements: models are built on
// it for free.
#ifndef SHARDMESH_TENSOR_DEVICE_H_
#define SHARDMESH_TENSOR_DEVICE_H_

#include <cstdint>
#include <iosfwd>
#include <string>

namespace shardmesh {

enum class DeviceKind : uint8_t { kCpu, kMeta, kCuda };

/// Value type.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;  ///< Of a CUDA device; 0 otherwise.

  static constexpr Device Cpu() { return {DeviceKind::kCpu, 0}; }
  static constexpr Device Meta() { return {DeviceKind::kMeta, 0}; }

  bool IsMeta() const { return kind == DeviceKind::kMeta; }
  /// "cpu", "meta", "cuda:1".
  std::string ToString() const;
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

std::ostream& operator<<(std::ostream& out, const Device& device);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_DEVICE_H_
