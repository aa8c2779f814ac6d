#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# C++ and CUDA sources are as clang-format 14 writes them.
# To mend: clang-format -i FILE
set -euo pipefail
source tests/lint/sources.sh

if ! clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
  echo "skipped: no clang-format 14 here (apt-get install clang-format); .ci/run has it"
  exit 0
fi
mapfile -t files < <(source_files '*.h' '*.cc' '*.cu' '*.cuh' |
  xargs -0 -r clang-format --dry-run -Werror 2>&1 | grep -oE '^[^:]+:[0-9]+:[0-9]+: error' | cut -d: -f1 | uniq)
if ((${#files[@]})); then
  printf 'not formatted; mend with:\n  clang-format -i'
  printf ' \\\n    %s' "${files[@]#./}"
  echo
  exit 1
fi
