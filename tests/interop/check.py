# SPDX-License-Identifier: Apache-2.0
"""Reads what write_checkpoints has written with safetensors, PyTorch and transformers.

    python check.py GOLDEN_DIR OUT_DIR
"""
import glob
import json
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader
from transformers import LlamaForCausalLM

golden, out = sys.argv[1], sys.argv[2]
weights = load_file(f"{golden}/model.safetensors")
further = {
    "optim.state.embed.exp_avg": torch.full((3, 5), 0.25, dtype=torch.float64),
    "one": torch.full((1, 7), -2.0),
}
expected = {**weights, **further}


def same(name, got, want):
    assert got.dtype == want.dtype and got.shape == want.shape, (name, got.dtype, got.shape)
    assert torch.equal(got, want), name


# Each file by itself, put together by the offsets in its metadata.
whole = {name: torch.full_like(x, 99) for name, x in expected.items()}
files = sorted(glob.glob(f"{out}/saved/*.safetensors"))
assert len(files) == 4, files
for path in files:
    with safe_open(path, framework="pt") as file:
        offsets = json.loads(file.metadata()["DCP_SHARDING_INFO"])
        for name in file.keys():
            piece = file.get_tensor(name)
            begin = offsets[name]["saved_offsets"]
            whole[name][tuple(slice(b, b + n) for b, n in zip(begin, piece.shape))] = piece
for name, x in expected.items():
    same(name, whole[name], x)
print(f"safetensors: {len(files)} files by boxes, {len(expected)} tensors equal")

# The directory as it is.
state = {name: torch.full_like(x, 99) for name, x in expected.items()}
dcp.load(state, storage_reader=HuggingFaceStorageReader(path=f"{out}/saved"))
for name, x in expected.items():
    same(name, state[name], x)
print("torch.distributed.checkpoint: equal")

# The export: its files, and the model that transformers makes of them.
index = json.load(open(f"{out}/exported/model.safetensors.index.json"))["weight_map"]
assert set(index) == set(weights), set(index) ^ set(weights)
for name, file in index.items():
    same(name, load_file(f"{out}/exported/{file}")[name], weights[name])
model = LlamaForCausalLM.from_pretrained(f"{out}/exported", attn_implementation="eager")
ids = load_file(f"{golden}/data.safetensors")["input_ids"][0]
with torch.no_grad():
    logits = model(ids).logits
want = load_file(f"{golden}/expected_f32.safetensors")["logits"]
error = ((logits - want).abs().max() / want.abs().max()).item()
assert error < 1e-5, error
print(f"transformers: {len(set(index.values()))} files, logits differ by {error:.1e} of the largest")
