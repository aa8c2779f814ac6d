# SPDX-License-Identifier: Apache-2.0
"""@cuda: the CUDA toolkit at $CUDA_HOME, else /usr/local/cuda. Optional: see missing.bzl.

Targets: headers, cudart, cublas, nccl. `@cuda//:paths.bzl` has CUDA_HOME, ""
where there is no toolkit.
"""

load("//third_party:missing.bzl", "missing_library")

# Everything the toolkit's own headers include, and nothing of its 10,000 others.
_HEADERS = [
    "include/*.h",
    "include/*.hpp",
    "include/cccl/nv/**",
    "include/cooperative_groups/**",
    "include/crt/**",
    "include/nccl_device/**",
    "include/nv/**",
]

_LIBRARIES = {
    "cublas": "cublas",
    "cudart": "cudart",
    "nccl": "nccl",
}

def _first_existing(repository_ctx, paths):
    for path in paths:
        if repository_ctx.path(path).exists:
            return path
    return None

def _present(repository_ctx, home, lib_dir):
    repository_ctx.symlink(home + "/include", "include")
    version = ""
    for line in repository_ctx.read(home + "/include/cuda_runtime_api.h").split("\n"):
        if line.startswith("#define CUDART_VERSION"):
            version = line.split(" ")[-1].strip()
    text = "\n".join([
        "cc_library(",
        '    name = "headers",',
        "    hdrs = glob(%r, allow_empty = True)," % _HEADERS,
        "    defines = [%r]," % ("SYSTEM_CUDA_VERSION=" + version),
        '    includes = ["include"],',
        '    visibility = ["//visibility:public"],',
        ")",
        "",
    ])
    for name, library in _LIBRARIES.items():
        text += "\n".join([
            "cc_library(",
            "    name = %r," % name,
            "    linkopts = %r," % ["-L" + lib_dir, "-Wl,-rpath," + lib_dir, "-l" + library],
            '    visibility = ["//visibility:public"],',
            '    deps = [":headers"],',
            ")",
            "",
        ])
    return text

def _cuda_repository_impl(repository_ctx):
    home = repository_ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = _first_existing(repository_ctx, [home + "/bin/nvcc"])
    header = _first_existing(repository_ctx, [home + "/include/cuda_runtime_api.h"])
    lib_dir = _first_existing(repository_ctx, [home + "/lib64", home + "/lib"])
    if nvcc and header and lib_dir:
        text = _present(repository_ctx, home, lib_dir)
    else:
        home = ""
        message = "no CUDA toolkit at $CUDA_HOME or /usr/local/cuda: set --repo_env=CUDA_HOME=/path/to/cuda"
        text = "\n".join([missing_library(name, message) for name in ["headers"] + _LIBRARIES.keys()])
    repository_ctx.file("paths.bzl", "CUDA_HOME = %r\n" % home, executable = False)
    repository_ctx.file(
        "BUILD.bazel",
        'load("@rules_cc//cc:defs.bzl", "cc_library")\n\n' + text,
        executable = False,
    )

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    configure = True,
    environ = ["CUDA_HOME"],
    local = True,
    doc = "The CUDA toolkit that is installed, if any.",
)
