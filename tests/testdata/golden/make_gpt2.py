# SPDX-License-Identifier: Apache-2.0
"""Writes gpt2/<case>/: a tiny GPT-2 (transformers' GPT2LMHeadModel in float64, no dropout) trained for ten steps by the recipe of make_llama.py.

  plain     every parameter trained
  freezing  transformer.h.0.* and transformer.wte.weight (tied with the head) are frozen in steps 3, 4 and 5: no gradient, no update, no decay,
            and their optimizer state stands still; then they are trained again
  adapters  everything frozen but the layer norms and two low-rank adapters (rank 2) on each mlp.c_fc: y = x W + b + (x A) B

    pip install torch==2.15.0 transformers==5.24.0 safetensors==0.* ; python make_gpt2.py
"""
import importlib.util
import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

HERE = pathlib.Path(__file__).parent
source = (HERE / "make_llama.py").read_text().split("for index, (case, overrides)")[0]
recipe = {"__file__": str(HERE / "make_llama.py"), "__name__": "recipe"}
exec(compile(source, "make_llama.py", "exec"), recipe)
STEPS, OPTIMIZER, MAX_NORM = recipe["STEPS"], recipe["OPTIMIZER"], recipe["MAX_NORM"]


def frozen(case, step, name):
    if case == "freezing":
        return 3 <= step <= 5 and (name.startswith("transformer.h.0.") or name == "transformer.wte.weight")
    if case == "adapters":
        return "adapter" not in name and ".ln_" not in name
    return False


def make(case, seed):
    config = GPT2Config(vocab_size=61, n_positions=20, n_embd=24, n_layer=2, n_head=3, n_inner=70, activation_function="gelu_new", resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                        attn_implementation="eager", tie_word_embeddings=True)
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(config).double().train()
    params = dict(model.named_parameters())
    with torch.no_grad():
        for n, p in params.items():
            p.copy_((1 + 0.2 * torch.randn_like(p) if ".ln_" in n and n.endswith("weight") else 0.25 * torch.randn_like(p)).float().double())
    if case == "adapters":
        for i, block in enumerate(model.transformer.h):
            a = torch.nn.Parameter((0.3 * torch.randn(24, 2)).float().double())
            b = torch.nn.Parameter((0.3 * torch.randn(2, 70)).float().double())
            params[f"transformer.h.{i}.mlp.adapter.A"], params[f"transformer.h.{i}.mlp.adapter.B"] = a, b
            block.mlp.c_fc.register_forward_hook(lambda m, x, y, a=a, b=b: y + (x[0] @ a) @ b)
    initial = {n: p.detach().float().clone() for n, p in params.items()}
    inputs, targets = recipe["make_batches"](config.vocab_size, seed)
    out, losses, norms = {}, [], []
    optimizer = torch.optim.AdamW(params.values(), **OPTIMIZER, foreach=False)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = recipe["learning_rate"](step)
        for n, p in params.items():
            p.requires_grad_(not frozen(case, step, n))
        optimizer.zero_grad(set_to_none=True)
        logits = model(input_ids=inputs[step], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets[step].flatten(), ignore_index=-100)
        loss.backward()
        if step == 0:
            out["logits"] = logits.detach().clone()
        if step in (0, 4):
            out |= {f"grad{step}.{n}": p.grad.clone() for n, p in params.items() if p.grad is not None}
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), MAX_NORM).item())
        losses.append(loss.item())
        optimizer.step()
        if step in (2, 5):
            out |= {f"step{step}.{n}": p.detach().clone() for n, p in params.items()}
    out |= {f"final.{n}": p.detach().clone() for n, p in params.items()}
    out["losses"], out["grad_norms"] = torch.tensor(losses).double(), torch.tensor(norms).double()
    folder = HERE / "gpt2" / case
    folder.mkdir(parents=True, exist_ok=True)
    keep = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "activation_function", "layer_norm_epsilon", "tie_word_embeddings")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"} | {k: getattr(config, k) for k in keep}, indent=2) + "\n")
    save_file({k: v.contiguous() for k, v in initial.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({"input_ids": inputs, "targets": targets, "learning_rates": torch.tensor([recipe["learning_rate"](s) for s in range(STEPS)], dtype=torch.float64)}, folder / "data.safetensors")
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "expected_f64.safetensors")
    print(case, sum(p.numel() for p in params.values()), "parameters; losses %.4f -> %.4f" % (losses[0], losses[-1]), "norms", ["%.2f" % n for n in norms])


for index, case in enumerate(("plain", "freezing", "adapters")):
    make(case, 2000 + index)
