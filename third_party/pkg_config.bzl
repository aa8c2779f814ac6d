# SPDX-License-Identifier: Apache-2.0
"""A repository of cc_library targets for libraries that the system has installed.

Each target gets its flags from pkg-config. Include directories outside the
compiler's own become links inside the repository. The library's version is a
define, so that an upgrade under /usr/include recompiles what includes it.
"""

def write_library(repository_ctx, name, linkopts, defines, include_dirs, link_prefix):
    """Returns the text of a public cc_library.

    Args:
      repository_ctx: of the repository rule.
      name: of the target.
      linkopts: list of flags.
      defines: list of NAME or NAME=VALUE.
      include_dirs: absolute paths outside the compiler's default ones.
      link_prefix: folder of the BUILD file inside the repository, "" or "a/b/".
    """
    includes = []
    for i, directory in enumerate(include_dirs):
        link = "%s_include_%d" % (name, i)
        repository_ctx.symlink(directory, link_prefix + link)
        includes.append(link)
    return "\n".join([
        "cc_library(",
        "    name = %r," % name,
        "    hdrs = glob(%r, allow_empty = True)," % [link + "/**" for link in includes] if includes else "",
        "    defines = %r," % defines,
        "    includes = %r," % includes,
        "    linkopts = %r," % linkopts,
        '    visibility = ["//visibility:public"],',
        ")",
        "",
    ])

def parse_flags(flags):
    """Sorts compiler and linker flags into (include_dirs, defines, linkopts).

    Args:
      flags: list of words.

    Returns:
      A struct with these three lists.
    """
    include_dirs = []
    defines = []
    linkopts = []
    for flag in flags:
        if flag.startswith("-I"):
            directory = flag[2:].rstrip("/")
            if directory != "/usr/include" and directory not in include_dirs:
                include_dirs.append(directory)
        elif flag.startswith("-D"):
            defines.append(flag[2:])
        elif flag.startswith("-l") or flag.startswith("-L") or flag.startswith("-Wl,") or flag == "-pthread":
            linkopts.append(flag)
    return struct(include_dirs = include_dirs, defines = defines, linkopts = linkopts)

def _words(text):
    return [word for word in text.replace("\n", " ").split(" ") if word]

def _pkg_config(repository_ctx, args):
    """Returns pkg-config's answer as a list of words, or None if it fails."""
    tool = repository_ctx.which("pkg-config")
    if not tool:
        fail("pkg-config is not installed: run ./bazelw once as root, or apt-get install pkg-config")
    result = repository_ctx.execute([tool] + args)
    return _words(result.stdout) if result.return_code == 0 else None

def _pkg_config_repository_impl(repository_ctx):
    attr = repository_ctx.attr
    version = _pkg_config(repository_ctx, ["--modversion", attr.version_of])
    if version == None:
        fail("pkg-config does not know %s: run ./bazelw once as root, or apt-get install %s and then bazel sync --configure" %
             (attr.version_of, attr.apt_package))
    version_define = "SYSTEM_%s_VERSION=%s" % (repository_ctx.name.upper(), version[0])

    packages = {}
    for label, modules in attr.targets.items():
        package, target = label[2:].split(":")
        extra = [word for word in _words(modules) if word.startswith("-")]
        names = [word for word in _words(modules) if not word.startswith("-")]
        answer = _pkg_config(repository_ctx, ["--cflags", "--libs"] + names)
        if answer == None:
            text = "# %s: pkg-config does not know %s here.\n" % (target, " ".join(names))
        else:
            flags = parse_flags(extra + answer)
            text = write_library(
                repository_ctx,
                name = target,
                linkopts = flags.linkopts,
                defines = flags.defines + [version_define],
                include_dirs = flags.include_dirs,
                link_prefix = package + "/" if package else "",
            )
        packages.setdefault(package, []).append(text)

    packages.setdefault("", [])
    for package, texts in packages.items():
        repository_ctx.file(
            (package + "/" if package else "") + "BUILD.bazel",
            'load("@rules_cc//cc:defs.bzl", "cc_library")\n\n' + "\n".join(texts),
            executable = False,
        )

pkg_config_repository = repository_rule(
    implementation = _pkg_config_repository_impl,
    attrs = {
        "apt_package": attr.string(mandatory = True, doc = "Debian packages, named in the error when they are missing."),
        "targets": attr.string_dict(mandatory = True, doc = "Label in this repository -> pkg-config modules, after extra -l flags."),
        "version_of": attr.string(mandatory = True, doc = "The module that must exist and whose version counts."),
    },
    configure = True,
    local = True,
    doc = "cc_library targets for installed libraries, through pkg-config.",
)
