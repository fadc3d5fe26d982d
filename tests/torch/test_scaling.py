#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loss scaling and clipping as in the recipes of torch.amp, with two optimizers, compared with one process."""
from __future__ import annotations

import unittest
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import cases
import harness
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

    def forward(self, x: torch.Tensor, factor: float = 1.0, both: bool = True) -> torch.Tensor:
        right = self.right(x).square().mean() * factor
        return self.left(x).square().mean() + right if both else right


MAKE: dict[str, Any] = {"SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
                        "fused SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)}
OWN: dict[str, Any] = {"AdamW": {"lr": 0.1, "weight_decay": 0.1}, "Adam": {"lr": 0.1},
                       "SGD": {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}}


def make(program: Program, parameters: Any, kind: str) -> torch.optim.Optimizer:
    """Fused ones and zerod's receive the scale and whether a gradient has overflown, and skip the step themselves."""
    if not kind.startswith("zt."):
        return MAKE[kind](parameters)
    return getattr(zt if program.sharded else torch.optim, kind[3:])(parameters, **OWN[kind[3:]])


def optimizers_of(program: Program, module: nn.Module, kind: str = "SGD") -> list[torch.optim.Optimizer]:
    return [make(program, part.parameters(), kind) for part in (module.left, module.right)]


def clip(program: Program, module: nn.Module, by: str) -> torch.Tensor:
    if by == "zerod's" and program.sharded:
        return zt.clip_grad_norm_(module, 0.1)
    return clip_grad_norm_(module.parameters(), 0.1 if by == "zerod's" else 0.05)


def recipe(clips: str, kind: str, program: Program) -> Any:
    """Scale, unscale, clip, step, update."""
    module = program.shard(Towers)
    optimizers = optimizers_of(program, module, kind)
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


def overflow(unscale: str, kind: str, at: tuple[int, ...], program: Program) -> Any:
    """In some steps the right tower's gradients overflow on the last rank. All ranks skip that tower's optimizer only."""
    module = program.shard(Towers)
    optimizers = optimizers_of(program, module, kind)
    scaler = torch.amp.GradScaler(models.DEVICE, init_scale=1024.0, growth_interval=100)
    seen = []
    for step in range(2 + max(at)):
        def loss(rank: int) -> torch.Tensor:
            factor = float("inf") if step in at and rank == program.world - 1 else 1.0
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
    return seen, [steps_of(optimizer) for optimizer in optimizers]


def steps_of(optimizer: torch.optim.Optimizer) -> list[float]:
    states = [optimizer.state.get(parameter, {}) for group in optimizer.param_groups for parameter in group["params"]]
    counts = [float(each.get("step", 0)) for each in states]
    saved = optimizer.state_dict()["state"]
    assert [float(saved.get(number, {}).get("step", 0)) for number in range(len(counts))] == counts
    return counts


def uneven(program: Program) -> Any:
    """One optimizer, whose parameters have different numbers of steps. A checkpoint after step 4."""
    module = program.shard(Towers)
    optimizer = make(program, module.parameters(), "zt.AdamW")
    scaler = torch.amp.GradScaler(models.DEVICE, init_scale=1024.0)
    for step in range(9):
        def loss(rank: int) -> torch.Tensor:
            factor = float("inf") if step in (3, 6) and rank == 0 else 1.0
            return module(models.numbers(rank, step, 6, 7), factor, both=step % 3 == 0)

        scaler.scale(program.loss(loss)).backward()
        scaler.step(optimizer)
        optimizer.zero_grad()
        scaler.update()
        if step == 4:
            optimizer.load_state_dict(optimizer.state_dict())
    return state(module), steps_of(optimizer), scaler.get_scale()


TABLE: dict[str, cases.Case] = {
    **{f"{clips} clipping, {kind}": partial(recipe, clips, kind) for kind in ("SGD", "zt.AdamW")
       for clips in ("torch's", "zerod's", "torch's, zerod's", "zerod's, torch's")},
    **{f"overflow of one optimizer, unscale_() {unscale}, {kind}, at {at}": partial(overflow, unscale, kind, at)
       for unscale in ("never", "before", "between") for kind, at in (("SGD", (1,)), ("fused SGD", (1,)), ("zt.AdamW", (2, 3)))},
    **{f"overflow of one optimizer, {kind}, at {at}": partial(overflow, "never", kind, at)
       for kind in ("zt.AdamW", "zt.Adam", "zt.SGD") for at in ((0, 1, 4), (1, 3))},
    "different numbers of steps": uneven,
}


class Scaling(unittest.TestCase):
    def test_recipes(self) -> None:
        """GradScaler with torch's and zerod's clipping, and an overflow on one rank in one of two optimizers"""
        for world in (1, 2, 4):
            with self.subTest(world=world):
                cases.check(daemon.socket, world, TABLE)

    def test_no_wait(self) -> None:
        """zt.AdamW with GradScaler: from the third step Python reads no value of a tensor, also in a skipped step"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(Towers))
            optimizer = zt.AdamW(module.parameters())
            scaler = torch.amp.GradScaler(models.DEVICE, init_scale=1024.0)
            for step in range(4):
                scaler.scale(module(models.numbers(rank, step, 6, 7), float("inf") if (step, rank) == (2, 0) else 1.0)).backward()
                with ExitStack() as stack:
                    for name in ("item", "tolist", "cpu", "__bool__", "__float__", "__int__") if step > 1 else ():
                        stack.enter_context(mock.patch.object(torch.Tensor, name, side_effect=AssertionError(name)))
                    if step > 1 and models.DEVICE == "cuda":
                        torch.cuda.set_sync_debug_mode("error")
                        stack.callback(torch.cuda.set_sync_debug_mode, "default")
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            return steps_of(optimizer), scaler.get_scale()

        if harness.OPTIONS.get("offload") is None:
            harness.same(harness.ranks(daemon.socket, 2, body), [([3.0] * 4, 512.0)] * 2, "")


if __name__ == "__main__":
    support.main()
