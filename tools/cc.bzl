# SPDX-License-Identifier: Apache-2.0
"""The macros behind every C++ target of Shardmesh.

    shardmesh_cc_library(
        name = "layout",
        srcs = ["layout.cc", "internal/interner.h"],
        hdrs = ["layout.h"],
        deps = ["//base", "@com_google_absl//absl/hash"],
    )

They add three things to the plain rules:
  * Headers are found as "shardmesh/<package>/<file>.h", so that a project that
    uses Shardmesh may own a mesh/device_mesh.h itself. Headers in `srcs` have
    the same spelling. (Bazel 4 cannot hide them from the library's users; no
    other target should include them.)
  * The project's compiler flags, since a using project does not read our .bazelrc.
    `copts` are added after them (a kernel for one instruction set adds -mavx2).
  * Static linking, so that each source is compiled once (not again as -fPIC).
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

_COPTS = [
    "-std=c++20",
    "-Wall",
    "-Wextra",
    # a * b + c rounds alike in a vector body, its tail and every instruction
    # set; a kernel that wants the fused operation writes std::fma.
    "-ffp-contract=off",
]

_HEADER_ENDINGS = (".h", ".inc", ".cuh")

def _own_copts():
    # Another project's newer compiler may warn where ours does not.
    return _COPTS + (["-Werror"] if native.repository_name() == "@" else [])

def _split_headers(name, srcs, deps, testonly):
    """Moves headers out of `srcs`, into a hidden library.

    Bazel gives the include prefix to `hdrs` alone. A `srcs` made with select()
    cannot be looked into and stays as it is: keep headers out of it.

    Returns:
      (srcs, deps) without the headers and with the hidden library.
    """
    if type(srcs) != "list":
        return srcs, deps
    headers = [src for src in srcs if src.endswith(_HEADER_ENDINGS)]
    if not headers:
        return srcs, deps
    hidden = "_%s_private_headers" % name
    cc_library(
        name = hidden,
        hdrs = headers,
        copts = _own_copts(),
        include_prefix = "shardmesh",
        linkstatic = True,
        strip_include_prefix = "/",
        tags = ["manual"],
        testonly = testonly,
        visibility = ["//visibility:private"],
        deps = deps,
    )
    return [src for src in srcs if src not in headers], deps + [":" + hidden]

def shardmesh_cc_library(
        name,
        hdrs = [],
        srcs = [],
        deps = [],
        copts = [],
        testonly = False,
        linkstatic = True,
        **kwargs):
    """A cc_library with the project's include prefix and flags.

    Args:
      name: of the target.
      hdrs: public headers.
      srcs: sources, and headers for this target alone.
      deps: as of cc_library.
      copts: added to the project's.
      testonly: as of cc_library.
      linkstatic: as of cc_library; the macro's default is True.
      **kwargs: further arguments of cc_library.
    """
    srcs, deps = _split_headers(name, srcs, deps, testonly)
    cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = _own_copts() + copts,
        include_prefix = "shardmesh",
        linkstatic = linkstatic,
        strip_include_prefix = "/",
        testonly = testonly,
        deps = deps,
        **kwargs
    )

def shardmesh_cc_binary(name, srcs = [], deps = [], copts = [], testonly = False, **kwargs):
    """A cc_binary with the project's flags; headers in `srcs` get the prefix.

    Args:
      name: of the target.
      srcs: sources and headers.
      deps: as of cc_binary.
      copts: added to the project's.
      testonly: as of cc_binary.
      **kwargs: further arguments of cc_binary.
    """
    srcs, deps = _split_headers(name, srcs, deps, testonly)
    cc_binary(
        name = name,
        srcs = srcs,
        copts = _own_copts() + copts,
        testonly = testonly,
        deps = deps,
        **kwargs
    )

def shardmesh_cc_test(
        name,
        srcs = [],
        deps = [],
        copts = [],
        size = "small",
        linkstatic = True,
        **kwargs):
    """A cc_test with GoogleTest and its main, the project's flags and prefix.

    Args:
      name: of the target.
      srcs: sources and headers.
      deps: as of cc_test; GoogleTest is added.
      copts: added to the project's.
      size: as of cc_test; the macro's default is "small".
      linkstatic: as of cc_test; the macro's default is True.
      **kwargs: further arguments of cc_test.
    """
    srcs, deps = _split_headers(name, srcs, deps, True)
    cc_test(
        name = name,
        size = size,
        srcs = srcs,
        # What a test itself computes is little: a fifth of its compilation is worth more.
        copts = _own_copts() + ["-O1"] + copts,
        linkstatic = linkstatic,
        deps = deps + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )

def shardmesh_mpi_test(name, processes, srcs = [], deps = [], copts = [], size = "large", **kwargs):
    """A GoogleTest program that mpirun runs, once with each number of processes.

    Tagged `mpi`: `bazel test --config=mpi --test_tag_filters=mpi //...` runs it.

    Args:
      name: of the target.
      processes: numbers of processes.
      srcs: sources and headers.
      deps: as of cc_binary; GoogleTest is added.
      copts: added to the project's.
      size: as of sh_test; the macro's default is "large".
      **kwargs: further arguments of sh_test.
    """
    program = "_%s_program" % name
    srcs, deps = _split_headers(name, srcs, deps, True)
    cc_binary(
        name = program,
        testonly = True,
        srcs = srcs,
        copts = _own_copts() + ["-O1"] + copts,
        tags = ["manual"],
        deps = deps + ["@com_google_googletest//:gtest_main"],
    )
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tools:mpirun.sh"],
        args = [
            "'%s'" % " ".join([str(n) for n in processes]),
            "$(location :%s)" % program,
        ],
        data = [":" + program],
        tags = ["mpi"],
        **kwargs
    )

def shardmesh_cc_benchmark(name, srcs = [], deps = [], tags = [], **kwargs):
    """A Google Benchmark program: `bazel run --config=bench //package:name`.

    Tagged `benchmark` and `manual`: `bazel build //...` leaves it alone. Its
    main() is Google Benchmark's.

    Args:
      name: of the target; ends in _benchmark.
      srcs: sources and headers.
      deps: as of cc_binary; Google Benchmark is added.
      tags: further tags.
      **kwargs: further arguments of shardmesh_cc_binary.
    """
    shardmesh_cc_binary(
        name = name,
        srcs = srcs,
        tags = tags + ["benchmark", "manual"],
        testonly = True,
        deps = deps + ["@com_github_google_benchmark//:benchmark_main"],
        **kwargs
    )
