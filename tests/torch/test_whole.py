#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole gradients and optimizer state of one parameter, compared with one process; what one rank reads alone."""
from __future__ import annotations

import copy
import itertools
import json
import unittest
from functools import partial
from typing import Any, Callable

import cases
import harness
import models
import torch
from cases import Program, state
from harness import support
from test_halves import optimizer as halves
from torch import nn

import zerod
import zerod.torch as zt


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M", host_arena="64M").for_module()


def gradients(program: Program, optimize: Callable) -> Any:
    """Reads a whole gradient, sets it, and steps. One parameter has none."""
    module = program.shard(models.partly_frozen)
    optimizer, weight = optimize(module), module.first.weight
    read = zt.full_grad if program.sharded else lambda p: p.grad
    seen = []
    for micro in range(3):
        optimizer.zero_grad()
        program.backward(lambda rank: module(models.numbers(rank, micro, 6, 13)).square().mean())
        seen += [read(weight), read(module.layers[0][0].weight)]
        weight.grad = -2 * seen[-2]
        seen.append(read(weight))
        optimizer.step()
    return seen, state(module)


def states(program: Program, optimize: Callable) -> Any:
    """The state of one optimizer becomes another one's, changed."""
    module = program.shard(models.MLP)
    first, second, weight = optimize(module), optimize(module), module.layers[1][0].weight
    seen = []
    for number, optimizer in enumerate((first, first, second)):
        optimizer.zero_grad()
        program.backward(lambda rank: module(models.numbers(rank, number, 6, 13)).square().mean())
        if number == 2:
            values = zt.full_state(first, weight) if program.sharded else copy.deepcopy(first.state[weight])
            seen.append(copy.deepcopy(values))
            values["exp_avg"] = 2 * values["exp_avg"]
            if program.sharded:
                zt.set_full_state(second, weight, values)
            else:
                second.state[weight] = values
        optimizer.step()
    return seen, state(module)


def zerods(module: Any) -> torch.optim.Optimizer:
    sharded = hasattr(module, "_zerod_model")
    return zt.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1) if sharded else models.adamw(module)


def close(actual: Any, expected: Any) -> None:
    """zerod's AdamW rounds in other places than torch's."""
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


class Wholes(unittest.TestCase):
    def test_equal(self) -> None:
        """on 1, 2 and 4 ranks, with torch's optimizer and zerod's"""
        for world in (1, 2, 4):
            for options in ({}, {"offload": "all"}, {"stage": 1}):
                with self.subTest(world=world, **options):
                    cases.check(daemon.socket, world, {f"{case.__name__}-{optimize.__name__}": partial(case, optimize=optimize)
                                for case in (gradients, states) for optimize in (models.adamw, zerods)}, close, **options)

    def test_masters(self) -> None:
        """state of masters is that of a full state dict; what is set is there; mistakes are named"""
        def body(optimize: Callable, rank: int) -> None:
            module = harness.shard(harness.seeded(models.MLP), param_dtype=torch.bfloat16)
            optimizer, weight, bias = optimize(module), module.first.weight, module.first.bias
            self.assertIsNone(zt.full_grad(weight))
            self.assertEqual(zt.full_state(optimizer, weight), {})
            harness.train(module, optimizer, models.mlp_loss, rank, 2)
            values = zt.full_state(optimizer, weight)
            harness.same(values, zt.state_dict(module, optimizer, full=True)["optimizer"]["state"]["first.weight"])
            values["exp_avg_sq"] += 1
            zt.set_full_state(optimizer, weight, values)
            harness.same(zt.full_state(optimizer, weight), values)
            for call in (lambda: zt.set_full_state(optimizer, weight, zt.full_state(optimizer, bias)),
                         lambda: zt.set_full_state(optimizer, weight, {"step": 1}),
                         lambda: zt.full_state(torch.optim.SGD([weight]), bias), lambda: zt.full_grad(torch.nn.Parameter(torch.ones(3)))):
                with self.assertRaisesRegex(ValueError, "first.weight|first.bias|sharded"):
                    call()
            with self.assertRaisesRegex(RuntimeError, "first.weight went with"):
                zt.full_grad(weight)

        for optimize in (models.adamw, zerods):
            harness.ranks(daemon.socket, 2, partial(body, optimize))


def partly_frozen() -> nn.Module:
    """Its blocks have two units each."""
    module = models.MLP()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not name.endswith("bias"))
    return module


