# SPDX-License-Identifier: Apache-2.0
#
# Sourced by the lint tests: moves to the source tree and lists its files.
# shellcheck shell=bash

# Runs in the runfiles; WORKSPACE there leads back to the tree.
cd "$(dirname "$(readlink -f WORKSPACE)")"

# Prints, NUL-separated, the project's own files whose names match one of the patterns.
source_files() {
  local names=() pattern
  for pattern in "$@"; do
    names+=(-o -name "$pattern")
  done
  find . \( -name '.?*' -o -name 'bazel-*' -o -name testdata -o -name golden \) -prune \
    -o -type f \( "${names[@]:1}" \) -print0 | sort -z
}
