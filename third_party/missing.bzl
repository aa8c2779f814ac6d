# SPDX-License-Identifier: Apache-2.0
"""Targets that stand for an optional library that is not installed.

The repository loads and every target can be queried; building one that uses
the library ends with the message.
"""

def missing_library(name, message):
    """Returns the text of a cc_library whose build fails with `message`."""
    return "\n".join([
        "genrule(",
        "    name = %r," % (name + "_is_missing"),
        "    outs = [%r]," % (name + "_is_missing.h"),
        "    cmd = %r," % ("echo >&2 'ERROR: %s'; exit 1" % message.replace("$", "$$")),
        ")",
        "",
        "cc_library(",
        "    name = %r," % name,
        "    hdrs = [%r]," % (name + "_is_missing.h"),
        '    visibility = ["//visibility:public"],',
        ")",
        "",
    ])
