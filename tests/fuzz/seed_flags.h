// SPDX-License-Identifier: Apache-2.0
//
// The flags of a fuzzer whose programs follow from a seed alone.
#ifndef SHARDMESH_TESTS_FUZZ_SEED_FLAGS_H_
#define SHARDMESH_TESTS_FUZZ_SEED_FLAGS_H_

#include <cstdint>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace shardmesh::testing {

struct SeedFlags {
  double minutes = 0.6;     ///< --minutes=M
  uint64_t first_seed = 1;  ///< --from=N, or --seed=N for that program alone.
  bool one_program = false;

  /// Reads what GoogleTest has left. Returns false, and says why on stderr, for any other argument.
  bool Parse(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      absl::string_view value = argv[i];
      bool ok = false;
      if (absl::ConsumePrefix(&value, "--minutes=")) {
        ok = absl::SimpleAtod(value, &minutes);
      } else if (absl::ConsumePrefix(&value, "--from=")) {
        ok = absl::SimpleAtoi(value, &first_seed);
      } else if (absl::ConsumePrefix(&value, "--seed=")) {
        ok = absl::SimpleAtoi(value, &first_seed);
        one_program = true;
      }
      if (ok) continue;
      std::cerr << "unknown argument " << argv[i]
                << "; expected --minutes=M, --from=N or --seed=N\n";
      return false;
    }
    return true;
  }
};

}  // namespace shardmesh::testing

#endif  // SHARDMESH_TESTS_FUZZ_SEED_FLAGS_H_
