#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# clang-tidy, with the checks of .clang-tidy, over the library's sources and
# through them its headers.
#
#   tools/clang_tidy.sh              all of them
#   tools/clang_tidy.sh --recent N   those that the last N commits changed
#   tools/clang_tidy.sh FILE...      these
#
# All project includes begin with shardmesh/, so one link to the tree and
# pkg-config's flags stand for the Bazel build, and nothing has to be built first.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

include=$(mktemp -d)
trap 'rm -rf "$include"' EXIT
ln -s "$PWD" "$include/shardmesh"
read -ra system < <(pkg-config --cflags absl_status gmock benchmark openblas nlohmann_json libxxhash)

# Without MPI's headers, what needs them is left out.
mpi=(! -path './comm/mpi/*' ! -path './comm/mpi_*')
if command -v mpicc >/dev/null; then
  mpi=()
  for directory in $(mpicc --showme:incdirs); do system+=(-isystem "$directory"); done
  system+=(-DOMPI_SKIP_MPICXX)
fi

# Left out: what clang 14 cannot parse (captured structured bindings, names of CPU levels), what
# needs NCCL's headers, and the examples of the README and docs, which have a using directive.
if (($#)) && [[ $1 != --recent ]]; then
  files=("$@")
else
  mapfile -d '' -t files < <(find . \( -name '.?*' -o -name 'bazel-*' -o -path ./tests/consumer \) -prune \
    -o -name '*.cc' ! -name '*_test.cc' ! -name '*_benchmark.cc' \
    ! -path './comm/inprocess/movement.cc' \
    "${mpi[@]}" \
    ! -path './examples/docs_example.cc' \
    ! -path './examples/readme_example.cc' \
    ! -path './tensor/cpu/isa_cpu.cc' -print0)
fi
# Without that much history, all.
if [[ ${1-} == --recent ]] && git rev-parse --quiet --verify "HEAD~$2" >/dev/null; then
  declare -A recent=()
  while IFS= read -r file; do recent[./$file]=1; done < <(git diff --name-only "HEAD~$2" HEAD)
  all=("${files[@]}")
  files=()
  for file in "${all[@]}"; do
    [[ -z ${recent[$file]-} ]] || files+=("$file")
  done
fi

tidy() {
  local output
  output=$(clang-tidy --quiet "$1" -- -std=c++20 -I"$include" "${system[@]}" 2>&1) && return
  printf '%s\n' "$output"
  return 1
}

failed=0
running=0
for file in "${files[@]}"; do
  if ((running >= $(nproc))); then
    wait -n || failed=1
    running=$((running - 1))
  fi
  tidy "$file" &
  running=$((running + 1))
done
while ((running > 0)); do
  wait -n || failed=1
  running=$((running - 1))
done
exit $failed
