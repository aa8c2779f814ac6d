#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds, runs and tests this project in a copy outside of Shardmesh's tree, as a user
# would, but at -O0: compiling is what takes the time.
# Usage: tests/consumer/run.sh [flags of bazel run]
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
root=$(readlink -f "$here/../..")
copy=$(mktemp -d)
finish() {
  cd "$copy"
  "$root/bazelw" clean --expunge >/dev/null 2>&1 || true
  rm -rf "$copy"
}
trap finish EXIT

cp -r "$here"/. "$copy"
cd "$copy"
sed -i "s|path = \"../..\"|path = \"$root\"|" WORKSPACE
grep -q "path = \"$root\"" WORKSPACE
"$root/bazelw" run -c fastbuild "$@" //:consumer
"$root/bazelw" test -c fastbuild --test_output=errors "$@" //:row_scale_test
