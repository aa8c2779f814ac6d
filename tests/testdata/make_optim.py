# SPDX-License-Identifier: Apache-2.0
"""Writes optim/cases.json and optim/tensors.safetensors: parameters after each of six steps of PyTorch's optimizers on given gradients, in float64.

Tensors: "<case>/<param>/init", "<case>/<param>/grad<k>", "<case>/<param>/step<k>" (values after step k), and "<case>/<param>/<state>" after the last step. Lion is a
plain transcription of its paper's Algorithm 2 (Chen et al., Symbolic Discovery of Optimization Algorithms). Muon is torch.optim.Muon (Newton-Schulz in f64 here; PyTorch's
own runs it in bf16, so the transcription below is used, with its coefficients, and is compared with PyTorch's to 3e-2).

    pip install torch==2.15.0 safetensors==0.* ; python make_optim.py
"""
import json
import math
import pathlib

import torch
from safetensors.torch import save_file

torch.manual_seed(5)
torch.set_num_threads(1)
SHAPES = {"matrix": (5, 3), "wide": (3, 7), "vector": (7,), "one": (1,)}
INIT = {n: torch.randn(s).float().double() for n, s in SHAPES.items()}
GRADS = {n: [torch.randn(s).float().double() * (0.3 if k % 2 else 2.0) for k in range(6)] for n, s in SHAPES.items()}
cases, tensors = [], {}


def record(case, names, step_values, state, options):
    for n in names:
        tensors[f"{case}/{n}/init"] = INIT[n].clone()
        for k in range(6):
            tensors[f"{case}/{n}/grad{k}"] = GRADS[n][k].clone()
            tensors[f"{case}/{n}/step{k}"] = step_values[n][k].clone()
        for what, value in state.get(n, {}).items():
            tensors[f"{case}/{n}/{what}"] = value.detach().double().clone().reshape(value.shape if value.dim() else (1,))
    cases.append(dict(case=case, parameters=list(names), **options))


def torch_case(case, make, options, lrs=None, groups=None):
    params = {n: INIT[n].clone().requires_grad_(True) for n in SHAPES}
    opt = make(groups(params) if groups else list(params.values()))
    steps = {n: [] for n in SHAPES}
    for k in range(6):
        if lrs:
            for g in opt.param_groups:
                g["lr"] = lrs[k]
        for n, p in params.items():
            p.grad = None if (k == 3 and n == "one") else GRADS[n][k].clone()     # a step without a gradient
        opt.step()
        for n, p in params.items():
            steps[n].append(p.detach().clone())
    state = {n: {k: v for k, v in opt.state[p].items() if torch.is_tensor(v)} for n, p in params.items()}
    record(case, SHAPES, steps, state, dict(options, lrs=lrs, note="parameter 'one' has no gradient in step 3"))


O = torch.optim
torch_case("adamw", lambda p: O.AdamW(p, lr=0.05, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False), dict(optimizer="AdamW", lr=0.05, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1))
torch_case("adamw_lr", lambda p: O.AdamW(p, lr=0.05, weight_decay=0.01, foreach=False), dict(optimizer="AdamW", betas=[0.9, 0.999], eps=1e-8, weight_decay=0.01), lrs=[0.01, 0.02, 0.03, 0.0, 0.02, 0.01])
torch_case("adamw_amsgrad", lambda p: O.AdamW(p, lr=0.05, weight_decay=0.1, amsgrad=True, foreach=False), dict(optimizer="AdamW", lr=0.05, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.1, amsgrad=True))
torch_case("adamw_groups", lambda g: O.AdamW(g, lr=0.05, foreach=False), dict(optimizer="AdamW", groups=[dict(parameters=["matrix", "wide"], weight_decay=0.1, lr=0.05), dict(parameters=["vector", "one"], weight_decay=0.0, lr=0.2)]),
           groups=lambda p: [dict(params=[p["matrix"], p["wide"]], weight_decay=0.1), dict(params=[p["vector"], p["one"]], weight_decay=0.0, lr=0.2)])
torch_case("adam", lambda p: O.Adam(p, lr=0.05, betas=(0.8, 0.99), weight_decay=0.1, foreach=False), dict(optimizer="Adam (L2)", lr=0.05, betas=[0.8, 0.99], eps=1e-8, weight_decay=0.1))
torch_case("sgd", lambda p: O.SGD(p, lr=0.1, foreach=False), dict(optimizer="SGD", lr=0.1))
torch_case("sgd_momentum", lambda p: O.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.05, foreach=False), dict(optimizer="SGD", lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.05))
torch_case("sgd_nesterov", lambda p: O.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05, nesterov=True, foreach=False), dict(optimizer="SGD", lr=0.1, momentum=0.9, weight_decay=0.05, nesterov=True))


def lion(lr=0.05, b1=0.9, b2=0.99, wd=0.1):
    steps, state = {n: [] for n in SHAPES}, {}
    for n in SHAPES:
        p, m = INIT[n].clone(), torch.zeros_like(INIT[n])
        for k in range(6):
            g = GRADS[n][k]
            p = p - lr * (torch.sign(b1 * m + (1 - b1) * g) + wd * p)
            m = b2 * m + (1 - b2) * g
            steps[n].append(p.clone())
        state[n] = {"m": m}
    record("lion", SHAPES, steps, state, dict(optimizer="Lion", lr=lr, betas=[b1, b2], weight_decay=wd))


def newton_schulz(x, steps=5, eps=1e-7, coefficients=(3.4445, -4.775, 2.0315)):
    a, b, c = coefficients
    flip = x.shape[0] > x.shape[1]
    x = x.T if flip else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if flip else x


def muon(lr=0.02, momentum=0.95, wd=0.1):
    names = ["matrix", "wide"]
    steps, state = {n: [] for n in names}, {}
    theirs = {n: INIT[n].clone().requires_grad_(True) for n in names}
    opt = O.Muon(list(theirs.values()), lr=lr, weight_decay=wd, momentum=momentum, nesterov=True, ns_steps=5, adjust_lr_fn="original")
    for n in names:
        p, buf = INIT[n].clone(), torch.zeros_like(INIT[n])
        for k in range(6):
            buf = momentum * buf + (1 - momentum) * GRADS[n][k]
            update = newton_schulz((1 - momentum) * GRADS[n][k] + momentum * buf)
            p = p * (1 - lr * wd) - lr * math.sqrt(max(1, p.shape[0] / p.shape[1])) * update
            steps[n].append(p.clone())
        state[n] = {"momentum_buffer": buf}
    for k in range(6):
        for n in names:
            theirs[n].grad = GRADS[n][k].clone()
        opt.step()
    print("muon, ours against torch.optim.Muon:", max(((theirs[n].detach() - steps[n][-1]).abs().max() / steps[n][-1].abs().max()).item() for n in names))
    record("muon", names, steps, state, dict(optimizer="Muon", lr=lr, momentum=momentum, nesterov=True, weight_decay=wd, ns_steps=5, coefficients=[3.4445, -4.775, 2.0315], scale="sqrt(max(1, rows / columns))"))


lion()
muon()
here = pathlib.Path(__file__).parent / "optim"
here.mkdir(exist_ok=True)
(here / "cases.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
save_file({k: v.contiguous() for k, v in tensors.items()}, str(here / "tensors.safetensors"))
print(len(cases), "cases")
