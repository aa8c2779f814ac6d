# SPDX-License-Identifier: Apache-2.0
"""Writes opinfo/cases.json and opinfo/tensors.safetensors: many small cases of many ops, drawn from the sample
generators of PyTorch's own operator tests, with PyTorch's values and gradients in float64.

Each case: op (PyTorch's name), args and kwargs as they were passed ("tensor:<name>" stands for a tensor of the file, lists
nest), outputs, and differentiable inputs. Tensors are "<id>/<name>", upstream gradients "<id>/grad_out<k>" (given), gradients
"<id>/grad_<name>" (expected). At most five cases an op, no tensor above 150 elements where there is a choice.

    pip install torch==2.15.0 safetensors==0.* expecttest numpy; python make_opinfo.py
"""
import json
import math
import pathlib

import torch
from safetensors.torch import save_file
from torch.testing._internal.common_methods_invocations import UnaryUfuncInfo, op_db

torch.set_num_threads(1)
WANTED = """
abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad rad2deg digamma erf erfc erfinv exp exp2 expm1 floor frac lgamma log log10 log1p
log2 logit neg positive reciprocal round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc nan_to_num isfinite isinf
isnan isneginf isposinf logical_not i0 special.entr special.log_ndtr special.ndtr special.erfcx special.xlog1py
nn.functional.relu nn.functional.relu6 nn.functional.leaky_relu nn.functional.elu nn.functional.celu nn.functional.selu nn.functional.gelu
nn.functional.silu nn.functional.mish nn.functional.hardtanh nn.functional.hardsigmoid nn.functional.hardswish nn.functional.hardshrink
nn.functional.softshrink nn.functional.tanhshrink nn.functional.softplus nn.functional.softsign nn.functional.logsigmoid
nn.functional.threshold nn.functional.glu nn.functional.prelu
add sub mul div true_divide floor_divide fmod remainder pow float_power maximum minimum fmax fmin atan2 hypot copysign heaviside logaddexp
logaddexp2 xlogy ldexp logical_and logical_or logical_xor eq ne lt le gt ge rsub lerp addcmul addcdiv clamp clamp_min clamp_max where isclose
bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift gcd lcm
sum mean prod amax amin aminmax argmax argmin all any var std var_mean std_mean norm linalg.vector_norm logsumexp nansum nanmean median kthvalue
count_nonzero cumsum cumprod cummax cummin logcumsumexp trace dist max min
mm bmm matmul addmm addmv addbmm baddbmm addr mv dot vdot outer inner linalg.multi_dot einsum kron tensordot nn.functional.linear
nn.functional.bilinear
reshape view flatten ravel unflatten squeeze unsqueeze transpose swapaxes permute movedim t expand broadcast_to repeat tile cat stack hstack vstack dstack
column_stack split split_with_sizes chunk tensor_split hsplit vsplit unbind narrow select flip fliplr flipud roll rot90 tril triu diagonal diag_embed diag unfold
nn.functional.pad meshgrid repeat_interleave block_diag atleast_1d atleast_2d cartesian_prod
index_select gather scatter scatter_add scatter_reduce index_add index_copy index_fill index_put masked_fill masked_scatter take take_along_dim
nn.functional.one_hot topk sort argsort msort searchsorted bucketize select_scatter slice_scatter diagonal_scatter
softmax log_softmax nn.functional.softmin nn.functional.layer_norm nn.functional.rms_norm nn.functional.group_norm nn.functional.batch_norm
nn.functional.instance_norm nn.functional.local_response_norm nn.functional.embedding nn.functional.embedding_bag nn.functional.conv1d
nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d nn.functional.conv_transpose2d nn.functional.avg_pool1d nn.functional.avg_pool2d
nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d nn.functional.adaptive_max_pool2d
nn.functional.interpolate nn.functional.pixel_shuffle nn.functional.pixel_unshuffle nn.functional.normalize nn.functional.cosine_similarity
nn.functional.pairwise_distance cdist nn.functional.scaled_dot_product_attention nn.functional.unfold nn.functional.fold
nn.functional.cross_entropy nn.functional.nll_loss nn.functional.mse_loss nn.functional.l1_loss nn.functional.smooth_l1_loss
nn.functional.huber_loss nn.functional.kl_div nn.functional.binary_cross_entropy nn.functional.binary_cross_entropy_with_logits
nn.functional.soft_margin_loss nn.functional.margin_ranking_loss nn.functional.hinge_embedding_loss nn.functional.cosine_embedding_loss
nn.functional.gaussian_nll_loss nn.functional.poisson_nll_loss nn.functional.triplet_margin_loss nn.functional.multi_margin_loss
linalg.cholesky linalg.inv linalg.det linalg.slogdet linalg.solve linalg.solve_triangular linalg.qr linalg.eigh linalg.matrix_power cross
arange linspace eye full zeros ones tril_indices triu_indices
""".split()
LIMIT, CASES = 150, 5
cases, tensors, without = [], {}, []


class Refused(Exception):
    pass


def same_shape_key(value):
    if isinstance(value, torch.Tensor):
        return ("t", tuple(value.shape), str(value.dtype))
    if isinstance(value, (list, tuple)):
        return tuple(same_shape_key(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, same_shape_key(v)) for k, v in sorted(value.items()))
    return repr(value)


