// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/device.h"

#include <ostream>

namespace shardmesh {

std::string Device::ToString() const {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kMeta:
      return "meta";
    case DeviceKind::kCuda:
      return "cuda:" + std::to_string(index);
  }
  return "?";
}

std::ostream& operator<<(std::ostream& out, const Device& device) {
  return out << device.ToString();
}

}  // namespace shardmesh
