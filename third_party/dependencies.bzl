# SPDX-License-Identifier: Apache-2.0
"""All external repositories of Shardmesh, behind one call.

    load("@shardmesh//third_party:dependencies.bzl", "shardmesh_dependencies")
    shardmesh_dependencies()

Every repository is declared only where the caller has not declared one of that
name before: to build a dependency from source, declare it first. The labels
are the upstream ones, so that the source build's labels fit. No repository
touches the network.
"""

load("//third_party:abseil.bzl", "ABSEIL_TARGETS")
load("//third_party:cuda.bzl", "cuda_repository")
load("//third_party:mpi.bzl", "mpi_repository")
load("//third_party:pkg_config.bzl", "pkg_config_repository")
load("//third_party:shims.bzl", "remote_coverage_tools_shim", "rules_cc_shim", "rules_java_shim")

def _declare(rule, name, **kwargs):
    if not native.existing_rule(name):
        rule(name = name, **kwargs)

def shardmesh_dependencies():
    """Declares what Shardmesh needs and the caller has not declared yet."""

    # Names that Bazel itself would download.
    _declare(rules_cc_shim, "rules_cc")
    _declare(rules_java_shim, "rules_java")
    _declare(remote_coverage_tools_shim, "remote_coverage_tools")

    # System libraries.
    _declare(
        pkg_config_repository,
        "com_google_absl",
        apt_package = "libabsl-dev",
        targets = ABSEIL_TARGETS,
        version_of = "absl_base",
    )
    _declare(
        pkg_config_repository,
        "com_google_googletest",
        apt_package = "libgtest-dev libgmock-dev",
        targets = {
            "//:gtest": "gmock",
            "//:gtest_main": "gmock_main",
        },
        version_of = "gtest",
    )
    _declare(
        pkg_config_repository,
        "com_github_google_benchmark",
        apt_package = "libbenchmark-dev",
        targets = {
            "//:benchmark": "benchmark",
            "//:benchmark_main": "-lbenchmark_main benchmark",
        },
        version_of = "benchmark",
    )
    _declare(
        pkg_config_repository,
        "openblas",
        apt_package = "libopenblas-dev",
        targets = {"//:openblas": "openblas"},
        version_of = "openblas",
    )
    _declare(
        pkg_config_repository,
        "nlohmann_json",
        apt_package = "nlohmann-json3-dev",
        targets = {"//:json": "nlohmann_json"},
        version_of = "nlohmann_json",
    )
    _declare(
        pkg_config_repository,
        "xxhash",
        apt_package = "libxxhash-dev",
        targets = {"//:xxhash": "libxxhash"},
        version_of = "libxxhash",
    )

    # Optional: where they are missing, only a target that uses them fails.
    _declare(mpi_repository, "mpi")
    _declare(cuda_repository, "cuda")
