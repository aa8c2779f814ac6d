#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The tour runs, and what it shows is true: layouts, no traffic where it says so, the same numbers as
# on one device, traced bytes as planned. Argument: the binary.
set -euo pipefail

out=$("$1")
echo "$out"

shows() { grep -qF -e "$1" <<<"$out" || { echo "FAILED: no line with: $1" && exit 1; }; }
shows '1. a mesh [dp=2, tp=2]'
shows 'x = f32[5,3] [S(0), R] @ [dp=2, tp=2]'
shows 'rank 3 (dp 1, tp 1) holds [3:5, 0:3]'
shows 'is f32[5,7] [S(0), S(1)] @ [dp=2, tp=2]'
shows 'nothing was sent'
shows 'is f32[5,2] [S(0), P(sum)] @ [dp=2, tp=2]'
shows 'the gradient of up is f32[7,3] [R, S(0)] @ [dp=2, tp=2]'

matrix_after() { awk -v mark="$1" 'index($0, mark) { on = 1; next } on && /^    [ -]/ { print; next } { on = 0 }' <<<"$out"; }
[[ -n $(matrix_after 'y =') && $(matrix_after 'y =') == "$(matrix_after 'on one device')" ]] ||
  { echo "FAILED: the numbers differ from those on one device" && exit 1; }

# A report that is lost is a failure.
if "$1" >/dev/full 2>"$TEST_TMPDIR/err"; then
  echo "FAILED: exit code 0 with stdout on a full device"
  exit 1
fi
grep -qx 'mesh_tour: cannot write to stdout' "$TEST_TMPDIR/err" || { cat "$TEST_TMPDIR/err" && exit 1; }
