# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for repositories that Bazel would otherwise download.

Bazel 4.2 loads its C++ and Java rules, and for every test its coverage tools,
from these repositories, used or not. The rules are also built in, so a
re-export is enough; the coverage tools are never run.
"""

_CC_RULES = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_proto_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
    "fdo_prefetch_hints",
    "fdo_profile",
    "objc_import",
    "objc_library",
]

_JAVA_RULES = [
    "java_binary",
    "java_import",
    "java_library",
    "java_lite_proto_library",
    "java_package_configuration",
    "java_plugin",
    "java_proto_library",
    "java_runtime",
    "java_test",
    "java_toolchain",
]

def _re_export(rules):
    return "".join(["%s = native.%s\n" % (rule, rule) for rule in rules])

def _write_files(repository_ctx, files):
    for path, content in files.items():
        repository_ctx.file(path, content, executable = False)

def _rules_cc_shim_impl(repository_ctx):
    _write_files(repository_ctx, {
        "BUILD.bazel": "",
        "cc/BUILD.bazel": "",
        "cc/defs.bzl": _re_export(_CC_RULES),
    })

def _rules_java_shim_impl(repository_ctx):
    _write_files(repository_ctx, {
        "BUILD.bazel": "",
        "java/BUILD.bazel": "",
        "java/defs.bzl": _re_export(_JAVA_RULES),
    })

def _remote_coverage_tools_shim_impl(repository_ctx):
    _write_files(repository_ctx, {
        "BUILD.bazel": "\n".join([
            'filegroup(name = "%s", visibility = ["//visibility:public"])' % name
            for name in ["coverage_report_generator", "lcov_merger"]
        ]) + "\n",
    })

rules_cc_shim = repository_rule(
    implementation = _rules_cc_shim_impl,
    doc = "@rules_cc: re-exports the built-in C++ rules from cc/defs.bzl.",
)

rules_java_shim = repository_rule(
    implementation = _rules_java_shim_impl,
    doc = "@rules_java: re-exports the built-in Java rules from java/defs.bzl.",
)

remote_coverage_tools_shim = repository_rule(
    implementation = _remote_coverage_tools_shim_impl,
    doc = "@remote_coverage_tools: the two targets that every test names.",
)
