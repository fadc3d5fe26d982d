#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ignored_params of shard(): parameters that stay plain ones on each rank."""
from __future__ import annotations

import tempfile
import unittest
from functools import partial
from typing import Any

import cases
import harness
import models
import torch
from harness import same, support
from torch import nn

import zerod.torch as zt
from zerod.torch.state import checkpointable


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M", host_arena="64M").for_module()


class Gain(models.MLP):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.gain


def ignored(module: nn.Module, every: bool = True) -> dict[str, nn.Parameter]:
    """The gain, and a whole block."""
    return {name: each for name, each in module.named_parameters() if name == "gain" or every and name.startswith("layers.1.")}


def sharded(every: bool = True, **options: Any) -> nn.Module:
    module = harness.seeded(Gain).to(models.DEVICE)
    return harness.shard(module, ignored_params=set(ignored(module, every).values()), **options)


def reference(world: int, micros: int) -> list[Any]:
    """The parameters of each rank, in one process: it averages the gradients that are not ignored."""
    ranks = [harness.seeded(Gain).to(models.DEVICE) for _ in range(world)]
    optimizers = [models.adamw(module) for module in ranks]
    for step in range(3):
        for rank, module in enumerate(ranks):
            for micro in range(micros):
                models.mlp_loss(module, rank, step * micros + micro)
        for parameters in zip(*[module.parameters() for module in ranks]):
            if not any(parameters[0] is each for each in ignored(ranks[0]).values()):
                total = sum((each.grad for each in parameters[1:]), parameters[0].grad) / world
                for each in parameters:
                    each.grad = total.clone()
        for optimizer in optimizers:
            harness.step_with(optimizer)
            optimizer.zero_grad()
    return [cases.state(module) for module in ranks]


class Ignored(unittest.TestCase):
    def test_training(self) -> None:
        """their gradients are each rank's own, those of the others are averaged"""
        def body(options: dict[str, Any], micros: int, rank: int) -> Any:
            module = sharded(**options)
            optimizer = models.adamw(module)
            if options.get("offload") and micros == 2:
                zt.optimizer_in_backward(module, optimizer)
            for step in range(3):
                with zt.no_sync(module):
                    for micro in range(micros - 1):
                        models.mlp_loss(module, rank, step * micros + micro)
                models.mlp_loss(module, rank, step * micros + micros - 1)
                harness.step_with(optimizer)
                optimizer.zero_grad()
            kept = cases.state(module)
            zt.unshard(module)
            harness._models.pop()
            same(cases.whole(dict(module.named_parameters())), kept, "unsharded ")
            return kept

        for world, micros, options in ((1, 1, {}), (2, 2, {"stage": 2}), (4, 1, {"slots": True}), (2, 2, {"offload": "params"}),
                                       (2, 1, {"stage": 1})):
            with self.subTest(world=world, **options):
                expected = harness.alone(partial(reference, world, micros))
                for rank, found in enumerate(harness.ranks(daemon.socket, world, partial(body, options, micros))):
                    (same if micros == 1 else cases.close)(found, expected[rank])

    @unittest.skipUnless(checkpointable(), "this torch's checkpoints do not ask a tensor for its parts")
    def test_checkpoints(self) -> None:
        """state_dict(full=True) has each rank's own values and state, and save() those of rank 0"""
        def kept(module: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
            return [cases.whole([each, optimizer.state[each]]) for each in ignored(module, False).values()]

        def body(rank: int) -> Any:
            module = sharded(False, param_dtype=torch.bfloat16)
            optimizer = models.adamw(module)
            harness.train(module, optimizer, models.mlp_loss, rank, 2)
            before, state = kept(module, optimizer), cases.whole(zt.state_dict(module, optimizer, full=True))
            other = sharded(False, param_dtype=torch.bfloat16, name="other")
            zt.load_state_dict(other, state, made := models.adamw(other))
            same(kept(other, made), before, "loaded ")
            zt.save(folder, module, optimizer)
            zt.load(folder, other, made)
            harness.train(other, made, models.mlp_loss, rank, 1)
            zt.load(folder, other, made)
            other.load_state_dict({"gain": torch.ones(5)}, strict=False, assign=True)
            harness.train(other, made, models.mlp_loss, rank, 1)
            zt.load(folder, other, made)
            return before, kept(other, made)

        with tempfile.TemporaryDirectory() as folder:
            results = cases.gloo(daemon.socket, 2, body)
        self.assertFalse(torch.equal(results[0][0][0][0], results[1][0][0][0]))
        for _, found in results:
            same(found, results[0][0], "read ")

    def test_norms(self) -> None:
        """clip_grad_norm_() of ours is for the others; that of torch raises where ranks have different norms"""
        def body(rank: int) -> Any:
            module = sharded(False)
            models.mlp_loss(module, rank, 0)
            own = module.gain.grad.clone()
            torch.nn.utils.clip_grad_norm_([each for name, each in module.named_parameters() if name != "gain"], 1e-2)
            norm = zt.clip_grad_norm_(module, 1e-3)
            self.assertTrue(torch.equal(module.gain.grad, own) and abs(norm - 1e-2) < 1e-4)
            with self.assertRaisesRegex(RuntimeError, "the norm .* such as gain"):
                torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            module.gain.grad.fill_(float("nan") if rank else 0.0)
            with self.assertRaisesRegex(RuntimeError, "the norm .* is nan on one rank"):
                torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            module.gain.grad.fill_(1.0)
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            models.sgd(module).step()

        harness.ranks(daemon.socket, 2, body)

    def test_nested(self) -> None:
        """blocks that were sharded before have the same ignored parameters"""
        def body(rank: int) -> None:
            module = harness.seeded(Gain).to(models.DEVICE)
            wanted = list(ignored(module).values())
            zt.shard(module.layers[1][1], ignored_params=wanted[3:])
            with self.assertRaisesRegex(ValueError, "layers.1.1.weight is in ignored_params of one call"):
                zt.shard(module, ignored_params=wanted[:3])
            harness.shard(module, ignored_params=iter(wanted))
            harness.train(module, models.adamw(module), models.mlp_loss, rank, 2)
            module.gain = wanted[0]
            models.mlp_loss(module.to(models.DEVICE), rank, 0)

        harness.ranks(daemon.socket, 2, body)

    def test_mistakes(self) -> None:
        """parameters of other modules, of others' memory, without values; durable=; optimizers of units"""
        def body(rank: int) -> None:
            module, plain = models.MLP(), models.MLP()
            module.tied = nn.Parameter(module.first.weight.detach()[1:])
            other = nn.Parameter(torch.ones(3))
            for wrong, text, options in (([other], "a Parameter of shape .3,., which is no parameter of MLP", {}),
                                         (["tied"], "has 'tied', which", {}), ([module.tied], "first.weight shares memory", {}),
                                         ([plain.last.bias], "durable= .*last.bias", {"durable": "job"})):
                for call in (zt.shard,) if options else (zt.shard, partial(zt.plan, world_size=2)):
                    with self.assertRaisesRegex(ValueError, text):
                        call(plain if options else module, ignored_params=wrong, **options)
            with self.assertRaisesRegex(ValueError, "bias of ignored_params is on the meta device"):
                meta = nn.Linear(2, 2, device="meta")
                zt.shard(meta, ignored_params=[meta.bias])
            self.assertEqual(zt.plan(meta, 1, ignored_params=meta.parameters()).units, [])
            with self.assertRaisesRegex(ValueError, "ignored_params"):
                zt.AdamW(sharded().parameters())

        harness.ranks(daemon.socket, 1, body)


if __name__ == "__main__":
    support.main()
