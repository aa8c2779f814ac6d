# SPDX-License-Identifier: Apache-2.0
"""The order of the layers, and the test that the build graph keeps to it.

A layer is a top-level folder. What its targets depend on, directly or not, may
lie in the layers that the table gives it and in nothing else of this workspace
(tools/ holds build settings and belongs to no layer).
"""

# Lowest first. `targets`: what the layer's users see, its facade and programs;
# empty while the folder has no BUILD.bazel. `may_use`: all layers that its
# transitive dependencies may be in; a full label allows this one target.
LAYERS = [
    struct(name = "base", targets = ["//base"], may_use = []),
    struct(name = "tensor", targets = ["//tensor"], may_use = ["base"]),
    struct(name = "comm", targets = ["//comm"], may_use = ["base", "tensor"]),
    struct(name = "mesh", targets = ["//mesh"], may_use = ["base", "tensor", "comm"]),
    # Planning for a large mesh needs its shape, never a communicator or a tensor.
    struct(name = "placement", targets = ["//placement"], may_use = ["base", "//mesh:mesh_shape"]),
    struct(name = "dtensor", targets = ["//dtensor"], may_use = ["base", "tensor", "comm", "mesh", "placement"]),
    struct(name = "state", targets = ["//state"], may_use = ["base", "tensor", "comm", "mesh", "placement", "dtensor"]),
    struct(name = "checkpoint", targets = ["//checkpoint"], may_use = ["base", "tensor", "comm", "mesh", "placement", "dtensor", "state"]),
    # optim knows parameters but no modules; fsdp and tp do not know each other.
    struct(name = "nn", targets = ["//nn"], may_use = ["base", "tensor", "comm", "mesh", "placement", "dtensor", "state", "checkpoint"]),
    struct(name = "optim", targets = ["//optim"], may_use = ["base", "tensor", "comm", "mesh", "placement", "dtensor", "state", "checkpoint", "//nn:parameter"]),
    struct(name = "fsdp", targets = ["//fsdp"], may_use = ["base", "tensor", "comm", "mesh", "placement", "dtensor", "state", "checkpoint", "nn", "optim"]),
    struct(name = "tp", targets = ["//tp"], may_use = ["base", "tensor", "comm", "mesh", "placement", "dtensor", "state", "checkpoint", "nn", "optim"]),
    struct(name = "models", targets = ["//models/gpt2", "//models/llama"], may_use = ["base", "tensor", "comm", "mesh", "placement", "dtensor", "state", "checkpoint", "nn", "optim", "fsdp", "tp"]),
    struct(name = "examples", targets = ["//examples:train_llama"], may_use = ["//:shardmesh", "base", "tensor", "comm", "mesh", "placement", "dtensor", "state", "checkpoint", "nn", "optim", "fsdp", "tp", "models"]),
]

def _pattern(layer):
    """A regular expression for the labels that may be among `layer`'s dependencies."""
    packages = [layer.name, "tools"] + [name for name in layer.may_use if not name.startswith("//")]
    patterns = ["^//(%s)[/:]" % "|".join(packages)]
    for label in layer.may_use:
        if label.startswith("//"):
            package, target = label.split(":")
            patterns.append("^%s:(%s|_%s_private_headers)$$" % (package, target, target))
    return "|".join(patterns)

def layers_test(name):
    """A test that fails where a dependency points up, with the label it reaches.

    Args:
      name: of the test.
    """
    args = []
    data = ["//:WORKSPACE"]
    for layer in LAYERS:
        if not layer.targets:
            args += [layer.name, "''", "''"]
            continue
        query = "%s_%s_dependencies" % (name, layer.name)
        native.genquery(
            name = query,
            expression = "filter('^//', kind(rule, deps(%s)))" % " + ".join(layer.targets),
            scope = layer.targets,
            testonly = True,
        )
        args += [layer.name, "'%s'" % _pattern(layer), "$(rootpath :%s)" % query]
        data.append(":" + query)
    native.sh_test(
        name = name,
        size = "small",
        srcs = ["layers_test.sh"],
        args = args,
        data = data,
        # Looks at the source tree for folders that the table does not have.
        tags = ["external", "local"],
    )
