#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a test program under mpirun, once with each number of processes:
#   mpirun.sh "2 3 4" PROGRAM [ARGUMENTS]
set -u
sizes=$1
shift
# Ranks would race for these files.
unset XML_OUTPUT_FILE TEST_PREMATURE_EXIT_FILE
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
# Open MPI leaves its session files where long paths break its sockets.
export TMPDIR=/tmp
failed=0
for size in $sizes; do
  echo "==== $size processes"
  mpirun -n "$size" "$@" || { echo "FAILED with $size processes"; failed=1; }
done
exit $failed
