#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Arguments, three a layer: its name, a regular expression for the labels that
# its dependencies may have, and a file with the labels that it does have (both
# empty while the layer has no targets). See layers.bzl.
set -euo pipefail

# Prints the labels in file $2 that do not match $1.
arrows_up() { grep -Ev -e "$1" "$2" || true; }

# The check itself must see a wrong arrow.
sample=$(mktemp)
printf '//tensor:tensor\n//base:base\n//tensorboard:x\n//comm:comm\n' >"$sample"
found=$(arrows_up '^//(tensor|tools|base)[/:]' "$sample" | tr '\n' ' ')
rm -f "$sample"
if [[ $found != '//tensorboard:x //comm:comm ' ]]; then
  echo "the check is broken: it found '$found' in its sample"
  exit 1
fi

root=$(dirname "$(readlink -f WORKSPACE)")
failures=0
fail() {
  echo "$*"
  failures=$((failures + 1))
}

# The codemap has a row for each layer, in this order.
codemap=$(grep -oE '^\| `[a-z]+/`' "$root/docs/architecture.md" | tr -d '|` /' | tr '\n' ' ')
layers=
declare -A known=([tests]=1 [third_party]=1 [tools]=1)
while (($#)); do
  layer=$1 allowed=$2 file=$3
  shift 3
  known[$layer]=1
  layers+="$layer "
  if [[ -z $file ]]; then
    if [[ -f $root/$layer/BUILD.bazel ]]; then
      fail "$layer/ has a BUILD.bazel: give its targets in tests/lint/layers.bzl"
    fi
    continue
  fi
  while read -r label; do
    fail "$layer/ reaches $label, which is not in a layer below it" \
      "(see tests/lint/layers.bzl; bazel query 'somepath(//$layer/..., $label)' shows how)"
  done < <(arrows_up "$allowed" "$file")
done

for build_file in "$root"/*/BUILD.bazel; do
  folder=$(basename "$(dirname "$build_file")")
  [[ $folder == bazel-* || -n ${known[$folder]:-} ]] || fail "$folder/ is no layer of tests/lint/layers.bzl"
done

[[ $codemap == "${layers}tests " ]] ||
  fail "the codemap of docs/architecture.md has '$codemap', the table in tests/lint/layers.bzl '$layers'"

((failures == 0))