class Alone(unittest.TestCase):
    def test_masters(self) -> None:
        """rank 0 alone reads masters: it learns when another rank goes on, or waits in a barrier, and training goes on"""
        def losses(module: Any, rank: int, micro: int) -> Any:
            if hasattr(module, "_zerod_model") and rank == 0 and micro:
                with self.assertRaisesRegex(zerod.Mismatch, "all ranks must read them.*rank 0 agrees, and rank [12] has begun"):
                    module.state_dict()
            return models.mlp_loss(module, rank, micro)

        def ends(rank: int) -> None:
            module = harness.shard(harness.seeded(models.MLP), param_dtype=torch.bfloat16)
            if rank == 0:
                with self.assertRaisesRegex(zerod.Mismatch, "all ranks must read them"):
                    module.state_dict()
            zt.barrier(module)

        for optimize in (models.adamw, partial(halves, "AdamW", lr=1e-2)):
            for options in ({}, {"offload": "all"}):
                with self.subTest(optimize, **options):
                    harness.compare(daemon.socket, 3, models.MLP, optimize, losses, dtype=torch.bfloat16, **options)
        harness.ranks(daemon.socket, 3, ends)

    def test_reads_alone(self) -> None:
        """one rank alone uses a gradient and evaluates, while the others step: it is told at once, and may still step"""
        def body(rank: int, reads: str, steps: bool, optimize: Callable, options: dict[str, Any]) -> Any:
            module = harness.shard(harness.seeded(partly_frozen), **options)
            optimizer, told = optimize(module), -1
            models.mlp_loss(module, rank, 0)
            if reads and rank == 0:
                with self.assertRaisesRegex(zerod.Mismatch, "rank [1-3] has begun an update of unit .* for rank 0 to agree"):
                    if reads == "norm":
                        with self.assertRaisesRegex(zerod.Mismatch, "rank 0 agrees on the sum"):
                            zt.clip_grad_norm_(module, 1e9)
                    while module.first.weight.grad.clone() is not None:  # until the others have begun their updates
                        with torch.no_grad():
                            module(torch.ones(2, 13, dtype=options.get("param_dtype")))
            try:
                if rank or steps:
                    optimizer.step()
            except zt.StepTorn as torn:
                told = torn.rank
            optimizer.zero_grad()
            models.mlp_loss(module, rank, 1)
            optimizer.step()
            zt.barrier(module)
            held = [row["unit"] for row in json.loads(support.zeroctl(daemon, "buffers", "--json"))["rows"] if row["holders"]]
            zt.barrier(module)
            return told, held, harness.slices(module) if steps else None

        by_units: Any = ({"param_dtype": torch.bfloat16}, lambda module: zt.AdamW(module.parameters()))  # steps by units
        for world, (options, optimize) in itertools.product((2, 4), (({}, models.sgd), ({"slots": True, "stage": 2}, models.adamw),
                                                                     ({"offload": "all"}, models.adamw), by_units)):
            with self.subTest(world=world, **options):
                run = partial(body, optimize=optimize, options=options)
                plain, grad, norm, torn = [harness.ranks(daemon.socket, world, lambda rank: run(rank, reads, steps))
                                           for reads, steps in (("", True), ("grad", True), ("norm", True), ("grad", False))]
                harness.same([grad, norm, torn], [plain, plain, [(0 if rank else -1, [], None) for rank in range(world)]])

    def test_agrees_alone(self) -> None:
        """one rank alone agrees; the others begin the second backward of a step, or abandon theirs and begin the next"""
        def body(rank: int, abandons: bool) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            optimizer = models.sgd(module)
            models.mlp_loss(module, rank, 0)
            if rank and abandons:
                zt.abandon(module)
            if rank == 0:
                with self.assertRaisesRegex(zerod.Mismatch, "rank 0 agrees, and rank [1-3] has begun the next backward"):
                    module.first.weight.detach().norm()
                if abandons:
                    with self.assertRaisesRegex(zt.StepAbandoned, "rank [1-3] "):
                        optimizer.step()
                    optimizer.zero_grad()
            models.mlp_loss(module, rank, 1)
            optimizer.step()
            return harness.slices(module)

        for world, abandons in itertools.product((2, 4), (False, True)):
            harness.ranks(daemon.socket, world, partial(body, abandons=abandons))


if __name__ == "__main__":
    support.main()
