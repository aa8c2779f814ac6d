#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# train_llama as its users meet it: output, files, exit codes. Argument: the binary.
set -uo pipefail

readonly train_llama=$PWD/$1
readonly dir=${TEST_TMPDIR:?}
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# run ARGUMENT...: sets rc; output in $dir/out and $dir/err.
run() {
  "$train_llama" "$@" >"$dir/out" 2>"$dir/err" </dev/null
  rc=$?
}

# refuses PATTERN ARGUMENT...: exits with 1 and one line on stderr that matches.
refuses() {
  local pattern=$1
  shift
  run "$@"
  if ((rc != 1)); then
    fail "$*: exit code $rc"
  elif (($(wc -l <"$dir/err") != 1)) || ! grep -qE -e "$pattern" "$dir/err"; then
    fail "$*: stderr is"
    cat "$dir/err"
  fi
}

head -c 5000 "$train_llama" | od -An -tx1 >"$dir/text" # Any text will do.
printf '12345678' >"$dir/short"
: >"$dir/empty"
export SHARDMESH_DATA=$dir/text

# ---- what is wrong is said in one line -------------------------------------
refuses "unknown axis 'pp'.*dp_replicate, dp and tp" --mesh=dp=2,pp=2
refuses "size '0' of axis dp" --mesh=dp=0
refuses "axis tp has no size" --mesh=dp=2,tp
refuses "axis dp stands there twice" --mesh=dp=2,dp=2
refuses "unknown axis ''" --mesh=
refuses "a mesh of 1000000 ranks" --mesh=dp=1000,tp=1000
refuses "stepz" --stepz=3
refuses "steps.*ten|ten.*steps" --steps=ten
refuses "steps is 0; expected at least 1" --steps=0
refuses "batch is -4" --batch=-4
refuses "lr is nan" --lr=nan
refuses "expected f32, f64 or bf16" --precision=fp8
refuses "unexpected argument 'more'" more
refuses "num_attention_heads|hidden_size" --hidden=130 --heads=4
refuses "num_key_value_heads" --heads=4 --kv_heads=3
refuses "axis tp of size 3 does not divide its 4 heads" --mesh=tp=3
refuses "cannot read data file $dir/none: No such file" --data="$dir/none"
refuses "$dir is a directory" --data="$dir"
refuses "$dir/empty is empty" --data="$dir/empty"
refuses "$dir/short has 8 bytes; a sequence of 8 .*at least 9" --data="$dir/short" --seq=8
refuses "cannot write metrics file $dir/none/m" --metrics="$dir/none/m"
SHARDMESH_DATA=$dir/none refuses "cannot read data file $dir/none" --steps=1

# ---- a small run -----------------------------------------------------------
readonly small=(--hidden=32 --mlp=48 --layers=2 --heads=4 --kv_heads=2 --seq=16 --batch=6)
run "${small[@]}" --steps=7 --sample=20 --metrics="$dir/metrics"
((rc == 0)) || fail "a small run: exit code $rc: $(cat "$dir/err")"
[[ ! -s $dir/err ]] || fail "a small run writes on stderr: $(cat "$dir/err")"
for pattern in 'mesh \[dp=2, tp=2\]: 4 ranks' 'model\.layers\.\*\.mlp\.up_proj\.weight .* x 2$' \
  '^step    7/7  loss [0-9.]+ ' 'reduce_scatter' '^the model writes:$'; do
  grep -qE "$pattern" "$dir/out" || fail "no line of the output matches $pattern"
done
(($(wc -l <"$dir/metrics") == 7)) || fail "not one line of metrics a step"
grep -q $'\r' "$dir/out" && fail "control characters in a log file"
number='[0-9.e+-]+'
total='\{"count":[0-9]+,"bytes":[0-9]+\}'
for ((i = 0; i < 7; ++i)); do
  sed -n "$((i + 1))p" "$dir/metrics" | grep -qE -e "^\{\"step\":$i,\"loss\":$number,\"grad_norm\":$number,\"lr\":$number,\
\"tokens_per_s\":$number,\"step_ms\":$number,\"peak_bytes\":\[[0-9]+,[0-9]+,[0-9]+,[0-9]+\],\"collectives\":\
\{\"dp\":\{\"all_gather\":$total,.*\"reduce_scatter\":\{\"count\":3,\"bytes\":[0-9]+\}\},.*\"tp\":\{\"all_reduce\":$total\}\}\}$" ||
    fail "metrics of step $i: $(sed -n "$((i + 1))p" "$dir/metrics")"
done

# ---- user paths are seen from where `bazel run` was typed -------------------
mkdir "$dir/elsewhere"
cp "$dir/text" "$dir/elsewhere/mine"
BUILD_WORKING_DIRECTORY=$dir/elsewhere run "${small[@]}" --mesh=dp=1 --steps=1 --sample=0 --data=mine --metrics=m
((rc == 0)) || fail "a relative path: $(cat "$dir/err")"
[[ -s $dir/elsewhere/m ]] || fail "no metrics beside the user's data"

# ---- Ctrl-C ----------------------------------------------------------------
# Background jobs of a script ignore SIGINT until the program asks for it.
"$train_llama" "${small[@]}" --steps=1000000 >"$dir/interrupted" 2>"$dir/err" </dev/null &
pid=$!
for ((i = 0; i < 300; ++i)); do
  grep -qs '^step ' "$dir/interrupted" && break
  sleep 0.1
done
kill -INT "$pid"
wait "$pid"
rc=$?
((rc == 130)) || fail "Ctrl-C: exit code $rc"
[[ ! -s $dir/err ]] || fail "Ctrl-C: stderr is $(cat "$dir/err")"
grep -qE '^interrupted after step [0-9]+ of 1000000$' "$dir/interrupted" || fail "Ctrl-C is not reported"

((failures == 0))
