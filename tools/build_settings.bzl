# SPDX-License-Identifier: Apache-2.0
"""A switch on Bazel's command line: `--//tools:mpi`, from elsewhere `--@shardmesh//tools:mpi`."""

def _switch_impl(_ctx):
    return []

switch = rule(
    implementation = _switch_impl,
    build_setting = config.bool(flag = True),
    doc = "A boolean build setting.",
)
