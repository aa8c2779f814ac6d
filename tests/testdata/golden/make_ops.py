# SPDX-License-Identifier: Apache-2.0
"""Writes ops/cases.json and ops/tensors.safetensors: what PyTorch computes for one small case after another.

Each case: op (PyTorch's name), attrs, and tensors "<id>/<name>": inputs, outputs, and for differentiable cases
"<id>/grad_<output>" (the upstream gradient) and "<id>/grad_<input>". Floating-point values are float64 throughout;
inputs are exact in float32, so that one file serves both. Extents are prime, one or zero.

    pip install torch==2.15.0 safetensors==0.* ; python make_ops.py
"""
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(20261129)
torch.set_num_threads(1)
INF, NAN = math.inf, math.nan
cases, tensors, counts = [], {}, {}


def normal(*shape):
    return torch.randn(shape).double()


def positive(*shape):
    return (torch.rand(shape) * 3 + 0.1).float().double()


def unit(*shape):                              # strictly inside (-1, 1)
    return (torch.rand(shape) * 1.8 - 0.9).float().double()


def ints(low, high, *shape):
    return torch.randint(low, high, shape)


def case(op, fn, grad=None, attrs=None, note=None, **inputs):
    """fn(**inputs) -> tensor or tuple. grad: names to differentiate (default: every floating-point input)."""
    index = counts[op] = counts.get(op, -1) + 1
    key = f"{op}/{index}"
    if grad is None:
        grad = [n for n, t in inputs.items() if t.is_floating_point()]
    leaves = {n: t.clone().requires_grad_(n in grad) for n, t in inputs.items()}
    result = fn(**leaves)
    result = result if isinstance(result, (tuple, list)) else (result,)
    names = ["out"] if len(result) == 1 else [f"out{i}" for i in range(len(result))]
    for n, t in inputs.items():
        tensors[f"{key}/{n}"] = t
    upstream = {}
    for n, t in zip(names, result):
        tensors[f"{key}/{n}"] = t.detach().clone().contiguous()
        if t.requires_grad:
            upstream[n] = torch.randn(t.shape).double()
            tensors[f"{key}/grad_{n}"] = upstream[n]
    if grad:
        differentiable = [t for t in result if t.requires_grad]
        torch.autograd.backward(differentiable, [upstream[n] for n, t in zip(names, result) if t.requires_grad])
        for n in grad:
            g = leaves[n].grad
            tensors[f"{key}/grad_{n}"] = (torch.zeros_like(leaves[n]) if g is None else g).detach().contiguous()
    entry = dict(id=key, op=op, inputs=list(inputs), outputs=names, differentiable=list(grad))
    if attrs:
        entry["attrs"] = attrs
    if note:
        entry["note"] = note
    cases.append(entry)


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 1e-30, -1e-30, 88.5, -104.0, INF, -INF, NAN]).double()

# ---- pointwise, one operand -----------------------------------------------------------------------------------------
anywhere = ["neg", "abs", "exp", "expm1", "sin", "cos", "tanh", "sigmoid", "erf", "square", "sign", "floor", "ceil", "round", "trunc"]
for name in anywhere:
    case(name, lambda x, f=getattr(torch, name): f(x), x=normal(3, 5))
    case(name, lambda x, f=getattr(torch, name): f(x), x=SPECIAL, grad=[], note="special values")
case("round", torch.round, grad=[], input=torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5]).double(), note="ties go to even")
for name in ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"]:
    case(name, lambda x, f=getattr(torch, name): f(x), x=positive(3, 5))
    case(name, lambda x, f=getattr(torch, name): f(x), x=SPECIAL, grad=[], note="special values")
for name in ["isnan", "isinf", "isfinite", "logical_not"]:
    case(name, lambda x, f=getattr(torch, name): f(x), x=SPECIAL, grad=[])
