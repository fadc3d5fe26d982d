#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training as a user writes it equals one process bit for bit."""
from __future__ import annotations

import unittest
from functools import partial
from typing import Any

import harness
import models
import torch
from harness import compare, support
from torch import nn

import zerod.torch as zt


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


class Train(unittest.TestCase):
    def test_mlp(self) -> None:
        """an MLP on 1, 2, 3 and 4 ranks: SGD, AdamW, foreach; stages 2 and 3"""
        for world, optimize, stage in ((1, models.sgd, 3), (2, models.sgd, 3), (3, models.adamw, 2),
                                       (4, models.adamw_foreach, 3)):
            with self.subTest(world=world):
                compare(daemon.socket, world, models.MLP, optimize, models.mlp_loss, stage=stage)

    def test_gpt(self) -> None:
        """a tied GPT, 50 steps, float32"""
        for world in (2, 4):
            compare(daemon.socket, world, models.GPT, models.adamw, models.gpt_loss, steps=50)

    def test_gpt_bfloat16(self) -> None:
        """a tied GPT, 50 steps, bfloat16 with float32 masters; reduced in bfloat16 and in float32"""
        for world, reduce_dtype in ((2, None), (4, torch.float32)):
            compare(daemon.socket, world, models.GPT, models.adamw, models.gpt_loss, steps=50, dtype=torch.bfloat16,
                    reduce_dtype=reduce_dtype)

    def test_stages(self) -> None:
        """stages 1, 2 and 3, and persistent units, on 2 and 4 ranks: each step uses the weights of the step before it"""
        for options in ({"stage": 1}, {"stage": 2}, {"stage": 3}, {"persist_below": 1 << 40}, {"persist_below": 500}):
            for world in (2, 4):
                with self.subTest(world=world, **options):
                    compare(daemon.socket, world, models.GPT, models.adamw, models.gpt_loss, steps=6, dtype=torch.bfloat16,
                            empty=False, **options)

    def test_inputs(self) -> None:
        """floating inputs are cast with param_dtype, in lists and by name, and their gradients are in the inputs' own dtype"""
        class Many(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(8, 8)

            def forward(self, pair: Any, *, index: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
                self.seen = [each.dtype for each in (*pair, index, scale)]
                return self.inner(pair[0] + pair[1][index]) * scale

        def body(_: int, casts: bool) -> Any:
            module = harness.shard(Many(), param_dtype=torch.bfloat16, cast_forward_inputs=casts)
            wide = torch.randn(4, 8, requires_grad=True)
            module([wide if casts else wide.bfloat16(), torch.ones(4, 8).bfloat16()], index=torch.arange(4), scale=torch.tensor(2.0)).sum().backward()
            return module.seen, wide.grad.dtype

        narrow, wide = torch.bfloat16, torch.float32
        self.assertEqual(harness.ranks(daemon.socket, 2, partial(body, casts=True)), [([narrow, narrow, torch.int64, narrow], wide)] * 2)
        self.assertEqual(harness.ranks(daemon.socket, 2, partial(body, casts=False)), [([narrow, narrow, torch.int64, wide], wide)] * 2)

    def test_outputs(self) -> None:
        """floating outputs of the module, not of its blocks, are cast to output_dtype, in lists and dictionaries"""
        class Several(models.MLP):
            def forward(self, x: torch.Tensor) -> Any:
                return {"y": [super().forward(x), torch.arange(3)]}

        def loss(module: nn.Module, rank: int, micro: int) -> torch.Tensor:
            y, index = module(models.numbers(rank, micro, 6, 13).to(models.dtype_of(module)))["y"]
            self.assertEqual((y.dtype, index.dtype), (torch.float32 if zt.is_sharded(module) else torch.bfloat16, torch.int64))
            made = y.float().square().mean()
            made.backward()
            return made.detach().cpu()

        for world, options in ((1, {}), (2, {"slots": True}), (2, {"stage": 2})):
            compare(daemon.socket, world, Several, models.adamw, loss, dtype=torch.bfloat16, output_dtype=torch.float32, **options)

    def test_inner_first(self) -> None:
        """modules that are sharded before their parent are its blocks, as with fully_shard(); with other options they are not"""
        def body(rank: int) -> Any:
            module = harness.seeded(models.MLP)
            for layer in module.layers:
                zt.shard(layer, **{**harness.OPTIONS, "param_dtype": torch.bfloat16})
            for options, text in (({"policy": []}, "policy= beside layers.0"), ({}, "sharded with param_dtype=torch.bfloat16, .* has None")):
                with self.assertRaisesRegex(ValueError, text):
                    zt.shard(module, **{**harness.OPTIONS, **options})
            harness.shard(module, param_dtype=torch.bfloat16)
            seen = harness.train(module, models.sgd(module), models.mlp_loss, rank, 3)
            blocks = {block.module for block in module._zerod_model.blocks}
            return seen, harness.slices(module), blocks == {module, *module.layers}

        results = harness.ranks(daemon.socket, 2, body)
        losses, expected = harness.alone(lambda: harness.reference(models.MLP, models.sgd, models.mlp_loss, 2, 3, dtype=torch.bfloat16))
        harness.same([result[0] for result in results], losses)
        harness.same(harness.whole([result[1] for result in results]), expected)
        self.assertEqual([result[2] for result in results], [True, True])

    def test_all_bfloat16(self) -> None:
        """a model that is bfloat16 itself: the optimizer works on the shards"""
        compare(daemon.socket, 2, lambda: models.GPT().bfloat16(), models.adamw, models.gpt_loss)

    def test_narrow_masters(self) -> None:
        """a model that is bfloat16 itself and is gathered in float32, also where shards of bfloat16 would be longer ones"""
        for world in (2, 3):
            with self.subTest(world=world):
                compare(daemon.socket, world, lambda: models.MLP().bfloat16(), models.sgd, models.mlp_loss, dtype=torch.float32)


if __name__ == "__main__":
    support.main()
