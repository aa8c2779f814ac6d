#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Whether Python's safetensors, PyTorch and transformers read what Shardmesh has written. Arguments
# go to Bazel. Needs a Python with these three: $SHARDMESH_PYTHON, or a virtual environment that is
# made here; where that takes more than three minutes (or fails), it says "skipped" and passes.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${SHARDMESH_PYTHON:-}
if [[ -z $python ]]; then
  python=$work/venv/bin/python
  make_environment() {
    python3 -m venv "$work/venv" &&
      timeout 180 "$work/venv/bin/pip" -q install numpy safetensors torch==2.15.0 \
        transformers==5.24.0
  }
  if ! make_environment >"$work/pip.log" 2>&1; then
    echo "interop: skipped, no environment with torch and transformers in three minutes"
    exit 0
  fi
fi

./bazelw build "$@" //tests/interop:write_checkpoints
for case in plain llama3_rope_bias; do
  golden=tests/testdata/golden/llama/$case
  mkdir "$work/$case"
  bazel-bin/tests/interop/write_checkpoints "$golden" "$work/$case"
  echo "--- $case"
  "$python" tests/interop/check.py "$golden" "$work/$case"
  "$python" tests/interop/check_mesh.py "$golden" "$work/$case"
done
echo "interop: passed"
