# SPDX-License-Identifier: Apache-2.0
"""Reads what write_checkpoints has written onto PyTorch meshes of other shapes.

    python check_mesh.py GOLDEN_DIR OUT_DIR
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


def run(rank, shape, port, golden, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    size = 1
    for n in shape:
        size *= n
    dist.init_process_group("gloo", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", shape)
    weights = load_file(f"{golden}/model.safetensors")
    state = {}
    for name, x in weights.items():
        placements = [Shard(axis % x.dim()) for axis in range(len(shape))]
        state[name] = distribute_tensor(torch.full_like(x, 99), mesh, placements)
    dcp.load(state, storage_reader=HuggingFaceStorageReader(path=f"{out}/saved"))
    for name, x in weights.items():
        assert torch.equal(state[name].full_tensor(), x), (shape, name)
    if rank == 0:
        print(f"torch.distributed.checkpoint on {shape}: equal", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    for i, shape in enumerate([(3,), (2, 2)]):
        size = 3 if shape == (3,) else 4
        port = 29500 + os.getpid() % 1000 + i
        mp.spawn(run, args=(shape, port, sys.argv[1], sys.argv[2]), nprocs=size)
