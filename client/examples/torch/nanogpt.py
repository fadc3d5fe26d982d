#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nanogpt - trains a small GPT on the bytes of a text, sharded by zerod.

    torchrun --nproc-per-node 2 nanogpt.py --text FILE

It uses the node's daemon, or starts its own. Only the lines with `zt` are about zerod. All others are as in a program for one process.
"""
from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import zerod.torch as zt


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, depth: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.tokens(index) + self.positions(torch.arange(index.shape[1], device=index.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--text", type=Path, default=Path(__file__), help="what to learn (this program)")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    options.add_argument("--length", type=int, default=64)
    options.add_argument("--depth", type=int, default=4)
    options.add_argument("--width", type=int, default=128)
    options.add_argument("--bfloat16", action="store_true", help="compute in bfloat16, with float32 masters")
    options.add_argument("--offload", choices=("params", "optimizer", "all"), help="what is in the daemon's host memory")
    args = options.parse_args()

    rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = zt.shard(GPT(args.depth, args.width, 4, args.length),
                     param_dtype=torch.bfloat16 if args.bfloat16 else None, offload=args.offload)
    device = zt.model_of(model).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(rank)

    began = time.monotonic()
    for step in range(1, args.steps + 1):
        starts = torch.randint(len(text) - args.length, (args.batch,), generator=generator)
        batch = torch.stack([text[start:start + args.length + 1] for start in starts]).to(device)
        loss = F.cross_entropy(model(batch[:, :-1]).float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        zt.clip_grad_norm_(model, 1.0)
        optimizer.step()
        if rank == 0 and (step % 10 == 0 or step == args.steps):
            print(f"step {step:4d}  loss {loss.item():.3f}  {(time.monotonic() - began) / step * 1e3:.0f} ms a step", flush=True)
    if rank == 0:
        print(zt.summary(model))
    zt.barrier(model)


if __name__ == "__main__":
    main()