case("relu", F.relu, input=torch.cat([normal(7), torch.zeros(2).double()]), note="gradient at zero is zero")
case("leaky_relu", lambda x: F.leaky_relu(x, 0.1), attrs=dict(negative_slope=0.1), x=normal(3, 5))
case("elu", lambda x: F.elu(x, 0.7), attrs=dict(alpha=0.7), x=normal(3, 5))
case("silu", F.silu, input=normal(3, 5))
case("gelu", lambda x: F.gelu(x), attrs=dict(approximate="none"), x=normal(3, 5))
case("gelu", lambda x: F.gelu(x, approximate="tanh"), attrs=dict(approximate="tanh"), x=normal(3, 5))
case("softplus", lambda x: F.softplus(x), attrs=dict(beta=1, threshold=20), x=torch.cat([normal(5), torch.tensor([19.0, 21.0, -40.0]).double()]))
case("clamp", lambda x: x.clamp(-0.5, 0.7), attrs=dict(min=-0.5, max=0.7), x=normal(3, 7))
case("clamp", lambda x: x.clamp(min=0.25), attrs=dict(min=0.25), x=torch.tensor([0.25, 0.1, 0.3]).double(), note="gradient passes where x == min")
case("pow_scalar", lambda x: x ** 3, attrs=dict(exponent=3), x=normal(3, 5))
case("pow_scalar", lambda x: x ** -0.5, attrs=dict(exponent=-0.5), x=positive(3, 5))
case("pow_scalar", lambda x: x ** 2, attrs=dict(exponent=2), x=torch.tensor([0.0, -1.0, 2.0]).double())
for name, dtype in [("i32", torch.int32), ("i64", torch.int64), ("u8", torch.uint8), ("bool", torch.bool), ("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)]:
    case("cast", lambda x, d=dtype: x.to(d), grad=[], attrs=dict(dtype=name), x=torch.tensor([0.0, 1.0, 1.75, 2.5, 3.0078125, 100.3, 250.0]).double())
case("cast", lambda x: x.to(torch.bfloat16), grad=[], attrs=dict(dtype="bf16"), x=torch.tensor([1.00390625, 1.01171875, 3.4e38, -0.0, INF, NAN]).double(), note="round to nearest even")

# ---- pointwise, two operands, with broadcasting ---------------------------------------------------------------------
for name in ["add", "sub", "mul", "div"]:
    f = getattr(torch, name)
    case(name, lambda a, b, f=f: f(a, b), a=normal(3, 5), b=positive(3, 5))
    case(name, lambda a, b, f=f: f(a, b), a=normal(2, 1, 5), b=positive(3, 1), note="both operands broadcast")
    case(name, lambda a, b, f=f: f(a, b), a=normal(3, 5), b=positive(), note="rank 0")
    case(name, lambda a, b, f=f: f(a, b), a=normal(0, 5), b=positive(5), note="empty")
case("add", lambda a, b: torch.add(a, b, alpha=-2.5), attrs=dict(alpha=-2.5), a=normal(3, 5), b=normal(3, 5))
for name in ["maximum", "minimum"]:
    f = getattr(torch, name)
    case(name, lambda a, b, f=f: f(a, b), a=normal(3, 5), b=normal(5))
    case(name, lambda a, b, f=f: f(a, b), a=torch.tensor([1.0, 2.0, 3.0]).double(), b=torch.tensor([1.0, 3.0, 2.0]).double(), note="ties share the gradient equally")
    case(name, lambda a, b, f=f: f(a, b), grad=[], a=SPECIAL, b=torch.zeros(15).double(), note="nan wins")
case("pow", torch.pow, input=positive(3, 5), exponent=normal(3, 5))
case("atan2", torch.atan2, input=normal(3, 5), other=normal(3, 5))
for name, args in [("remainder", ([7, -7, 7, -7], [3, 3, -3, -3])), ("fmod", ([7, -7, 7, -7], [3, 3, -3, -3])), ("floor_divide", ([7, -7, 7, -7], [3, 3, -3, -3]))]:
    case(name, lambda a, b, f=getattr(torch, name): f(a, b), grad=[], a=torch.tensor(args[0]), b=torch.tensor(args[1]))
    case(name, lambda a, b, f=getattr(torch, name): f(a, b), grad=[], a=torch.tensor(args[0]).double() + 0.5, b=torch.tensor(args[1]).double())
for name in ["eq", "ne", "lt", "le", "gt", "ge"]:
    case(name, lambda a, b, f=getattr(torch, name): f(a, b), grad=[], a=torch.tensor([1.0, 2.0, 3.0, NAN, INF]).double(), b=torch.tensor([1.0, 3.0, 2.0, NAN, INF]).double())
    case(name, lambda a, b, f=getattr(torch, name): f(a, b), grad=[], a=ints(0, 3, 3, 5), b=ints(0, 3, 5))
for name in ["logical_and", "logical_or", "logical_xor"]:
    case(name, lambda a, b, f=getattr(torch, name): f(a, b), grad=[], a=ints(0, 2, 3, 5).bool(), b=ints(0, 2, 5).bool())
case("where", torch.where, condition=ints(0, 2, 3, 5).bool(), input=normal(3, 1), other=normal(5))
case("lerp", lambda a, b: torch.lerp(a, b, 0.3), attrs=dict(weight=0.3), a=normal(3, 5), b=normal(3, 5))

# ---- products -------------------------------------------------------------------------------------------------------
for ta in (False, True):
    for tb in (False, True):
        def mm(a, b, ta=ta, tb=tb):
            return (a.mT if ta else a) @ (b.mT if tb else b)
        case("matmul", mm, attrs=dict(transpose_a=ta, transpose_b=tb), a=normal(*((5, 3) if ta else (3, 5))), b=normal(*((7, 5) if tb else (5, 7))))
        case("matmul", mm, attrs=dict(transpose_a=ta, transpose_b=tb), a=normal(*((2, 5, 3) if ta else (2, 3, 5))), b=normal(*((2, 7, 5) if tb else (2, 5, 7))))
case("matmul", torch.matmul, input=normal(2, 3, 5), other=normal(5, 7), note="left operand batched")
case("matmul", torch.matmul, input=normal(2, 1, 3, 5), other=normal(3, 5, 2), note="batch dims broadcast")
case("matmul", torch.matmul, input=normal(5), other=normal(5, 3))
case("matmul", torch.matmul, input=normal(3, 5), other=normal(5))
case("matmul", torch.matmul, input=normal(3, 0), other=normal(0, 2), note="an empty sum is zero")
case("dot", torch.dot, input=normal(7), tensor=normal(7))
case("outer", torch.outer, input=normal(3), vec2=normal(5))
case("linear", F.linear, input=normal(2, 3, 5), weight=normal(7, 5), bias=normal(7))
case("linear", F.linear, input=normal(3, 5), weight=normal(7, 5))
for spec, shapes in [("ij,jk->ik", [(3, 5), (5, 2)]), ("bij,bkj->bik", [(2, 3, 5), (2, 7, 5)]), ("i,j,k->kij", [(2,), (3,), (5,)]),
                     ("ij->", [(3, 5)]), ("ij->ji", [(3, 5)]), ("abc,cd,de->abe", [(2, 3, 5), (5, 2), (2, 7)]), ("bhqd,bhkd->bhqk", [(2, 3, 5, 2), (2, 3, 7, 2)])]:
    case("einsum", lambda spec=spec, **x: torch.einsum(spec, *x.values()), attrs=dict(equation=spec), **{chr(97 + i): normal(*s) for i, s in enumerate(shapes)})

# ---- reductions -----------------------------------------------------------------------------------------------------
for name in ["sum", "mean", "prod", "amax", "amin", "logsumexp"]:
    f = getattr(torch, name)
    for dims in ([0], [2], [1, 2], [0, 1, 2]):
        if name == "prod" and len(dims) > 1:
            continue
        for keep in (False, True):
            arg = dims[0] if name == "prod" else dims
            case(name, lambda x, f=f, arg=arg, keep=keep: f(x, dim=arg, keepdim=keep), attrs=dict(dim=dims, keepdim=keep), x=normal(2, 3, 5))
for name in ["amax", "amin"]:
    case(name, lambda x, f=getattr(torch, name): f(x, dim=[1]), attrs=dict(dim=[1], keepdim=False), x=torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]).double(), note="ties share the gradient equally")
    case(name, lambda x, f=getattr(torch, name): f(x, dim=[0]), grad=[], attrs=dict(dim=[0], keepdim=False), x=torch.tensor([[1.0, NAN], [INF, 2.0]]).double(), note="nan wins")
