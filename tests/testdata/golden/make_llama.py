# SPDX-License-Identifier: Apache-2.0
"""Writes llama/<case>/: tiny Llama models and what other systems compute with them.

Two independent sources, checked against each other before anything is written:
  * Hugging Face transformers' LlamaForCausalLM on PyTorch, float32 (the authority on the model's definition);
  * `plain_llama` below, a direct transcription of the model's formulas, run in float64 (the authority on digits:
    transformers computes norms, softmax and rotary angles in float32 whatever the dtype).

    pip install torch==2.15.0 transformers==5.24.0 safetensors==0.* ; python make_llama.py
"""
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)
HERE = pathlib.Path(__file__).parent
STEPS, BATCH, SEQ = 10, 4, 16
OPTIMIZER = dict(lr=3e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
MAX_NORM = 4.0
WARMUP_STEPS, MIN_LR_RATIO = 3, 0.1

CASES = {
    # name: config. Extents are mostly not powers of two, so that splitting them is uneven.
    "plain": dict(hidden_size=32, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=4, vocab_size=61, tie_word_embeddings=False),
    "gqa_tied": dict(hidden_size=36, intermediate_size=70, num_hidden_layers=2, num_attention_heads=6,
                     num_key_value_heads=2, vocab_size=67, tie_word_embeddings=True, rms_norm_eps=1e-5),
    "llama3_rope_bias": dict(hidden_size=40, intermediate_size=60, num_hidden_layers=1, num_attention_heads=4,
                             num_key_value_heads=2, head_dim=12, vocab_size=64, tie_word_embeddings=False,
                             attention_bias=True, mlp_bias=True,
                             rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0,
                                                  low_freq_factor=1.0, high_freq_factor=4.0,
                                                  original_max_position_embeddings=8)),
}


def learning_rate(step):
    """Linear warm-up from lr/WARMUP_STEPS, then half a cosine down to MIN_LR_RATIO * lr at the last step."""
    if step < WARMUP_STEPS:
        return OPTIMIZER["lr"] * (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS + 1) / (STEPS - WARMUP_STEPS)
    return OPTIMIZER["lr"] * (MIN_LR_RATIO + (1 - MIN_LR_RATIO) * 0.5 * (1 + math.cos(math.pi * progress)))


