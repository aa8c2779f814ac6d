// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tools/macro_test/doubled.h"

#include "shardmesh/tools/macro_test/factor.h"

namespace shardmesh::macro_test {

int Doubled(int x) { return kFactor * x; }

}  // namespace shardmesh::macro_test