case("prod", lambda x: x.prod(1), attrs=dict(dim=[1], keepdim=False), x=torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 2.0]]).double(), note="zeros")
case("sum", lambda x: x.sum(0), attrs=dict(dim=[0], keepdim=False), x=normal(0, 3), note="an empty sum is zero")
case("mean", lambda x: x.mean(0), grad=[], attrs=dict(dim=[0], keepdim=False), x=normal(0, 3), note="an empty mean is nan")
for correction in (0, 1):
    for name in ["var", "std"]:
        case(name, lambda x, f=getattr(torch, name), c=correction: f(x, dim=[1, 2], correction=c), attrs=dict(dim=[1, 2], keepdim=False, correction=correction), x=normal(2, 3, 5))
for p in (1, 2, 3, INF, -INF, 0):
    case("norm", lambda x, p=p: torch.linalg.vector_norm(x, ord=p, dim=1), grad=None if p not in (0,) else [], attrs=dict(ord=str(p), dim=[1], keepdim=False), x=normal(3, 7))
for name in ["argmax", "argmin"]:
    for dim in (0, 1):
        case(name, lambda x, f=getattr(torch, name), d=dim: f(x, dim=d), grad=[], attrs=dict(dim=dim, keepdim=False), x=normal(3, 7))
case("argmax", lambda x: torch.argmax(x), grad=[], attrs=dict(dim=None), x=normal(3, 5), note="over the flattened tensor")
for name in ["any", "all"]:
    case(name, lambda x, f=getattr(torch, name): f(x, dim=1), grad=[], attrs=dict(dim=[1], keepdim=False), x=torch.tensor([[True, False], [True, True], [False, False]]))
    case(name, lambda x, f=getattr(torch, name): f(x, dim=1), grad=[], attrs=dict(dim=[1], keepdim=False), x=torch.zeros(2, 0, dtype=torch.bool), note="empty: any is false, all is true")
