#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many bytes a rank holds: torch's own, counted by torch, and those that the daemon holds for it.

The model has eight blocks of one matrix each, and batches so small that activations hardly count.
"""
from __future__ import annotations

import os
import unittest
from typing import Any, Optional

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler says on stderr that there is no GPU

import harness
import models
import torch
from harness import support
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

BLOCKS, ROWS = 8, 2
WIDTH = 512 if models.DEVICE == "cpu" else 2048
MATRIX = 4 * WIDTH * WIDTH  # bytes of a block's weight in float32
WHOLE = BLOCKS * MATRIX
ACTIVATIONS = 64 * 4 * ROWS * WIDTH  # more than eight products, tanhs, their gradients, and the batch
SMALL = 65536  # of the daemon's paddings and pages, for each thing that it holds


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(BLOCKS)])


class Bytes:
    """Bytes of torch's allocator: at marks, how many there are, and how many there were at most since the one before."""

    def __init__(self) -> None:
        self.marks: dict[str, tuple[int, int]] = {}
        self._cpu = models.DEVICE == "cpu"
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self) -> "Bytes":
        if self._cpu:
            self._profile.__enter__()
        else:
            for dtype in (torch.float32, torch.bfloat16):  # cuBLAS has its workspaces then
                one = nn.Linear(WIDTH, WIDTH, bias=False).to(models.DEVICE, dtype)
                one(torch.ones(ROWS, WIDTH, device=models.DEVICE, dtype=dtype)).sum().backward()
                del one
            self._before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        return self

    def mark(self, name: str) -> None:
        if self._cpu:
            with record_function("mark " + name):
                return
        self.marks[name] = (torch.cuda.memory_allocated() - self._before,
                            torch.cuda.max_memory_allocated() - self._before)
        torch.cuda.reset_peak_memory_stats()

    def __exit__(self, *exception: Any) -> None:
        if not self._cpu:
            return
        self._profile.__exit__(*exception)
        held = most = 0
        for event in sorted(self._profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
            if event.name() == "[memory]":
                held += event.nbytes()
                most = max(most, held)
            elif event.name().startswith("mark "):
                self.marks[event.name()[5:]] = (held, most)
                most = held


def train(rank: int, dtype: Optional[torch.dtype], slots: bool) -> Any:
    with torch.backends.mkldnn.flags(enabled=False), Bytes() as counted:  # on some processors oneDNN packs matrices in torch's memory
        module = make().to(models.DEVICE)
        counted.mark("made")
        harness.shard(module, param_dtype=dtype, slots=slots)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, foreach=True)
        counted.mark("sharded")
        for step in range(3):
            optimizer.zero_grad()
            x = models.numbers(rank, step, ROWS, WIDTH).to(dtype or torch.float32)
            module(x).float().square().mean().backward()
            optimizer.step()
        counted.mark("trained")
    model = module._zerod_model
    model.settle()
    model.group.barrier()
    info = model.client.device(model.device_index)
    model.group.barrier()
    return counted.marks, info.peak_bytes


class Memory(unittest.TestCase):
    def test_peak(self) -> None:
        """no whole copy of the weights is left in torch, nor made; with the daemon's bytes: shards, gradients, three blocks"""
        for dtype in (None, torch.bfloat16):
            for slots in (False, True):
                with self.subTest(dtype=dtype, slots=slots), \
                        support.Daemon(devices=2, arena="64M" if models.DEVICE == "cpu" else "2G") as own:
                    for marks, daemons in harness.ranks(own.socket, 2, lambda rank: train(rank, dtype, slots)):
                        self.check(marks, daemons, dtype)

    def check(self, marks: dict[str, tuple[int, int]], daemons: int, dtype: Optional[torch.dtype]) -> None:
        gathered = MATRIX if dtype is None else MATRIX // 2  # of a block, and of its gradient
        masters = 0 if dtype is None else WHOLE // 2
        self.assertEqual(marks["made"][0], WHOLE)
        # While shard() runs: the model, a block on its way, and that block's masters before its weights are dropped.
        self.assertLessEqual(marks["sharded"][1], WHOLE + MATRIX + (MATRIX // 2 if masters else 0) + SMALL)
        self.assertLessEqual(marks["sharded"][0], masters + SMALL)
        # Three steps: the gradients of two blocks. A whole copy, even in the smaller type, has those of eight.
        torchs = masters + 2 * gathered + ACTIVATIONS + SMALL
        self.assertLess(2 * gathered + ACTIVATIONS + SMALL, BLOCKS * gathered // 2)
        self.assertLessEqual(marks["trained"][1], torchs)
        self.assertLessEqual(marks["trained"][0], masters + ACTIVATIONS + SMALL)
        if models.DEVICE == "cpu":  # where ranks share a GPU, the daemon counts both
            shards, targets, entries, staging = BLOCKS * gathered // 2, WHOLE // 2, BLOCKS * gathered, 2 * gathered
            self.assertLessEqual(marks["trained"][1] + daemons, torchs + shards + targets + entries + staging + 3 * gathered + SMALL)


if __name__ == "__main__":
    support.main()
