#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""zerod.torch on this machine's GPU: one rank, and two that share it. Run by tests/gpu/torch.sh.

Classes of tests/torch that need no more than two ranks run here as well, with daemons of their own.
"""
from __future__ import annotations

import os
import sys
import unittest
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torch"))
import harness
import models
import torch
from harness import compare, same, support
from test_ahead import Ahead  # noqa: F401  (support.main() runs it)
from test_halves import optimizer as halves
from test_kernels import Optimizers  # noqa: F401
from test_memory import Memory  # noqa: F401
from test_models import Inductor  # noqa: F401
from torch import nn


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(arena="4G").for_module()


class Train(unittest.TestCase):
    def test_reference(self) -> None:
        """the reference equals itself"""
        def once() -> Any:
            return harness.reference(models.GPT, models.adamw, models.gpt_loss, 2, 5)

        same(harness.alone(once), harness.alone(once))

    def test_gpt(self) -> None:
        """a tied GPT, float32 and bfloat16, AdamW plain, foreach and fused, one rank in place: equal bit for bit"""
        for world, poison in ((1, "0"), (1, "1"), (2, "1")):
            os.environ["ZEROD_POISON"] = poison
            for optimize in (models.adamw_foreach, models.adamw_fused):
                for dtype in (None, torch.bfloat16):
                    with self.subTest(world=world, poison=poison, optimize=optimize.__name__, dtype=dtype):
                        compare(daemon.socket, world, models.GPT, optimize, models.gpt_loss, steps=10, dtype=dtype)

    def test_halves(self) -> None:
        """zt.AdamW, with sums kept and in the backward: equal bit for bit to its formulas"""
        for world in (1, 2):
            for in_backward in (False, True):
                for dtype in (None, torch.bfloat16):
                    with self.subTest(world=world, in_backward=in_backward, dtype=dtype):
                        compare(daemon.socket, world, models.GPT, partial(halves, "AdamW", lr=1e-2, in_backward=in_backward),
                                models.gpt_loss, steps=10, dtype=dtype)

    def test_mlp(self) -> None:
        """an MLP with slots, accumulation, stage 2"""
        compare(daemon.socket, 2, models.MLP, models.sgd, models.mlp_loss, slots=True, accumulate=2)
        compare(daemon.socket, 2, models.MLP, models.sgd, models.mlp_loss, stage=2)


class Slow(nn.Module):
    """A GPU behind its CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(2048, 2048, bias=False) for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
            torch.cuda._sleep(20_000_000)
        return x


class Paced(unittest.TestCase):
    def ahead(self, paced: bool) -> int:
        """How many blocks the CPUs of two ranks have released at most that the GPU has not come to."""
        block = 2048 * 2048 * 4

        def body(rank: int) -> int:
            module = harness.shard(Slow())
            pace = module._zerod_model.pace
            pace.most = 2 * block if paced else 1 << 60
            with torch.no_grad():
                for _ in range(2):
                    module(torch.ones(1, 2048))
            left = sum(not event.query() for event, _ in pace._releases)
            torch.cuda.synchronize()
            return left

        return max(harness.ranks(daemon.socket, 2, body))

    def test_distance(self) -> None:
        """a CPU that is ahead of its GPU has released a few blocks more; all of them, where nothing holds it"""
        self.assertLessEqual(self.ahead(True), 4)
        self.assertGreater(self.ahead(False), 8)


class Late(torch.autograd.Function):
    """The identity, whose gradient comes some 0.3 s late."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(600_000_000)
        return gradient


class Copied(unittest.TestCase):
    def test_pageable_memory(self) -> None:
        """a copy to pageable memory behind a step does not keep out the step's sums"""
        def body(rank: int) -> None:
            module = harness.shard(harness.seeded(lambda: nn.Linear(64, 64)))
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                Late.apply(module(torch.ones(4, 64))).sum().backward()
                harness.step_with(optimizer)
                torch.ones(1, device="cuda").cpu()

        harness.ranks(daemon.socket, 2, body)


if __name__ == "__main__":
    support.main()
