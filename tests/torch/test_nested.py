#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nested backwards: blocks in reentrant and non-reentrant checkpoints, and blocks that a forward uses several times.

If a block runs again in a backward, autograd delivers its gradients in several parts. The sum over the ranks must
include all parts.
"""
from __future__ import annotations

import unittest
import warnings
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable

import cases
import models
import torch
from harness import support
from torch import nn
from torch.utils.checkpoint import checkpoint

import zerod.torch as zt

WIDTH = 7
warnings.filterwarnings("ignore", message="None of the inputs have requires_grad=True")  # of checkpoints in checkpoints
Use = Callable[[Any, torch.Tensor], torch.Tensor]  # (blocks, input)


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """Runs its blocks as `use` says."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self.blocks, x)


def reentrant(run: Callable, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(run, x, use_reentrant=True)


def recomputed(run: Callable, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(run, x, use_reentrant=False)


class Again(torch.autograd.Function):
    """A checkpoint of the program's own. Its backward runs the block again, and then a nested backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, block: nn.Module) -> torch.Tensor:
        ctx.x, ctx.block = x.detach(), block
        return block(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x = ctx.x.requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        torch.autograd.backward(y, gradient)
        return x.grad, None


def siamese(b: Any, x: torch.Tensor) -> torch.Tensor:
    def branch(y: torch.Tensor) -> torch.Tensor:
        return b[2](b[1](b[0](y)))

    return reentrant(branch, x) + reentrant(branch, 2 * x)


def two_blocks(b: Any, x: torch.Tensor) -> torch.Tensor:
    def pair(y: torch.Tensor) -> torch.Tensor:
        return b[1](b[0](y))

    return reentrant(pair, reentrant(pair, x))


def half(b: Any, x: torch.Tensor) -> torch.Tensor:
    return reentrant(lambda y: torch.tanh(b[1].up(y)), reentrant(b[1], x)).sum(-1)


def unused(b: Any, x: torch.Tensor) -> torch.Tensor:
    b[0](x)
    return b[1](x)


def evaluated(b: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        b[1](x)
    return reentrant(b[1], x)


USES: dict[str, Use] = {
    "no checkpoint": lambda b, x: b[2](b[1](b[0](x))),
    "reentrant, each block once": lambda b, x: reentrant(b[2], reentrant(b[1], reentrant(b[0], x))),
    "not reentrant, each block once": lambda b, x: recomputed(b[2], recomputed(b[1], recomputed(b[0], x))),
    "not reentrant, a block twice": lambda b, x: b[2](recomputed(b[1], recomputed(b[1], x))),
    "reentrant, a block twice": lambda b, x: b[2](reentrant(b[1], reentrant(b[1], reentrant(b[0], x)))),
    "reentrant twice, then directly": lambda b, x: b[1](reentrant(b[1], reentrant(b[1], x))),
    "directly, then reentrant": lambda b, x: reentrant(b[1], b[1](x)),
    "all blocks in a checkpoint, twice": siamese,
    "two blocks in a checkpoint, twice": two_blocks,
    "a checkpoint in a checkpoint": lambda b, x: reentrant(lambda y: b[2](reentrant(b[1], reentrant(b[0], y))), x),
    "a function of the program, twice": lambda b, x: b[2](Again.apply(Again.apply(x, b[1]), b[1])),
    "one of a block's layers in a second checkpoint": half,
    "a block whose output is not used": unused,
    "a second use that is detached": lambda b, x: b[1](x) + b[1](x).detach(),
    "an evaluation before the checkpoint": evaluated,
}
HARD = ("reentrant, a block twice", "all blocks in a checkpoint, twice", "a checkpoint in a checkpoint")


def train(use: Use, program: cases.Program, accumulate: int = 1, sync: bool = True) -> Any:
    """Trains three steps. Without sync only the last backward of a step is outside of no_sync()."""
    module = program.shard(lambda: Net(use))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for step in range(3):
        for micro in range(accumulate):
            def loss(rank: int) -> torch.Tensor:
                x = models.numbers(rank, step * accumulate + micro, 4, WIDTH).requires_grad_()
                return module(x).square().mean()

            alone = program.sharded and not sync and micro < accumulate - 1
            with zt.no_sync(module) if alone else nullcontext():
                program.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return cases.state(module)


def table(names: Any = USES, **options: Any) -> dict[str, cases.Case]:
    return {name: partial(train, USES[name], **options) for name in names}


class Nested(unittest.TestCase):
    def test_one_rank(self) -> None:
        """every use of blocks, on one rank"""
        cases.check(daemon.socket, 1, table())

    def test_two_ranks(self) -> None:
        """every use of blocks, on two ranks"""
        cases.check(daemon.socket, 2, table())

    def test_four_ranks(self) -> None:
        """the hardest uses, on four ranks"""
        cases.check(daemon.socket, 4, table(HARD))

    def test_slots(self) -> None:
        """the hardest uses, with slots"""
        cases.check(daemon.socket, 2, table(HARD), slots=True)

    def test_stage_2(self) -> None:
        """the hardest uses, with stage 2"""
        cases.check(daemon.socket, 2, table(HARD), stage=2)

    def test_accumulation(self) -> None:
        """the sum of two backwards, each summed over the ranks"""
        cases.check(daemon.socket, 2, table(accumulate=2))

    def test_no_sync(self) -> None:
        """the sum of two backwards, with the first one in no_sync()"""
        for stage in (3, 1):
            cases.check(daemon.socket, 2, table(HARD, accumulate=2, sync=False), stage=stage)


if __name__ == "__main__":
    support.main()
