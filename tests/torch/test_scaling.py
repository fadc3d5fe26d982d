#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loss scaling and clipping as in the recipes of torch.amp, with two optimizers, compared with one process."""
from __future__ import annotations

import unittest
from functools import partial
from typing import Any

import cases
import models
import torch
from cases import Program, state
from harness import support
from torch import nn
from torch.nn.utils import clip_grad_norm_

import zerod.torch as zt


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


class Towers(nn.Module):
    """Two layers in one unit, with independent gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(7, 5), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return self.left(x).square().mean() + self.right(x).square().mean() * factor


def optimizers_of(module: nn.Module, fused: bool = False) -> list[torch.optim.Optimizer]:
    """Fused ones receive the scale and whether a gradient has overflown, and skip the step themselves."""
    return [torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9, fused=fused) for part in (module.left, module.right)]


def clip(program: Program, module: nn.Module, by: str) -> torch.Tensor:
    if by == "zerod's" and program.sharded:
        return zt.clip_grad_norm_(module, 0.1)
    return clip_grad_norm_(module.parameters(), 0.1 if by == "zerod's" else 0.05)


def recipe(clips: str, program: Program) -> Any:
    """Scale, unscale, clip, step, update."""
    module = program.shard(Towers)
    optimizers = optimizers_of(module)
    scaler = torch.amp.GradScaler(models.DEVICE, init_scale=1024.0, growth_interval=2)
    seen: list[Any] = []
    for step in range(3):
        scaler.scale(program.loss(lambda rank: module(models.numbers(rank, step, 6, 7)))).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        seen += [clip(program, module, by) for by in clips.split(", ")]
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        seen.append(scaler.get_scale())
    return seen, state(module)


def overflow(unscale: str, fused: bool, program: Program) -> Any:
    """In step 1 the right tower's gradients overflow on the last rank. All ranks skip that tower's optimizer only."""
    module = program.shard(Towers)
    optimizers = optimizers_of(module, fused)
    scaler = torch.amp.GradScaler(models.DEVICE, init_scale=1024.0, growth_interval=100)
    seen = []
    for step in range(3):
        def loss(rank: int) -> torch.Tensor:
            factor = float("inf") if (step, rank) == (1, program.world - 1) else 1.0
            return module(models.numbers(rank, step, 6, 7), factor)

        scaler.scale(program.loss(loss)).backward()
        for optimizer in optimizers if unscale == "before" else ():
            scaler.unscale_(optimizer)
        for optimizer in optimizers:
            if unscale == "between":
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        seen += [scaler.get_scale(), state(module)]
    return seen


TABLE: dict[str, cases.Case] = {
    **{f"{clips} clipping": partial(recipe, clips)
       for clips in ("torch's", "zerod's", "torch's, zerod's", "zerod's, torch's")},
    **{f"overflow of one optimizer, unscale_() {unscale}, fused={fused}": partial(overflow, unscale, fused)
       for unscale in ("never", "before", "between") for fused in (False, True)},
}


class Scaling(unittest.TestCase):
    def test_recipes(self) -> None:
        """GradScaler with torch's and zerod's clipping, and an overflow on one rank in one of two optimizers"""
        for world in (1, 2, 4):
            with self.subTest(world=world):
                cases.check(daemon.socket, world, TABLE)


if __name__ == "__main__":
    support.main()
