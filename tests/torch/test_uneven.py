#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks with fewer batches than others: skip() and join()."""
from __future__ import annotations

import unittest
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable

import harness
import models
import test_failures
import test_mesh
import torch
from harness import support
from test_halves import optimizer as halves
from torch import nn

import zerod
import zerod.torch as zt

RAISED = (test_failures.Trouble, zt.StepAbandoned, zt.StepTorn)


def setUpModule() -> None:
    global daemon
    daemon = test_mesh.daemon = support.Daemon(devices=4, arena="128M", host_arena="64M").for_module()


class Skipping:
    """A loss of ranks that have no batch in some steps."""

    def __init__(self, has: Callable[[int, int], bool], loss: Callable = models.mlp_loss) -> None:
        self.has, self.loss = has, loss

    def __call__(self, module: nn.Module, rank: int, micro: int) -> Any:
        if self.has(rank, micro):
            return self.loss(module, rank, micro)
        if hasattr(module, "_zerod_model"):
            zt.skip(module)
        return None


def own_steps(rank: int, steps: int) -> int:
    """Rank 1 has the most, rank 0 none."""
    return rank and steps + 1 - rank


def joined(module: nn.Module, optimizer: Any, losses: Any, rank: int, steps: int, accumulate: int, clips: Any, local: bool = False,
           ends: Callable = own_steps) -> Any:
    """The loop of a rank, which ends early, and a forward after it."""
    def step() -> None:
        if clips:
            zt.clip_grad_norm_(module, 1e9)
        harness.step_with(optimizer)

    seen = []
    steppers = getattr(optimizer, "steppers", [optimizer])
    with zt.join(module, *steppers, step=step if clips else None, backwards=1 if local else accumulate):
        for number in range(ends(rank, steps)):
            optimizer.zero_grad()
            for micro in range(accumulate):
                with zt.no_sync(module) if local and micro < accumulate - 1 else nullcontext():
                    seen.append(losses(module, rank, number * accumulate + micro))
            step()
    with torch.no_grad():
        module(torch.zeros(1, 13, dtype=models.dtype_of(module), device=models.DEVICE))
    return seen + [None] * (steps * accumulate - len(seen))


class Scheduled:
    """SGD with a rate for each step."""

    def __init__(self, module: nn.Module) -> None:
        optimizer = models.sgd(module)
        self.steppers = [optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]
        self.zero_grad = optimizer.zero_grad

    def step(self) -> None:
        for each in self.steppers:
            each.step()


