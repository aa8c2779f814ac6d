// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "mesh/device_mesh.h"

int main() {
  const consumer::DeviceMesh own{.triangles = 12};
  std::cout << "a mesh of " << own.triangles << " triangles\n";
  return own.triangles == 12 ? 0 : 1;
}