for dim in (0, 1):
    case("cumsum", lambda x, d=dim: x.cumsum(d), attrs=dict(dim=dim), x=normal(5, 7))
    case("cumprod", lambda x, d=dim: x.cumprod(d), attrs=dict(dim=dim), x=normal(3, 5))

# ---- softmax, norms, losses -----------------------------------------------------------------------------------------
for name in ["softmax", "log_softmax"]:
    for dim in (0, 1, 2):
        case(name, lambda x, f=getattr(torch, name), d=dim: f(x, d), attrs=dict(dim=dim), x=normal(2, 3, 5))
case("softmax", lambda x: torch.softmax(x, 0), grad=[], attrs=dict(dim=0), x=torch.tensor([1000.0, 999.0, -INF]).double())
case("layer_norm", lambda x, w, b: F.layer_norm(x, (5,), w, b, 1e-5), attrs=dict(normalized_dims=1, eps=1e-5), x=normal(2, 3, 5), w=normal(5), b=normal(5))
case("layer_norm", lambda x, w, b: F.layer_norm(x, (3, 5), w, b, 1e-5), attrs=dict(normalized_dims=2, eps=1e-5), x=normal(2, 3, 5), w=normal(3, 5), b=normal(3, 5))
case("rms_norm", lambda x, w: F.rms_norm(x, (5,), w, 1e-6), attrs=dict(eps=1e-6), x=normal(2, 3, 5), w=normal(5))
case("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b, 1e-5), attrs=dict(groups=3, eps=1e-5), x=normal(2, 6, 5), w=normal(6), b=normal(6))
case("embedding", lambda i, w: F.embedding(i, w), grad=["w"], i=ints(0, 7, 2, 5), w=normal(7, 3), note="repeated ids add their gradients")
case("embedding", lambda i, w: F.embedding(i, w, padding_idx=2), grad=["w"], attrs=dict(padding_idx=2), i=ints(0, 4, 2, 5), w=normal(7, 3))
targets = torch.tensor([3, -100, 0, 6, 3])
for reduction in ("mean", "sum", "none"):
    case("cross_entropy", lambda x, t, r=reduction: F.cross_entropy(x, t, reduction=r), attrs=dict(reduction=reduction, ignore_index=-100), x=normal(5, 7), t=targets)
    case("cross_entropy", lambda x, t, w, r=reduction: F.cross_entropy(x, t, weight=w, reduction=r, label_smoothing=0.2), grad=["x"],
         attrs=dict(reduction=reduction, ignore_index=-100, label_smoothing=0.2, class_weights=True), x=normal(5, 7), t=targets, w=positive(7))
    case("nll_loss", lambda x, t, r=reduction: F.nll_loss(x, t, reduction=r), attrs=dict(reduction=reduction, ignore_index=-100), x=normal(5, 7), t=targets)
    case("mse_loss", lambda x, t, r=reduction: F.mse_loss(x, t, reduction=r), attrs=dict(reduction=reduction), x=normal(5, 7), t=normal(5, 7))
    case("bce_with_logits", lambda x, t, r=reduction: F.binary_cross_entropy_with_logits(x, t, reduction=r), grad=["x"], attrs=dict(reduction=reduction), x=normal(5, 7), t=torch.rand(5, 7).double())
case("cross_entropy", lambda x, t: F.cross_entropy(x, t), attrs=dict(reduction="mean", ignore_index=-100), x=normal(3, 5), t=torch.tensor([-100, -100, -100]), note="every target ignored: PyTorch gives nan and a zero gradient")

# ---- attention, rotary ----------------------------------------------------------------------------------------------
def attention(q, k, v, causal=False, mask=None, groups=1):
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)

