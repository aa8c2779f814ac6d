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
refuses "axis dp appears twice" --mesh=dp=2,dp=2
refuses "unknown axis ''" --mesh=
refuses "a mesh of 1000000 ranks" --mesh=dp=1000,tp=1000
refuses "stepz" --stepz=3
refuses "steps is 'ten'; expected an integer" --steps=ten
refuses "steps is 0; expected at least 1" --steps=0
refuses "batch is -4" --batch=-4
refuses "lr is 'nan'; expected a finite number" --lr=nan
refuses "lr is 1e\\+308; expected 0 to 1e\\+06" --lr=1e308
refuses "seq is 9223372036854775807; expected 1 to" --seq=9223372036854775807
refuses "seq is -9223372036854775808; expected 1 to" --seq=-9223372036854775808
refuses "batch is 9223372036854775807; expected 1 to" --batch=9223372036854775807
refuses "batch 2147483647 x seq 2147483647 x width .* is too large" --batch=2147483647 --seq=2147483647
refuses "mlp is 9223372036854775807; expected 1 to" --mlp=9223372036854775807
refuses "heads is 0; expected 1 to" --heads=0
refuses "sample is 9223372036854775807; expected 0 to" --sample=9223372036854775807
refuses "temperature is 'inf'" --temperature=inf
refuses "unknown flag '--.x1b\\[2J.nstepz" $'--\e[2J\nstepz'
refuses "unknown axis '.x1b\\[2J.n'" $'--mesh=\e[2J\n=2'
refuses "data file '/none/.x1b\\[2J.n'" $'--data=/none/\e[2J\n'
refuses "^.{1,600}$" --mesh="$(head -c 100000 /dev/zero | tr '\0' x)"
refuses "expected f32, f64 or bf16" --precision=fp8
refuses "unexpected argument 'more'" more
refuses "hidden is 130; expected a multiple of 2 x heads, which is 8" --hidden=130 --heads=4
refuses "heads is 4; expected a multiple of kv_heads, which is 3" --heads=4 --kv_heads=3
refuses "axis tp of size 3 does not divide its 4 heads" --mesh=tp=3
refuses "data file '$dir/none': cannot open: No such file" --data="$dir/none"
refuses "data file '$dir': a directory" --data="$dir"
refuses "data file '/dev/zero': not a regular file" --data=/dev/zero
mkfifo "$dir/pipe"
refuses "data file '$dir/pipe': not a regular file" --data="$dir/pipe"
refuses "data file '$dir/empty': it is empty" --data="$dir/empty"
refuses "data file '$dir/short' has 8 bytes; a sequence of 8 .*at least 9" --data="$dir/short" --seq=8
refuses "cannot write metrics file '$dir/none/m': No such file" --metrics="$dir/none/m"
refuses "cannot write metrics file '$dir/pipe': nobody reads this pipe" --metrics="$dir/pipe"
refuses "metrics file '$dir/text' is the data file" --metrics="$dir/text"
SHARDMESH_DATA=$dir/none refuses "data file '$dir/none': cannot open" --steps=1

# ---- help is no failure ----------------------------------------------------
run --help
((rc == 0)) || fail "--help: exit code $rc"
[[ ! -s $dir/err ]] || fail "--help: stderr is $(cat "$dir/err")"
for flag in mesh=dp=2,tp=2 lr=0.003 sequence_parallel; do
  grep -q -e "^  --$flag " "$dir/out" || fail "--help does not show --$flag"
done

# ---- a small run -----------------------------------------------------------
readonly small=(--hidden=32 --mlp=48 --layers=2 --heads=4 --kv_heads=2 --seq=16 --batch=6)
run "${small[@]}" --steps=7 --sample=20 --metrics="$dir/metrics"
((rc == 0)) || fail "a small run: exit code $rc: $(cat "$dir/err")"
[[ ! -s $dir/err ]] || fail "a small run writes on stderr: $(cat "$dir/err")"
for pattern in 'mesh \[dp=2, tp=2\]: 4 ranks' 'model\.layers\.\*\.mlp\.up_proj\.weight .* x 2$' \
  '^step    7/7  loss [0-9.]+ ' 'reduce_scatter' '^the model writes:$'; do
  grep -qE "$pattern" "$dir/out" || fail "no line of the output matches $pattern"
