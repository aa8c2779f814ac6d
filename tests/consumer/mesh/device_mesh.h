// SPDX-License-Identifier: Apache-2.0
// A header whose path Shardmesh has too: both must be usable in one program.
#ifndef CONSUMER_MESH_DEVICE_MESH_H_
#define CONSUMER_MESH_DEVICE_MESH_H_

namespace consumer {

/// Not shardmesh::DeviceMesh.
struct DeviceMesh {
  int triangles = 0;
};

}  // namespace consumer

#endif  // CONSUMER_MESH_DEVICE_MESH_H_