case("attention", attention, attrs=dict(causal=False), q=normal(2, 3, 5, 7), k=normal(2, 3, 11, 7), v=normal(2, 3, 11, 7))
case("attention", lambda **x: attention(**x, causal=True), attrs=dict(causal=True), q=normal(2, 3, 7, 5), k=normal(2, 3, 7, 5), v=normal(2, 3, 7, 5))
case("attention", lambda **x: attention(**x, causal=True, groups=3), attrs=dict(causal=True, kv_heads=2), q=normal(1, 6, 5, 3), k=normal(1, 2, 5, 3), v=normal(1, 2, 5, 3), note="query head h reads key head h // 3")
case("attention", attention, attrs=dict(causal=False), note="mask true = attend", q=normal(2, 2, 5, 3), k=normal(2, 2, 7, 3), v=normal(2, 2, 7, 3),
     mask=torch.cat([torch.ones(2, 1, 5, 1), torch.randint(0, 2, (2, 1, 5, 6)).float()], -1).bool())

# ---- convolution ----------------------------------------------------------------------------------------------------
case("conv1d", lambda x, w, b: F.conv1d(x, w, b, stride=1, padding=1), attrs=dict(stride=1, padding=1, dilation=1, groups=1), x=normal(2, 3, 11), w=normal(5, 3, 3), b=normal(5))
case("conv1d", lambda x, w: F.conv1d(x, w, None, stride=2, padding=2, dilation=2), attrs=dict(stride=2, padding=2, dilation=2, groups=1), x=normal(2, 3, 13), w=normal(5, 3, 3))
case("conv1d", lambda x, w, b: F.conv1d(F.pad(x, (3, 0)), w, b, groups=5), attrs=dict(causal_padding=3, groups=5), x=normal(2, 5, 7), w=normal(5, 1, 4), b=normal(5), note="depthwise causal")
case("conv2d", lambda x, w, b: F.conv2d(x, w, b, stride=1, padding=1), attrs=dict(stride=1, padding=1, dilation=1, groups=1), x=normal(2, 3, 7, 5), w=normal(5, 3, 3, 3), b=normal(5))
case("conv2d", lambda x, w: F.conv2d(x, w, None, stride=(2, 1), padding=(0, 1)), attrs=dict(stride=[2, 1], padding=[0, 1], dilation=1, groups=1), x=normal(2, 3, 7, 5), w=normal(5, 3, 3, 2))