class Recorder:
    """Turns arguments into JSON and collects their tensors as fresh leaves."""

    def __init__(self, crop, limit):
        self.crop, self.limit, self.leaves = crop, limit, {}

    def take(self, value):
        if isinstance(value, torch.Tensor):
            if value.is_complex() or value.layout != torch.strided:
                raise Refused
            if self.crop and value.numel() > LIMIT:
                value = value.flatten()[:65].reshape(5, 13)
            if value.numel() > self.limit:
                raise Refused
            name = f"in{len(self.leaves)}"
            wants = value.requires_grad
            value = value.detach().clone(memory_format=torch.contiguous_format)
            if value.is_floating_point():
                value = value.float().double()      # exact in float32
                value.requires_grad_(wants)
            self.leaves[name] = value
            return value, f"tensor:{name}"
        if isinstance(value, (list, tuple)):
            pairs = [self.take(v) for v in value]
            return type(value)([p[0] for p in pairs]) if not hasattr(value, "_fields") else value, [p[1] for p in pairs]
        if isinstance(value, dict):
            pairs = {k: self.take(v) for k, v in value.items()}
            return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items()}
        if isinstance(value, (torch.dtype, torch.device, torch.memory_format, torch.layout)):
            return value, str(value)
        if isinstance(value, float) and not math.isfinite(value):
            return value, str(value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value, value
        if value is Ellipsis or isinstance(value, slice):
            return value, repr(value)
        raise Refused


def flat(result):
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [t for r in result for t in flat(r)]
    raise Refused


def record(info, sample, index, limit):
    key = f"{info.name}/{index}"
    recorder = Recorder(isinstance(info, UnaryUfuncInfo), limit)
    arguments, args_json = recorder.take([sample.input, *sample.args])
    kwargs, kwargs_json = recorder.take(dict(sample.kwargs))
    if kwargs.get("generator") is not None or kwargs.get("dropout_p") or kwargs.get("p_dropout") or kwargs.get("out") is not None:
        raise Refused
    torch.manual_seed(1)
    outs = flat(info.op(*arguments, **kwargs))
    if any(t.is_complex() or t.numel() > 2 * limit for t in outs) or not outs:
        raise Refused
    generator = torch.Generator().manual_seed(index + 7)
    new = {f"{key}/{n}": t.detach() for n, t in recorder.leaves.items()}
    differentiable = []
    roots = [(k, t) for k, t in enumerate(outs) if t.requires_grad]
    if roots:
        ups = [torch.randn(t.shape, generator=generator, dtype=torch.float64).float().double() for _, t in roots]
        leaves = [(n, t) for n, t in recorder.leaves.items() if t.requires_grad]
        grads = torch.autograd.grad([t for _, t in roots], [t for _, t in leaves], ups, allow_unused=True)
        for (k, _), up in zip(roots, ups):
            new[f"{key}/grad_out{k}"] = up
        for (n, t), g in zip(leaves, grads):
            if g is not None:
                differentiable.append(n)
                new[f"{key}/grad_{n}"] = g.detach()
    for k, t in enumerate(outs):
        new[f"{key}/out{k}"] = t.detach()
    tensors.update({n: t.clone().contiguous() for n, t in new.items()})
    entry = dict(id=key, op=info.name, args=args_json, outputs=len(outs), differentiable=differentiable)
    if kwargs_json:
        entry["kwargs"] = kwargs_json
    if info.variant_test_name:
        entry["variant"] = info.variant_test_name
    cases.append(entry)


counts = {}
for info in op_db:
    if info.name not in WANTED:
        continue
    dtypes = [torch.float64] if torch.float64 in info.dtypes else [torch.int64]
    torch.manual_seed(20261129)
    seen, picked = set(), []
    try:
        samples = list(info.sample_inputs("cpu", dtypes[0], requires_grad=info.supports_autograd and dtypes[0].is_floating_point))
    except Exception as error:                       # a generator that needs what is not installed
        print("no samples:", info.name, type(error).__name__)
        continue
    samples = [s for s in samples if same_shape_key([s.input, s.args, s.kwargs]) not in seen and not seen.add(same_shape_key([s.input, s.args, s.kwargs]))]
    stride = max(1, len(samples) // CASES)
    order = samples[::stride] + [s for i, s in enumerate(samples) if i % stride]
    taken = 0
    for sample, limit in [(s, LIMIT) for s in order] + [(s, 1000) for s in order]:
        if taken == CASES or (taken >= 2 and limit > LIMIT):
            break
        index = counts.get(info.name, 0)
        try:
            record(info, sample, index, limit)
        except Refused:
            continue
        except Exception as error:
            print("skipped:", info.name, type(error).__name__, str(error)[:80])
            continue
        counts[info.name] = index + 1
        taken += 1
without = [w for w in WANTED if w not in counts]
here = pathlib.Path(__file__).parent / "opinfo"
here.mkdir(exist_ok=True)
(here / "cases.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
save_file(tensors, str(here / "tensors.safetensors"))
print(len(cases), "cases of", len(counts), "ops; none for", without)
