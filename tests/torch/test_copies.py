#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deepcopy() of sharded models: averages of weights, reference models."""
from __future__ import annotations

import copy
import gc
import unittest
from functools import partial
from typing import Any

import cases
import harness
import models
import torch
from cases import Program, state, whole
from harness import support
from torch import nn
from torch.optim import swa_utils

import zerod.torch as zt


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M", host_arena="64M").for_module()


class Net(models.MLP):
    """With a tied weight, a buffer and a hook of the program's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[2][0].weight = self.layers[0][0].weight
        self.gain = nn.Parameter(torch.ones(5))
        self.register_buffer("scale", torch.ones(5))
        self.calls: list[int] = []
        self.last.register_forward_hook(lambda *_: self.calls.append(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.gain


def batch(number: int) -> torch.Tensor:
    return models.numbers(number, 0, 6, 13)


def averaged(how: dict[str, Any], options: dict[str, Any], program: Program) -> Any:
    """Trains a model against a frozen copy, and averages it. The averages train on, too."""
    module = program.shard(Net, **options)
    average, reference = swa_utils.AveragedModel(module, **how), copy.deepcopy(module).requires_grad_(False)
    optimizer, seen = models.adamw(module), []
    for step in range(3):
        program.backward(lambda rank: (module(batch(10 * step + rank)) - 2 * reference(batch(step))).square().mean())
        harness.step_with(optimizer)
        optimizer.zero_grad()
        module.scale.mul_(1.5)
        average.update_parameters(module)
        with torch.no_grad():
            seen += [average(batch(step)), whole(dict(average.state_dict())), reference(batch(step))]
    second = copy.deepcopy(average)
    del average
    optimizer = models.sgd(second.module)
    program.backward(lambda rank: second(batch(rank)).square().mean())
    harness.step_with(optimizer)
    return seen, state(module), state(second), state(reference), bool(module.calls)


class Copies(unittest.TestCase):
    def test_averages(self) -> None:
        """AveragedModel and a reference model have what one process has"""
        table: dict[str, dict[str, Any]] = {"mean": {}, "ema": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
                                            "buffers": {"avg_fn": swa_utils.get_ema_avg_fn(0.9), "use_buffers": True}}
        for world, options in ((1, {}), (2, {"slots": True}), (4, {"stage": 2}), (2, {"offload": "params"}), (2, {"stage": 1})):
            with self.subTest(world=world, **options):
                cases.check(daemon.socket, world, {name: partial(averaged, how, options) for name, how in table.items()})

    def test_options(self) -> None:
        """masters in halves, what was frozen since, ignored parameters and blocks are the copy's; its memory goes with it"""
        def body(rank: int) -> None:
            module = harness.seeded(Net).to(models.DEVICE)
            zt.shard(module.layers[1], param_dtype=torch.bfloat16)
            harness.shard(module, param_dtype=torch.bfloat16, ignored_params=[module.gain])
            module.first.requires_grad_(False)
            module.gain.data.fill_(rank)
            optimizer = zt.AdamW(each for each in module.parameters() if hasattr(each, "part"))
            models.mlp_loss(module, rank, 0)
            optimizer.step()
            made = copy.deepcopy(module)
            harness.same(state(made), state(module))
            told = [[[(name, each.requires_grad, hasattr(each, "part")) for name, each in some.named_parameters()],
                     [(len(each._forward_hooks), len(each._forward_pre_hooks), len(each._state_dict_hooks)) for each in some.modules()],
                     [block.name for block in zt.model_of(some).blocks]] for some in (made, module)]
            self.assertEqual(*told)
            self.assertEqual(told[0][2], ["", "layers.1"])
            models.mlp_loss(made, rank, 0)
            zt.AdamW(each for each in made.parameters() if hasattr(each, "part")).step()
            models.mlp_loss(made, rank, 1)
            zt.barrier(made)
            before = zt.summary(module).allocated_bytes
            del made
            gc.collect()
            zt.barrier(module)
            self.assertLess(zt.summary(module).allocated_bytes, before)
            models.mlp_loss(module, rank, 1)

        harness.ranks(daemon.socket, 2, body)

    def test_mistakes(self) -> None:
        """parts, copies in a forward, durable jobs; a parameter alone is copied as a tensor of this rank's range"""
        def body(rank: int) -> None:
            module = harness.shard(Net())
            for part in (module.layers, module.first):
                with self.assertRaisesRegex(TypeError, "is not copied alone"):
                    copy.deepcopy(part)
            hook = module.last.register_forward_hook(lambda *_: copy.deepcopy(module))
            with self.assertRaisesRegex(RuntimeError, "sharded Net in its forward"):
                module(batch(0))
            hook.remove()
            with self.assertRaisesRegex(TypeError, "has durable="):
                copy.deepcopy(zt.shard(nn.Linear(2, 2), durable="copied"))
            parameter = module.first.weight
            for made in (copy.copy(parameter), copy.deepcopy(parameter)):
                self.assertTrue(isinstance(made, zt.ShardedTensor) and torch.equal(made.detach(), parameter.detach()))

        harness.ranks(daemon.socket, 1, body)


if __name__ == "__main__":
    support.main()
