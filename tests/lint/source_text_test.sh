#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What sources and build files look like, apart from formatting. Each check
# prints FILE:LINE: what is wrong.
set -euo pipefail
source tests/lint/sources.sh

failures=0
fail() {
  echo "$*"
  failures=$((failures + 1))
}

# Prefixes each line of grep's output with nothing and follows it by a reason.
fail_each() {
  local reason=$1 line
  while IFS= read -r line; do
    fail "$line  <- $reason"
  done
}

mapfile -d '' -t cc < <(source_files '*.h' '*.cc' '*.cu' '*.cuh')
mapfile -d '' -t build < <(source_files 'BUILD.bazel' 'WORKSPACE' '*.bzl')
mapfile -d '' -t scripts < <(source_files '*.sh' '*.py')
all=("${cc[@]}" "${build[@]}" "${scripts[@]}" ./bazelw ./.ci/run ./.bazelrc ./.clang-format ./.clang-tidy)

# The licence, in the first line or after the interpreter.
for file in "${all[@]}"; do
  head -n 2 "$file" | grep -qE '^(//|#) SPDX-License-Identifier: Apache-2\.0$' ||
    fail "$file:1: no 'SPDX-License-Identifier: Apache-2.0' comment"
done

# White space.
fail_each 'tab' < <(grep -nP '\t' "${all[@]}" || true)
fail_each 'wider than 100 columns' < <(grep -nE '^.{101}' "${cc[@]}" || true)
fail_each 'trailing blank' < <(grep -nP '[ \t\r]$' "${all[@]}" || true)

# A project header is included as "shardmesh/...": what an unprefixed path finds
# depends on who compiles. The consumer test owns clashing headers on purpose.
while IFS=: read -r file line text; do
  [[ $file == ./tests/consumer/* ]] && continue
  path=${text#*\"}
  path=${path%%\"*}
  if [[ $path == shardmesh/* ]]; then
    [[ -e ${path#shardmesh/} ]] || fail "$file:$line: there is no ${path#shardmesh/}"
  elif [[ -e $path || -e ${file%/*}/$path ]]; then
    fail "$file:$line: project headers are included as \"shardmesh/<folder>/<file>.h\""
  fi
done < <(grep -nE '^ *# *include *"' "${cc[@]}")
fail_each 'project headers take quotes' < <(grep -nE '^ *# *include *<shardmesh/' "${cc[@]}" || true)

# Guards spell the path.
for file in "${cc[@]}"; do
  [[ $file == *.h && $file != ./tests/consumer/* ]] || continue
  guard=${file#./}
  guard=SHARDMESH_${guard//[^a-zA-Z0-9]/_}_
  grep -qx "#ifndef ${guard^^}" "$file" || fail "$file:1: the include guard is not ${guard^^}"
done

# A file is named after its noun.
for file in "${cc[@]}" "${build[@]}"; do
  name=${file##*/}
  [[ ${name%.*} =~ ^(.*_)?(utils?|helpers?|common|misc)$ ]] && fail "$file: name it after what it is about"
done

# Kernels are chosen at run time; a binary must run on another machine of its kind.
fail_each 'no -march=native' < <(grep -nE '^[^#]*-march=native' "${build[@]}" ./.bazelrc || true)

# C++ targets go through the macros of tools/cc.bzl.
for file in "${build[@]}"; do
  [[ $file == */BUILD.bazel && $file != ./tests/consumer/* ]] || continue
  fail_each 'use tools/cc.bzl' < <(grep -nH -E '^ *(native\.)?cc_(library|binary|test)\(|load\("@rules_cc' "$file" || true)
done

if ((failures)); then
  echo "$failures problems"
  exit 1
fi