done
(($(wc -l <"$dir/metrics") == 7)) || fail "not one line of metrics per step"
grep -q $'\r' "$dir/out" && fail "control characters in a log file"
number='[0-9.e+-]+'
total='\{"count":[0-9]+,"bytes":[0-9]+\}'
# The first forward compares digests of the replicas along tp.
replicas='"all_gather":\{"count":1,"bytes":8\},'
for ((i = 0; i < 7; ++i)); do
  ((i == 0)) || replicas=
  sed -n "$((i + 1))p" "$dir/metrics" | grep -qE -e "^\{\"step\":$i,\"loss\":$number,\"grad_norm\":$number,\"lr\":$number,\
\"tokens_per_s\":$number,\"step_ms\":$number,\"peak_bytes\":\[[0-9]+,[0-9]+,[0-9]+,[0-9]+\],\"collectives\":\
\{\"dp\":\{\"all_gather\":$total,.*\"reduce_scatter\":\{\"count\":3,\"bytes\":[0-9]+\}\},.*\"tp\":\{$replicas\"all_reduce\":$total\}\}\}$" ||
    fail "metrics of step $i: $(sed -n "$((i + 1))p" "$dir/metrics")"
done

# ---- user paths are seen from where `bazel run` was typed -------------------
mkdir "$dir/elsewhere"
cp "$dir/text" "$dir/elsewhere/mine"
BUILD_WORKING_DIRECTORY=$dir/elsewhere run "${small[@]}" --mesh=dp=1 --steps=1 --sample=0 --data=mine --metrics=m
((rc == 0)) || fail "a relative path: $(cat "$dir/err")"
[[ -s $dir/elsewhere/m ]] || fail "no metrics beside the user's data"

# ---- what cannot be written is said, and is a failure -----------------------
# says PATTERN: the last run ended with 1 and one line on stderr that matches.
says() {
  ((rc == 1)) || fail "$1: exit code $rc"
  (($(wc -l <"$dir/err") == 1)) && grep -qE -e "$1" "$dir/err" || fail "$1: stderr is $(cat "$dir/err")"
}
readonly short=("${small[@]}" --mesh=dp=2 --steps=3 --sample=0)
"$train_llama" "${short[@]}" >/dev/full 2>"$dir/err" </dev/null
rc=$?
says "cannot write the report: No space left on device"
"$train_llama" --help >/dev/full 2>"$dir/err" </dev/null
rc=$?
says "cannot write to stdout: No space left on device"
"$train_llama" "${short[@]}" >&- 2>"$dir/err" </dev/null
rc=$?
says "cannot write the report: Bad file descriptor"
# The metrics must not end in what was opened in place of stdout.
"$train_llama" "${short[@]}" --metrics="$dir/m" >&- 2>"$dir/err" </dev/null
grep -q mesh "$dir/m" && fail "the report is in the metrics file"
"$train_llama" "${short[@]}" 2>"$dir/err" </dev/null | true
rc=${PIPESTATUS[0]}
says "cannot write the report: Broken pipe"
run "${short[@]}" --metrics=/dev/full
says "cannot write metrics file '/dev/full': No space left on device"
# A limit of 1024 bytes is a full disk: whole lines or nothing. (The thread sanitizer maps a file that
# is larger.)
if [[ -z ${TSAN_OPTIONS-} ]]; then
  (ulimit -f 1 && exec "$train_llama" "${short[@]}" --steps=40 --metrics="$dir/m" 2>"$dir/err" </dev/null | cat >/dev/null
    exit "${PIPESTATUS[0]}")
  rc=$?
  says "cannot write metrics file '$dir/m': File too large"
  [[ -s $dir/m && $(tail -c 1 "$dir/m" | od -An -tx1) == " 0a" ]] || fail "half a line of metrics"
fi

# ---- a loss that is not finite ---------------------------------------------
run "${short[@]}" --steps=30 --lr=1e6 --warmup=0 --metrics="$dir/m"
says "training stops at step [0-9]+ of 30: the .* \(learning rate there: "
tail -n 1 "$dir/m" | grep -q null || fail "the metrics do not show the step that is not finite"

# ---- signals ---------------------------------------------------------------
# Background jobs of a script ignore SIGINT until the program asks for it.
for signal in INT TERM HUP; do
  rm -f "$dir/interrupted"  # The loop below must not see the steps of the program before.
  "$train_llama" "${small[@]}" --steps=1000000 >"$dir/interrupted" 2>"$dir/err" </dev/null &
  pid=$!
  for ((i = 0; i < 300; ++i)); do
    grep -qs '^step ' "$dir/interrupted" && break
    sleep 0.1
  done
  kill "-$signal" "$pid"
  wait "$pid"
  rc=$?
  ((rc == 128 + $(kill -l "$signal"))) || fail "SIG$signal: exit code $rc"
  [[ ! -s $dir/err ]] || fail "SIG$signal: stderr is $(cat "$dir/err")"
  grep -qE "^interrupted by SIG$signal after step [0-9]+ of 1000000$" "$dir/interrupted" ||
    fail "SIG$signal is not reported"
done

((failures == 0))
