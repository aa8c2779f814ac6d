#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The model learns both texts, the second through far fewer parameters. Argument: the binary.
set -euo pipefail

out=$("$1")
echo "$out"

mapfile -t trained < <(grep -oE '[0-9]+ parameters' <<<"$out" | grep -oE '^[0-9]+')
mapfile -t losses < <(grep -oE 'loss [0-9.e+-]+' <<<"$out" | cut -d' ' -f2)
holds() { awk "BEGIN { exit !($1) }" || { echo "FAILED: $1" && exit 1; }; }
[[ ${#trained[@]} == 2 && ${#losses[@]} == 4 ]] || { echo "FAILED: lines are missing" && exit 1; }
holds "${trained[1]} * 20 < ${trained[0]}"
holds "${losses[0]} > 4 && ${losses[1]} < 0.5"
holds "${losses[2]} > 4 && ${losses[3]} < ${losses[2]} / 2"
