#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Several hosts on one machine: network namespaces that a bridge joins, one or two ranks in each,
# over TCP. The numbers are those of threads, also where a link is slow; a link that is cut and a
# host that goes away end all ranks in time, with an error that says so.
# Arguments: train_llama and comm/testing/mpi_victim.cc, built with --config=mpi. Needs root and a
# kernel that allows it; says SKIPPED where that is not so.
set -uo pipefail

readonly train_llama=$PWD/$1 victim=$PWD/$2
readonly dir=${TEST_TMPDIR:?}
generation=0
session=/nonexistent
id=$$
failures=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 TMPDIR=/tmp
PATH=$PATH:/usr/sbin:/sbin
head -c 20000 "$train_llama" | od -An -tx1 >"$dir/text"
export SHARDMESH_DATA=$dir/text

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

hosts_down() {
  for ((h = 1; h <= 4; ++h)); do
    ip netns pids "sm$id-$h" 2>/dev/null | xargs -r kill -9 2>/dev/null
    ip netns del "sm$id-$h" 2>/dev/null
  done
  ip link del "smb$id" 2>/dev/null
  rm -rf "$session"
}
trap hosts_down EXIT

# hosts_up COUNT: host h has the address 10.77.0.h.
hosts_up() {
  hosts_down
  id=$$g$((++generation))  # Names are free only when the last process of a namespace is gone.
  session=$(mktemp -d /tmp/smXXXXXX)  # Long paths break Open MPI's sockets.
  ip link add "smb$id" type bridge && ip link set "smb$id" up || return 1
  for ((h = 1; h <= $1; ++h)); do
    ip netns add "sm$id-$h" && ip link add "v$id-$h" type veth peer name e0 netns "sm$id-$h" &&
      ip link set "v$id-$h" master "smb$id" up && ip -n "sm$id-$h" addr add "10.77.0.$h/24" dev e0 &&
      ip -n "sm$id-$h" link set e0 up && ip -n "sm$id-$h" link set lo up || return 1
  done
}

# on_hosts COUNT RANKS_EACH PROGRAM [ARGUMENT]...
on_hosts() {
  local count=$1 each=$2 list=
  shift 2
  cat >"$dir/agent" <<A
#!/bin/bash
host=\$1
shift
exec ip netns exec sm$id-\${host##*.} unshare --uts /bin/sh -c "hostname host\${host##*.}; \$*"
A
  chmod +x "$dir/agent"
  for ((h = 1; h <= count; ++h)); do list+="${list:+,}10.77.0.$h:$each"; done
  # Each with a name of its own, or their daemons would race for the same directory.
  # shellcheck disable=SC2016
  ip netns exec "sm$id-1" unshare --uts sh -c 'hostname host1; exec "$@"' sh \
    timeout -k 5 120 mpirun --mca plm_rsh_agent "$dir/agent" \
    --mca orte_tmpdir_base "$session" --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 \
    -host "$list" -n $((count * each)) "$@"
}

hosts_up 2 2>"$dir/err" || { echo "SKIPPED: no network namespaces here: $(cat "$dir/err")"; exit 0; }

readonly small=(--steps=5 --batch=8 --seq=32 --hidden=32 --mlp=56 --layers=2 --heads=4 --kv_heads=2
  --sample=0 --mesh=dp=2,tp=2)
numbers() { grep -oE '"(step|loss|grad_norm)": ?[^,}]*' "$dir/$1.json"; }
"$train_llama" "${small[@]}" --metrics="$dir/threads.json" >/dev/null || fail "threads"
same() {
  [[ $(numbers "$1" | wc -l) -ge 9 ]] || fail "$1: no numbers"
  diff <(numbers threads) <(numbers "$1") || fail "$1: numbers differ"
}

on_hosts 2 2 "$train_llama" "${small[@]}" --metrics="$dir/two.json" >"$dir/out" 2>&1 ||
  { fail "two hosts"; cat "$dir/out"; }
same two
if tc qdisc add dev "v$id-2" root netem delay 20ms 2>"$dir/err"; then
  begin=$SECONDS
  on_hosts 2 2 "$train_llama" "${small[@]}" --metrics="$dir/slow.json" >"$dir/out" 2>&1 ||
    { fail "a slow link"; cat "$dir/out"; }
  same slow
  ((SECONDS - begin >= 2)) || fail "the link was not slow"
else
  echo "no slow link: $(cat "$dir/err")"
fi

# cut SECONDS_AFTER_START COMMAND...: while ranks work; they wait 3 s for each other, and may take 5
# more to end.
cut() {
  local name=$1 begin
  shift
  on_hosts 2 2 "$victim" none 3000 >"$dir/out" 2>&1 &
  local mpirun=$!
  for _ in $(seq 300); do
    grep -q running "$dir/out" && break
    sleep 0.1
  done
  "$@"
  begin=$SECONDS
  for _ in $(seq 100); do
    pgrep -f "^$victim none" >/dev/null || break
    sleep 0.1
  done
  if pgrep -f "^$victim none" >/dev/null; then
    fail "$name: ranks still run after $((SECONDS - begin)) s"
    cat "$dir/out"
  fi
  ((SECONDS - begin <= 9)) || fail "$name: took $((SECONDS - begin)) s"
  kill -9 $mpirun 2>/dev/null
  wait $mpirun 2>/dev/null
  # Or mpirun, which may notice first that its own daemon is gone, and ends all.
  grep -qE "rank [01]: (DEADLINE_EXCEEDED|UNAVAILABLE): rank|ORTE" "$dir/out" ||
    { fail "$name: no rank says what happened:"; cat "$dir/out"; }
}
hosts_up 2 && cut "a link that is cut" ip link set "v$id-2" down
lose_host() {
  ip link set "v$id-2" down
  ip netns pids "sm$id-2" | xargs -r kill -9
}
hosts_up 2 && cut "a host that goes away" lose_host

hosts_up 4 || fail "four hosts"
on_hosts 4 1 "$train_llama" "${small[@]}" --metrics="$dir/four.json" >"$dir/out" 2>&1 ||
  { fail "four hosts"; cat "$dir/out"; }
same four

((failures == 0)) && echo PASSED
exit $((failures > 0))
