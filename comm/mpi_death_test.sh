#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Processes that die amid collectives, seen from outside: the others end in time with an error that
# names the dead one, and no process stays. Argument: the program of testing/mpi_victim.cc.
set -uo pipefail

readonly victim=$PWD/$1
readonly dir=${TEST_TMPDIR:?}
failures=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 TMPDIR=/tmp
# A name of its own, to find what stays.
cp "$victim" "$dir/victim_$$"

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# dies HOW TIMEOUT_MS LIMIT_S PATTERN [MPIRUN_ARGUMENT...]
dies() {
  local how=$1 timeout_ms=$2 limit=$3 pattern=$4
  shift 4
  local begin=$SECONDS
  timeout -k 5 60 mpirun -n 3 "$@" "$dir/victim_$$" "$how" "$timeout_ms" >"$dir/out" 2>&1
  local rc=$?
  ((rc != 0 || $# > 0)) || fail "$how: mpirun says that all is well"
  ((SECONDS - begin <= limit)) || fail "$how: took $((SECONDS - begin)) s"
  if [[ -n $pattern ]] && ! grep -qE "$pattern" "$dir/out"; then
    fail "$how: expected $pattern in"
    cat "$dir/out"
  fi
  for _ in $(seq 50); do
    pgrep -f "victim_$$ " >/dev/null || break
    sleep 0.1
  done
  if pgrep -f "victim_$$ " >/dev/null; then
    fail "$how: processes stay"
    pkill -9 -f "victim_$$ "
  fi
  if compgen -G "/dev/shm/*victim*" >/dev/null; then fail "$how: shared memory stays"; fi
}

# Where mpirun leaves the others alone, they find out by themselves, and say who it was.
alone=(--mca orte_abort_on_non_zero_status 0 --enable-recovery)
dies kill 60000 10 'rank [02]: UNAVAILABLE: rank 1 .process [0-9]+ on .* has ended' "${alone[@]}"
dies abort 60000 10 'rank [02]: UNAVAILABLE: rank 1 .process [0-9]+ on .* has ended' "${alone[@]}"
# Where mpirun ends them, they end.
for how in kill abort exit exit0; do dies "$how" 60000 10 ''; done
# A process that is stopped lives, and is missed.
dies stop 1500 12 'rank [02]: DEADLINE_EXCEEDED: rank [02] waited 1.5s in collective .*missing: 1'

((failures == 0)) && echo PASSED
exit $((failures > 0))