class Uneven(unittest.TestCase):
    """Losses and weights are those of one process, in which the ranks without a batch give no gradient."""

    def join(self, world: int, optimize: Callable = models.adamw, accumulate: int = 1, local: bool = False, **options: Any) -> None:
        losses = Skipping(lambda rank, micro: micro // accumulate < own_steps(rank, 4))
        harness.compare(daemon.socket, world, models.MLP, optimize, losses, accumulate=accumulate, local=local,
                        train_with=partial(joined, local=local), **options)

    def test_skip(self) -> None:
        """in all steps, in some, in one of the backwards of a step, and on all ranks at once"""
        for world, has in ((1, lambda rank, micro: micro != 1), (2, lambda rank, micro: rank == 0),
                           (4, lambda rank, micro: (rank + micro) % 3 > 0), (2, lambda rank, micro: micro not in (1, 4, 5))):
            for options in ({}, {"dtype": torch.bfloat16}, {"accumulate": 2}):
                with self.subTest(world=world, **options):
                    harness.compare(daemon.socket, world, models.MLP, models.adamw, Skipping(has), **options)

    def test_skip_and_options(self) -> None:
        """with stages, slots and offload; zerod's optimizers, also in the backward"""
        each: Any = ({"slots": True}, {"stage": 2}, {"stage": 1, "empty": False}, {"offload": "all"}, {"offload": "optimizer"})
        for options in each:
            for dtype in (None, torch.bfloat16):
                with self.subTest(dtype=dtype, **options):
                    self.join(3, dtype=dtype, **options)
        for in_backward in (False, True):
            for options in ({}, {"offload": "all"}, {"slots": True}):
                with self.subTest(in_backward=in_backward, **options):
                    self.join(3, partial(halves, "AdamW", lr=1e-2, in_backward=in_backward), dtype=torch.bfloat16, **options)

    def test_join(self) -> None:
        """on 1, 2 and 4 ranks, of which one has no batch; several backwards a step, no_sync(), clipping, a scheduler"""
        clip: Any = {"before_step": lambda module, optimizer: True}
        for world in (1, 2, 4):
            for options in ({}, {"accumulate": 3, "local": True}, {"accumulate": 2}, {"optimize": Scheduled}, clip):
                with self.subTest(world=world, **options):
                    self.join(world, **options)

    def test_meshes(self) -> None:
        """rows of two ranks"""
        def body(rank: int, mesh: Any) -> Any:
            module = harness.shard(harness.seeded(models.MLP), process_group=mesh)
            seen = joined(module, models.adamw(module), models.mlp_loss, rank, 4, 1, False)
            return seen, harness.slices(module)

        results = test_mesh.mesh_ranks(body)
        losses = Skipping(lambda rank, micro: micro < own_steps(rank, 4))
        seen, expected = harness.alone(lambda: harness.reference(models.MLP, models.adamw, losses, 4, 4, rows=2))
        harness.same([result[0] for result in results], seen, "loss")
        harness.same(test_mesh.replicas([result[1] for result in results]), expected, "parameter ")


class Trouble(unittest.TestCase):
    """Rank 1 raises in its third step. Rank 0 has left the loop before."""

    def outcomes(self, place: str, catches: bool = False, make: Callable = test_failures.Raising, **options: Any) -> list[Any]:
        def body(rank: int) -> Any:
            module = harness.shard(test_failures.Troubled(), **options)
            optimizer, told = make(module.parameters(), lr=0.1), ""
            try:
                with zt.join(module, optimizer):
                    for step in range(3 * rank):
                        here = place if rank == 1 and step == 2 else ""
                        module.where = optimizer.where = here
                        try:
                            self.step(module, optimizer, here, rank)
                        except RAISED as raised:
                            told = f"{told}{type(raised).__name__}{getattr(raised, 'rank', '')} "
                            if not catches:
                                raise
                            optimizer.where = ""
            except RAISED as raised:
                told += f"left by {type(raised).__name__}{getattr(raised, 'rank', '')}"
            zt.model_of(module).settle()
            return told

        return harness.ranks(daemon.socket, 3, body)

    def step(self, module: nn.Module, optimizer: Any, place: str, rank: int) -> None:
        optimizer.zero_grad()
        for where in ("data", "loss", "between", "read"):
            if where == "loss":
                loss = module(models.numbers(rank, 0, 6, 13)).square().mean()
            elif where == "between":
                loss.backward()
            if where == place == "read":
                module.first.weight.grad.read_local()
            if where == place:
                raise test_failures.Trouble(where)
        optimizer.step()

    def test_places(self) -> None:
        """ranks that are in the loop, and the one that has left it, learn of it, and leave as well"""
        for options in ({}, {"offload": "all"}):
            for place in ("data", "forward", "loss", "backward", "between"):
                with self.subTest(place, **options):
                    self.assertEqual(self.outcomes(place, **options), ["left by StepAbandoned1", "Trouble left by Trouble",
                                                                       "StepAbandoned1 left by StepAbandoned1"])
            for place in ("read", "optimizer", "middle"):
                with self.subTest(place, **options):
                    self.assertEqual(self.outcomes(place, **options), ["left by StepTorn1", "Trouble left by Trouble",
                                                                       "StepTorn1 left by StepTorn1"])

    def test_caught(self) -> None:
        """inside of the loop: it goes on for all ranks"""
        for place in ("forward", "backward"):
            with self.subTest(place):
                self.assertEqual(self.outcomes(place, catches=True), ["", "Trouble ", "StepAbandoned1 "])

    def test_torn(self) -> None:
        """a step that the loop tears and goes on: the rank that has left it is told at the end"""
        self.assertEqual(self.outcomes("optimizer", catches=True), ["left by StepTorn1", "Trouble ", "StepTorn1 "])

    def test_clips(self) -> None:
        """clipping in the loop, without step=: the ranks in it are told; no norm is taken for another agreement"""
        def body(rank: int, norm_type: float) -> str:
            module = harness.shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1, bias=False)))
            optimizer = models.sgd(module)
            try:
                with zt.join(module, optimizer):
                    for step in range(2 * rank):
                        module(models.numbers(rank, step, 3, 4)).square().mean().backward()
                        zt.clip_grad_norm_(module, 0.1, norm_type=norm_type)
                        optimizer.step()
            except (zerod.Mismatch, zt.StepTorn, zt.StepAbandoned) as error:
                return type(error).__name__
            return ""

        for norm_type in (2.0, float("inf")):
            for told in harness.ranks(daemon.socket, 2, lambda rank: body(rank, norm_type)):
                self.assertIn(told, ("Mismatch", "StepTorn", "StepAbandoned"))

    def test_local(self) -> None:
        """skip() inside of no_sync(), and a step without another backward"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            optimizer = models.sgd(module)
            with zt.no_sync(module):
                if rank == 0:
                    zt.skip(module)
                else:
                    models.mlp_loss(module, rank, 0)
            optimizer.step()
            return harness.slices(module)

        losses = Skipping(lambda rank, micro: rank > 0)
        _, expected = harness.alone(lambda: harness.reference(models.MLP, models.sgd, losses, 2, 1))
        harness.same(harness.whole(harness.ranks(daemon.socket, 2, body)), expected, "parameter ")

    def test_in_backward(self) -> None:
        """with an optimizer in the backward"""
        make = partial(zt.AdamW, in_backward=True)
        for place, what in (("data", "Abandoned"), ("forward", "Abandoned"), ("between", "Torn")):
            with self.subTest(place):
                self.assertEqual(self.outcomes(place, make=make), [f"left by Step{what}1", "Trouble left by Trouble",
                                                                   f"Step{what}1 left by Step{what}1"])

    def test_mistakes(self) -> None:
        """a scheduler that is missing, other numbers of backwards, gradients that are left, two models, no optimizer"""
        def loop(rank: int, module: nn.Module, count: int, steps: bool) -> None:
            made = Scheduled(module)
            with zt.join(module, made.steppers[0]):
                for number in range(count):
                    models.mlp_loss(module, rank, number)
                    if steps:
                        made.step()
                        made.zero_grad()

        def nested(rank: int, module: nn.Module, inner: Any) -> None:
            with zt.join(module, models.sgd(module)), zt.join(module, *inner):
                pass

        def body(call: Callable, rank: int) -> str:
            try:
                call(rank, harness.shard(harness.seeded(models.MLP)))
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            return ""

        for call, text in ((lambda rank, module: loop(rank, module, 2 * rank, True), "RuntimeError: .*learning rates"),
                           (lambda rank, module: loop(rank, module, 2 * rank, False), "2 backwards|StepAbandoned"),
                           (lambda rank, module: loop(rank, module, 1, False), "RuntimeError: .*between a backward|StepAbandoned"),
                           (lambda rank, module: nested(rank, module, [models.sgd(module)]), "another one"),
                           (lambda rank, module: nested(rank, module, []), "without an optimizer")):
            with self.subTest(text):
                for result in harness.ranks(daemon.socket, 2, partial(body, call)):
                    self.assertRegex(result, text)


if __name__ == "__main__":
    support.main()
