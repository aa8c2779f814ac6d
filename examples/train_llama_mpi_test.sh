#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# train_llama as processes of mpirun: losses, norms of gradients and samples are bitwise those of
# threads, and what the ones have saved the others go on from. Argument: the binary, built with
# --config=mpi.
set -uo pipefail

readonly train_llama=$PWD/$1
readonly dir=${TEST_TMPDIR:?}
failures=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 TMPDIR=/tmp
head -c 20000 "$train_llama" | od -An -tx1 >"$dir/text"
export SHARDMESH_DATA=$dir/text
readonly small=(--steps=6 --batch=8 --seq=32 --hidden=32 --mlp=56 --layers=2 --heads=4 --kv_heads=2
  --sample=16)

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# threads NAME ARGUMENT..., processes COUNT NAME ARGUMENT...: metrics in $dir/NAME.json.
threads() {
  local name=$1
  shift
  "$train_llama" "${small[@]}" --metrics="$dir/$name.json" "$@" >"$dir/$name.out" 2>&1 ||
    { fail "$name: $*"; cat "$dir/$name.out"; }
}
processes() {
  local count=$1 name=$2
  shift 2
  mpirun -n "$count" "$train_llama" "${small[@]}" --metrics="$dir/$name.json" "$@" \
    >"$dir/$name.out" 2>&1 || { fail "$name: $*"; cat "$dir/$name.out"; }
}

# numbers NAME: what must not differ by a bit.
numbers() { grep -oE '"(step|loss|grad_norm)": ?[^,}]*' "$dir/$1.json"; }
same() {
  [[ $(numbers "$1" | wc -l) -ge 9 ]] || fail "$3: no numbers in $1"
  diff <(numbers "$1") <(numbers "$2") >"$dir/diff" || { fail "$3: numbers differ"; cat "$dir/diff"; }
}

for mesh in dp=2,tp=2 dp_replicate=2,dp=2 dp=3 tp=2; do
  count=$(($(tr ',' '\n' <<<"$mesh" | sed 's/.*=//' | paste -sd'*')))
  for precision in f32 bf16 f64; do
    threads a --mesh=$mesh --precision=$precision
    processes "$count" b --mesh=$mesh --precision=$precision
    same a b "$mesh $precision"
    diff <(tail -n 4 "$dir/a.out" | grep -vE 'MiB|time|rank') \
      <(tail -n 4 "$dir/b.out" | grep -vE 'MiB|time|rank') >/dev/null ||
      fail "$mesh $precision: samples differ"
  done
done

# Six steps at once, or three by the ones and three by the others, on another mesh.
threads whole --mesh=dp=2,tp=2 --export="$dir/whole"
processes 4 first --mesh=dp=2,tp=2 --checkpoint_dir="$dir/from_processes" --checkpoint_every=3 --steps=3
threads second --mesh=dp=2,tp=2 --checkpoint_dir="$dir/from_processes" --export="$dir/by_threads"
threads third --mesh=dp=2,tp=2 --checkpoint_dir="$dir/from_threads" --checkpoint_every=3 --steps=3
processes 4 fourth --mesh=dp=2,tp=2 --checkpoint_dir="$dir/from_threads" --export="$dir/by_processes"
processes 2 fifth --mesh=dp=2 --checkpoint_dir="$dir/from_threads" --steps=8
cmp "$dir/by_threads/model.safetensors" "$dir/by_processes/model.safetensors" ||
  fail "exports of threads and processes differ"

# Each error once, by the first process.
for backend in mpi auto; do
  mpirun -n 2 "$train_llama" --mesh=dp=4 --backend=$backend >"$dir/out" 2>&1
  (($(grep -c 'needs 4 ranks, but 2 processes' "$dir/out") == 1)) ||
    { fail "a mesh that does not fit"; cat "$dir/out"; }
done
"$train_llama" --mesh=dp=2 --backend=mpi >"$dir/out" 2>&1 && fail "--backend=mpi without a launcher"
grep -q 'mpirun -n 2' "$dir/out" || fail "no hint at mpirun"

((failures == 0)) && echo PASSED
exit $((failures > 0))
