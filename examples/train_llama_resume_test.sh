#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs of train_llama that are killed, stopped or moved to another mesh, and go on from their
# checkpoints: the weights at the end are those of a run that was never stopped. Argument: the
# binary. $SHARDMESH_KILLS: how often the run is killed (default 30).
set -uo pipefail

readonly train_llama=$PWD/$1
readonly dir=${TEST_TMPDIR:?}
readonly kills=${SHARDMESH_KILLS:-30}
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

head -c 5000 "$train_llama" | od -An -tx1 >"$dir/text" # Any text will do.
export SHARDMESH_DATA=$dir/text

# start MESH NAME ARGUMENT...: becomes the run of this name, which writes $dir/NAME.metrics and at
# the end $dir/NAME.hf.
start() {
  local mesh=$1 name=$2
  shift 2
  exec "$train_llama" --mesh="$mesh" --layers=2 --hidden=32 --mlp=48 --heads=4 --kv_heads=2 --seq=16 \
    --batch=4 --steps=60 --warmup=5 --sample=0 --export="$dir/$name.hf" \
    --metrics="$dir/$name.metrics" "$@" >"$dir/$name.out" 2>"$dir/$name.err" </dev/null
}
train() { (start "$@"); }

same() { # same NAME NAME
  cmp -s "$dir/$1.hf/model.safetensors" "$dir/$2.hf/model.safetensors" ||
    fail "the weights of $2 are not those of $1"
}

train dp=2,tp=2 whole || fail "the whole run: $(cat "$dir/whole.err")"

# ---- killed at any time --------------------------------------------------------------------------
train dp=2,tp=2 long --steps=2000 || fail "the long run: $(cat "$dir/long.err")"
checkpoints=(--steps=2000 --checkpoint_dir="$dir/killed.ckpt" --checkpoint_every=10 --keep=2)
died=0
for ((i = 0; i < kills; i++)); do
  start dp=2,tp=2 killed "${checkpoints[@]}" &
  run=$!
  sleep "0.$((RANDOM % 4))$((RANDOM % 10))"
  kill -KILL "$run" 2>/dev/null && died=$((died + 1))
  wait "$run" 2>/dev/null
done
train dp=2,tp=2 killed "${checkpoints[@]}" || fail "after $kills kills: $(cat "$dir/killed.err")"
same long killed
# Each step once, in order, however often the run was killed.
sed -E 's/^\{"step":([0-9]+),.*\}$/\1/' "$dir/killed.metrics" | cmp -s - <(seq 0 1999) ||
  fail "the metrics of the killed run have $(wc -l <"$dir/killed.metrics") lines, or not every step"
((died == kills)) || fail "only $died of $kills runs were still there to be killed"
(($(find "$dir/killed.ckpt" -maxdepth 1 -name 'step-*' | wc -l) == 2)) ||
  fail "--keep=2 keeps $(ls "$dir/killed.ckpt")"

# ---- stopped by a signal: exit 0, and nothing is lost ----------------------------------------------
start dp=3 stopped --batch=6 --checkpoint_dir="$dir/stopped.ckpt" --steps=100000 &
run=$!
for ((i = 0; i < 100; i++)); do
  (($(cat "$dir/stopped.metrics" 2>/dev/null | wc -l) > 2)) && break
  sleep 0.1
done
kill -TERM "$run"
wait "$run" || fail "SIGTERM with --checkpoint_dir: exit code $?"
grep -q "interrupted by SIGTERM after step .*; saved" "$dir/stopped.out" ||
  fail "SIGTERM: stdout ends with $(tail -1 "$dir/stopped.out")"
[[ -n $(find "$dir/stopped.ckpt" -name shardmesh.index.json) ]] || fail "SIGTERM left no checkpoint"

# ---- in two parts, the second on another mesh ------------------------------------------------------
# moved MESH: from step 30 of a run on dp=2,tp=2.
train dp=2,tp=2 first --steps=60 --checkpoint_dir="$dir/first.ckpt" --checkpoint_every=30 --keep=9 ||
  fail "the first part: $(cat "$dir/first.err")"
for mesh in dp=2,tp=2 dp=4 tp=2 dp_replicate=2,dp=2; do
  train "$mesh" "moved-$mesh" --resume="$dir/first.ckpt/step-30" ||
    fail "on $mesh: $(cat "$dir/moved-$mesh.err")"
done
same whole "moved-dp=2,tp=2"
# Other meshes add in another order.
last_loss() { tail -1 "$dir/$1.metrics" | sed -nE 's/.*"loss":([0-9.e+-]+).*/\1/p'; }
for mesh in dp=4 tp=2 dp_replicate=2,dp=2; do
  (($(wc -l <"$dir/moved-$mesh.metrics") == 30)) || fail "$mesh did not begin with step 30"
  awk -v a="$(last_loss whole)" -v b="$(last_loss "moved-$mesh")" \
    'BEGIN { exit !(a > 0 && b > 0 && (a - b) ^ 2 < (1e-5 * a) ^ 2) }' ||
    fail "on $mesh the last loss is $(last_loss "moved-$mesh"), expected $(last_loss whole)"
done

# ---- what must be refused --------------------------------------------------------------------------
refuses() { # refuses PATTERN ARGUMENT...
  local pattern=$1
  shift
  if train dp=2 refused "$@"; then
    fail "$*: accepted"
  elif ! grep -qE -e "$pattern" "$dir/refused.err"; then
    fail "$*: stderr is $(cat "$dir/refused.err")"
  fi
}
refuses "run with seed=1 .*and this one has seed=2" --seed=2 --resume="$dir/first.ckpt/step-30"
refuses "does not fit the state.*of another shape" --mlp=56 --resume="$dir/first.ckpt/step-30"
refuses "nowhere" --resume="$dir/nowhere"
refuses "checkpoint_every needs --checkpoint_dir" --checkpoint_every=3
refuses "keep is 0" --keep=0
refuses "nowhere" --init_from="$dir/nowhere"

# ---- weights of an export --------------------------------------------------------------------------
train dp=2 begun --init_from="$dir/whole.hf" --steps=1 --lr=0 || fail "$(cat "$dir/begun.err")"
same whole begun

((failures == 0)) && echo "passed"
exit $((failures > 0))
