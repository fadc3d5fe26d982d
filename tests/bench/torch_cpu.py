#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU time of the parts of a step, one rank and one thread, 300 small parameters: zerod.torch beside FSDP2 and plain PyTorch.

    ZEROD_SOCKET=/tmp/zerod.sock tests/bench/torch_cpu.py [--rounds 15]

Prints milliseconds of this process' CPU, median and spread of the rounds, which take turns; and zerod's ratio to FSDP2's.
"""
from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import zerod.torch as zt

BLOCKS = 100


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)) * self.scale


def fsdp(module: nn.Module) -> nn.Module:
    for block in module:
        fully_shard(block)
    return fully_shard(module)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "AdamW fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
}
KINDS: dict[str, Callable[[nn.Module], nn.Module]] = {"zerod": zt.shard, "FSDP2": fsdp, "plain": lambda module: module}


def cpu(call: Callable[[], Any]) -> float:
    begin = time.process_time()
    call()
    return 1e3 * (time.process_time() - begin)


class Job:
    def __init__(self, kind: str, optimizer: str) -> None:
        torch.manual_seed(0)
        self.module = KINDS[kind](nn.Sequential(*[Block() for _ in range(BLOCKS)]))
        self.optimizer = OPTIMIZERS[optimizer](self.module.parameters())
        self.x = torch.ones(2, 16)

    def backward(self) -> None:
        self.module(self.x).sum().backward()

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)

    def round(self) -> dict[str, float]:
        self.optimizer.zero_grad()
        return {"forward and backward": cpu(self.backward), "clip_grad_norm_": cpu(self.clip), "step": cpu(self.optimizer.step)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29512"), RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo", rank=0, world_size=1)
    print(f"torch {torch.__version__}, {3 * BLOCKS} parameters in {BLOCKS} blocks, one rank, one thread, {rounds} rounds, ms of CPU")
    for name in OPTIMIZERS:
        jobs = {kind: Job(kind, name) for kind in KINDS}
        found: dict[tuple[str, str], list[float]] = {}
        for number in range(rounds + 3):
            for kind, job in jobs.items():
                for part, value in job.round().items():
                    if number >= 3:
                        found.setdefault((part, kind), []).append(value)
        for part in dict.fromkeys(part for part, _ in found):
            medians = {kind: statistics.median(found[part, kind]) for kind in KINDS}
            shown = ", ".join(f"{kind} {medians[kind]:.2f} ({min(found[part, kind]):.2f} to {max(found[part, kind]):.2f})" for kind in KINDS)
            print(f"{name + ', ' + part:36} {shown}; zerod / FSDP2 {medians['zerod'] / medians['FSDP2']:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