# ---- shape, indexing ------------------------------------------------------------------------------------------------
case("flip", lambda x: x.flip(0, 2), attrs=dict(dims=[0, 2]), x=normal(2, 3, 5))
case("roll", lambda x: x.roll((2, -1), (0, 1)), attrs=dict(shifts=[2, -1], dims=[0, 1]), x=normal(5, 7))
case("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=1.5), attrs=dict(pad_last_dim_first=[1, 2, 0, 3], value=1.5), x=normal(2, 3, 5))
case("cat", lambda a, b, c: torch.cat([a, b, c], 1), attrs=dict(dim=1), a=normal(2, 3), b=normal(2, 0), c=normal(2, 5))
case("stack", lambda a, b: torch.stack([a, b], 1), attrs=dict(dim=1), a=normal(2, 3), b=normal(2, 3))
case("split", lambda x: torch.split(x, [2, 0, 5], 0), attrs=dict(sizes=[2, 0, 5], dim=0), x=normal(7, 3))
case("chunk", lambda x: torch.chunk(x, 4, 0), attrs=dict(chunks=4, dim=0), x=normal(5, 3), note="three pieces come back: 2, 2, 1")
case("tril", lambda x: x.tril(-1), attrs=dict(diagonal=-1), x=normal(5, 7))
case("triu", lambda x: x.triu(2), attrs=dict(diagonal=2), x=normal(2, 5, 7))
case("repeat", lambda x: x.repeat(2, 1, 3), attrs=dict(repeats=[2, 1, 3]), x=normal(3, 5))
case("repeat_interleave", lambda x: x.repeat_interleave(3, 0), attrs=dict(repeats=3, dim=0), x=normal(3, 5))
for dim in (0, 1):
    rows = 5 if dim == 0 else 3
    case("gather", lambda x, i, d=dim: x.gather(d, i), grad=["x"], attrs=dict(dim=dim), x=normal(5, 3), i=ints(0, rows, 4, 2))
    case("index_select", lambda x, i, d=dim: x.index_select(d, i), grad=["x"], attrs=dict(dim=dim), x=normal(5, 3), i=ints(0, rows, 7))
    case("index_add", lambda x, i, y, d=dim: x.index_add(d, i, y), attrs=dict(dim=dim), x=normal(5, 3), i=ints(0, rows, 4), y=normal(*((4, 3) if dim == 0 else (5, 4))))
    case("scatter", lambda x, i, y, d=dim: x.scatter(d, i, y), attrs=dict(dim=dim), x=normal(5, 3), i=torch.stack([torch.randperm(rows)[:2] for _ in range(3 if dim == 0 else 5)], 1 - dim), y=normal(*((2, 3) if dim == 0 else (5, 2))))
    case("scatter_add", lambda x, i, y, d=dim: x.scatter_add(d, i, y), attrs=dict(dim=dim), x=normal(5, 3), i=ints(0, rows, 4, 2) if dim == 1 else ints(0, rows, 4, 2), y=normal(4, 2))
case("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), grad=["x"], attrs=dict(dim=1), x=normal(5, 3), i=ints(0, 3, 5, 4))
case("masked_fill", lambda x, m: x.masked_fill(m, -2.0), attrs=dict(value=-2.0), x=normal(3, 5), m=ints(0, 2, 3, 5).bool())
case("one_hot", lambda i: F.one_hot(i, 5), grad=[], attrs=dict(classes=5), i=ints(0, 5, 2, 3))
case("sort", lambda x: torch.sort(x, dim=1, stable=True), attrs=dict(dim=1, descending=False), x=normal(3, 7))
case("sort", lambda x: torch.sort(x, dim=0, stable=True, descending=True), grad=[], attrs=dict(dim=0, descending=True), x=torch.tensor([3.0, 1.0, 3.0, NAN, -INF]).double(), note="nan counts as largest; ties keep their order")
case("topk", lambda x: torch.topk(x, 3, dim=1), attrs=dict(k=3, dim=1, largest=True), x=normal(3, 7))

for entry in cases:                            # one upstream gradient per differentiable output is the convention
    assert all(f"{entry['id']}/{n}" in tensors for n in entry["inputs"] + entry["outputs"])
folder = pathlib.Path(__file__).parent / "ops"
folder.mkdir(exist_ok=True)
(folder / "cases.json").write_text("[\n" + ",\n".join(json.dumps(c, allow_nan=False) for c in cases) + "\n]\n")
save_file({k: v.clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}, folder / "tensors.safetensors")
print(len(cases), "cases,", len(counts), "ops")
