#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The long checks, run by hand: clang-tidy over all sources, all targets tagged
# `exhaustive`, then every test under each sanitizer. Hours on two cores.
# Without arguments it does all:
#
#   tools/nightly.sh [tidy] [exhaustive] [asan] [ubsan] [tsan]
#
# Prints a table of counts at the end, and the fuzzers' numbers of cases;
# docs/testing.md keeps those of the last runs.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
exec </dev/null

quiet=(--noshow_progress --color=no --curses=no)
failures=0
table=()

# tests NAME ARGUMENT...: runs `bazelw test ARGUMENT...` and counts test targets.
tests() {
  local name=$1 log rc ok bad begin=$SECONDS
  shift
  printf '=== %s\n' "$name"
  log=$(mktemp)
  ./bazelw test --keep_going "${quiet[@]}" "$@" 2>&1 | tee "$log"
  rc=${PIPESTATUS[0]}
  ok=$(grep -cE '^//[^ ]+ +(\(cached\) )?PASSED' "$log")
  bad=$(grep -cE '^//[^ ]+ +(\(cached\) )?(FAILED|FLAKY|TIMEOUT|NO STATUS|INCOMPLETE|REMOTE FAILURE)' "$log")
  rm -f "$log"
  # A build that failed, or a run of nothing, is a failure too.
  ((rc == 0 && ok > 0)) || ((bad > 0)) || bad=1
  failures=$((failures + bad))
  table+=("$(printf '%-12s %4d passed %4d failed %7d s' "$name" "$ok" "$bad" "$((SECONDS - begin))")")
}

# Wildcards of a test run leave out what is tagged `manual`; those of a query do not.
exhaustive() {
  local targets
  targets=$(./bazelw query "${quiet[@]}" 'attr(tags, "\bexhaustive\b", kind(".*_test rule", //...))') || targets=
  # Never from the cache: the point is to run.
  # shellcheck disable=SC2086  # one argument per target
  tests exhaustive --test_tag_filters= --cache_test_results=no --test_output=all $targets
}

checks=("$@")
((${#checks[@]})) || checks=(tidy exhaustive asan ubsan tsan)
for check in "${checks[@]}"; do
  case $check in
    tidy)
      if tools/clang_tidy.sh; then
        table+=("tidy         passed")
      else
        failures=$((failures + 1))
        table+=("tidy         FAILED")
      fi
      ;;
    exhaustive) exhaustive ;;
    asan | ubsan | tsan) tests "$check" --config="$check" //... ;;
    *)
      echo "unknown check '$check'; expected tidy, exhaustive, asan, ubsan or tsan"
      exit 1
      ;;
  esac
done

printf '\ncommit %s, %s, %d cores\n' "$(git rev-parse --short HEAD)" "$(date +%F)" "$(nproc)"
printf '%s\n' "${table[@]}"
((failures == 0))
