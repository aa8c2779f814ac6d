# SPDX-License-Identifier: Apache-2.0
"""@mpi//:mpi, from Open MPI's mpicc. Optional: see missing.bzl."""

load("//third_party:missing.bzl", "missing_library")
load("//third_party:pkg_config.bzl", "parse_flags", "write_library")

def _mpi_repository_impl(repository_ctx):
    mpicc = repository_ctx.which("mpicc")
    flags = None
    version = ""
    if mpicc:
        showme = repository_ctx.execute([mpicc, "--showme"])
        showme_version = repository_ctx.execute([mpicc, "--showme:version"])
        if showme.return_code == 0 and showme_version.return_code == 0:
            flags = parse_flags([word for word in showme.stdout.replace("\n", " ").split(" ") if word])
            words = showme_version.stdout.strip().split(" ")
            version = [w for w in words if w[:1].isdigit()][0]
    if flags == None:
        text = missing_library("mpi", "MPI is not installed (no mpicc that answers --showme): " +
                                      "apt-get install libopenmpi-dev, then bazel sync --configure")
    else:
        text = write_library(
            repository_ctx,
            name = "mpi",
            linkopts = flags.linkopts,
            # The C++ bindings are gone from MPI 3; without this their header is read.
            defines = flags.defines + ["OMPI_SKIP_MPICXX", "SYSTEM_MPI_VERSION=" + version],
            include_dirs = flags.include_dirs,
            link_prefix = "",
        )
    repository_ctx.file(
        "BUILD.bazel",
        'load("@rules_cc//cc:defs.bzl", "cc_library")\n\n' + text,
        executable = False,
    )

mpi_repository = repository_rule(
    implementation = _mpi_repository_impl,
    configure = True,
    local = True,
    doc = "The system's Open MPI.",
)
