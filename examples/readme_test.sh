#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The program in the README is examples/readme_example.cc, and it trains. Argument: its binary.
set -euo pipefail

readonly source=examples/readme_example.cc
readme=$(dirname "$(readlink -f WORKSPACE)")/README.md

shown=$(awk '/^```cpp$/ { on = 1; next } /^```$/ { if (on) exit } on' "$readme")
kept=$(sed -n '/^\/\/ README begin$/,/^\/\/ README end$/p' "$source" | sed '1d;$d')
if [[ $shown != "$kept" ]]; then
  echo "the first \`\`\`cpp block of README.md is not what stands between the marks in $source:"
  diff <(echo "$shown") <(echo "$kept") || true
  exit 1
fi

out=$("$1")
echo "$out"
awk '$1 == "step" { if (first == "") first = $4; last = $4 } END { exit !(first > 5 && last < first / 2) }' <<<"$out" ||
  { echo "FAILED: its loss does not fall by half" && exit 1; }
