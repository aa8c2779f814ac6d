#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The C++ blocks of four pages of docs/ are what stands between the marks of
# examples/docs_example.cc, and that program trains. Argument: its binary.
set -euo pipefail

readonly source=examples/docs_example.cc
root=$(dirname "$(readlink -f WORKSPACE)")

# Prints the blocks of page $1, each followed by a line of dashes.
shown() { awk '/^```cpp$/ { on = 1; next } /^```$/ { if (on) print "----"; on = 0 } on' "$root/$1"; }

# Prints what stands between the marks of page $1, without the first mark's indentation.
kept() {
  awk -v begin="// $1 begin" -v end="// $1 end" '
    { text = $0; sub(/^ +/, "", text) }
    text == begin { on = 1; indent = length($0) - length(text) + 1; next }
    text == end { on = 0; print "----" }
    on { print substr($0, indent) }' "$source"
}

for page in docs/activation_checkpointing.md docs/checkpoints.md docs/fsdp.md docs/optimizers.md docs/tp.md; do
  if [[ -z $(kept "$page") || $(shown "$page") != "$(kept "$page")" ]]; then
    echo "the \`\`\`cpp blocks of $page are not what stands between its marks in $source:"
    diff <(shown "$page") <(kept "$page") || true
    exit 1
  fi
done

out=$("$1" "${TEST_TMPDIR:?}")
echo "$out"
for name in fsdp f16 groups muon ball saved tp checkpointed; do
  awk -v name="$name" '$1 == name { if (first == "") first = $5; last = $5 }
    END { exit !(first > 5 && last < first / 2) }' <<<"$out" ||
    { echo "FAILED: the loss of $name does not fall by half" && exit 1; }
done

# A run that goes on elsewhere has the losses of the one that was saved.
steps_of() { awk -v name="$1" '$1 == name && $3 >= 10 { printf "%s %.4f\n", $3, $5 }' <<<"$out"; }
[[ -n $(steps_of resumed) && $(steps_of resumed) == "$(steps_of saved)" ]] ||
  { echo "FAILED: the resumed run's losses are not the saved one's" && exit 1; }