def make_batches(vocab, seed):
    """Token streams with structure to learn; some targets are -100 (ignored), unevenly over the batch."""
    g = torch.Generator().manual_seed(seed)
    successor = torch.randperm(vocab, generator=g)
    ids = torch.empty(STEPS, BATCH, SEQ + 1, dtype=torch.int64)
    ids[:, :, 0] = torch.randint(vocab, (STEPS, BATCH), generator=g)
    for t in range(SEQ):
        noise = torch.rand((STEPS, BATCH), generator=g) < 0.15
        ids[:, :, t + 1] = torch.where(noise, torch.randint(vocab, (STEPS, BATCH), generator=g), successor[ids[:, :, t]])
    inputs, targets = ids[:, :, :-1].contiguous(), ids[:, :, 1:].contiguous()
    targets[:, 0, : SEQ // 2] = -100           # one row has half as many targets as the others
    targets[:, 2, 1::5] = -100
    targets[3:5, 1, :] = -100                  # and in two steps one row has none
    return inputs, targets


def rotary_frequencies(config, dtype):
    """Inverse frequencies; the llama3 variant stretches long wavelengths (Llama 3.1 model card's rule)."""
    p, dim = config.rope_parameters, config.head_dim
    inv = 1.0 / (p["rope_theta"] ** (torch.arange(0, dim, 2, dtype=dtype) / dim))
    if p["rope_type"] == "default":
        return inv
    wavelength = 2 * math.pi / inv
    old, low, high = p["original_max_position_embeddings"], p["low_freq_factor"], p["high_freq_factor"]
    smooth = ((old / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * inv / p["factor"] + smooth * inv


def plain_llama(w, config, ids):
    """Logits [B, S, V] in the dtype of the weights. w: name -> tensor."""
    def linear(x, name):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    def rms_norm(x, name):
        return w[name + ".weight"] * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps)

    x = w["model.embed_tokens.weight"][ids]
    b, s, _ = x.shape
    h, kv, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    angle = torch.arange(s, dtype=x.dtype)[:, None] * rotary_frequencies(config, x.dtype)
    cos, sin = angle.cos(), angle.sin()

    def rotate(t):                             # pairs are (i, i + d/2)
        a, c = t[..., : d // 2], t[..., d // 2 :]
        return torch.cat((a * cos - c * sin, c * cos + a * sin), -1)

    future = torch.ones(s, s, dtype=torch.bool).triu(1)
    for i in range(config.num_hidden_layers):
        p = f"model.layers.{i}."
        y = rms_norm(x, p + "input_layernorm")
        q, k, v = (linear(y, p + f"self_attn.{n}_proj").view(b, s, -1, d).transpose(1, 2) for n in "qkv")
        q, k = rotate(q).view(b, kv, h // kv, s, d), rotate(k)[:, :, None]
        scores = (q @ k.transpose(-1, -2) / math.sqrt(d)).masked_fill(future, -math.inf)
        y = (scores.softmax(-1) @ v[:, :, None]).reshape(b, h, s, d).transpose(1, 2).reshape(b, s, h * d)
        x = x + linear(y, p + "self_attn.o_proj")
        y = rms_norm(x, p + "post_attention_layernorm")
        x = x + linear(F.silu(linear(y, p + "mlp.gate_proj")) * linear(y, p + "mlp.up_proj"), p + "mlp.down_proj")
    x = rms_norm(x, "model.norm")
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return x @ w[head].T


def train(params, logits_of, inputs, targets, compute_dtype=None):
    """Ten AdamW steps; params: name -> leaf tensor. Returns everything worth comparing."""
    out = {}
    optimizer = torch.optim.AdamW(params.values(), **OPTIMIZER)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        logits = logits_of(inputs[step])
        loss = F.cross_entropy(logits.flatten(0, 1), targets[step].flatten(), ignore_index=-100)
        loss.backward()
        if step == 0:
            out["logits"] = logits.detach().clone()
            out |= {f"grad.{n}": p.grad.clone() for n, p in params.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), MAX_NORM).item())
        losses.append(loss.item())
        optimizer.step()
    out |= {f"final.{n}": p.detach().clone() for n, p in params.items()}
    out["losses"] = torch.tensor(losses, dtype=torch.float64)
    out["grad_norms"] = torch.tensor(norms, dtype=torch.float64)
    return out


def worst_relative(a, b):
    """Largest elementwise difference over the largest magnitude of b, per tensor; the worst tensor."""
    return max((((a[k].double() - b[k].double()).abs().max() / b[k].double().abs().max()).item(), k) for k in b)


def make(name, overrides, seed):
    config = LlamaConfig(hidden_act="silu", max_position_embeddings=64, attn_implementation="eager", **overrides)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).float().train()
    with torch.no_grad():                      # big enough that norms clip and every term matters; norms not all one
        for n, p in model.named_parameters():
            p.copy_(1 + 0.2 * torch.randn_like(p) if "norm" in n else 0.25 * torch.randn_like(p))
    initial = {n: p.detach().clone() for n, p in model.named_parameters()}
    inputs, targets = make_batches(config.vocab_size, seed)

    hf = train(dict(model.named_parameters()), lambda ids: model(input_ids=ids, use_cache=False).logits, inputs, targets)
    leaves = {n: p.double().requires_grad_() for n, p in initial.items()}
    exact = train(leaves, lambda ids: plain_llama(leaves, config, ids), inputs, targets)
    masters = {n: p.clone().requires_grad_() for n, p in initial.items()}
    bf16 = train(masters, lambda ids: plain_llama({n: p.bfloat16() for n, p in masters.items()}, config, ids).float(),
                 inputs, targets)

    print(f"{name}: {sum(p.numel() for p in initial.values())} parameters; losses {exact['losses'][0]:.4f} -> "
          f"{exact['losses'][-1]:.4f}; norms {['%.2f' % n for n in exact['grad_norms'].tolist()]}")
    for part in ("logits", "grad.", "losses", "grad_norms", "final."):
        pick = lambda d: {k: v for k, v in d.items() if k.startswith(part)}
        print(f"   {part:12s} f32 (transformers) against f64: {worst_relative(pick(hf), pick(exact))}"
              f"   bf16 against f64: {worst_relative(pick(bf16), pick(exact))[0]:.3g}")
    assert worst_relative({"logits": hf["logits"]}, {"logits": exact["logits"]})[0] < 1e-5

    folder = HERE / "llama" / name
    folder.mkdir(parents=True, exist_ok=True)
    keep = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "head_dim", "vocab_size", "tie_word_embeddings", "rms_norm_eps", "hidden_act", "max_position_embeddings",
            "attention_bias", "mlp_bias", "rope_parameters")
    text = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32"}
    text |= {k: getattr(config, k) for k in keep}
    (folder / "config.json").write_text(json.dumps(text, indent=2) + "\n")
    save_file(initial, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({"input_ids": inputs, "targets": targets,
               "learning_rates": torch.tensor([learning_rate(s) for s in range(STEPS)], dtype=torch.float64)},
              folder / "data.safetensors")
    save_file({k: v.contiguous() for k, v in exact.items()}, folder / "expected_f64.safetensors")
    small = ("losses", "grad_norms", "logits")
    save_file({k: hf[k].contiguous() for k in small}, folder / "expected_f32.safetensors")
    save_file({k: bf16[k].contiguous() for k in small}, folder / "expected_bf16.safetensors")


for index, (case, overrides) in enumerate(CASES.items()):
    make(case, overrides, seed=1000 + index)
