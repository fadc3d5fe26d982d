#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which of torch's kernels an optimizer's step runs: foreach and fused ones get all of a rank's slices at once."""
from __future__ import annotations

import unittest
from collections import Counter
from typing import Any, Callable

import harness
import models
import torch
from harness import support
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena=harness.ARENA).for_module()


class Kernels(TorchDispatchMode):
    """Counts the operations that reach the dispatcher, and the tensors of each one's first argument."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: "Counter[str]" = Counter()
        self.tensors: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.calls[name] += 1
        if args and isinstance(args[0], (list, tuple)):
            self.tensors[name] = self.tensors.get(name, 0) + len(args[0])
        return func(*args, **(kwargs or {}))


# The operations of AdamW on one parameter after another, without foreach and without a fused kernel.
SINGLE = {"mul_", "lerp_", "addcmul_", "addcdiv_", "sqrt", "add_", "div_"}


def watched(seen: list[Kernels]) -> Callable[..., Any]:
    """harness.train, with each optimizer's step watched."""
    def train(module: nn.Module, optimizer: torch.optim.Optimizer, losses: harness.Loss, rank: int, steps: int,
              *_: Any) -> Any:
        told = []
        for step in range(steps):
            optimizer.zero_grad()
            told.append(losses(module, rank, step))
            with Kernels() as kernels:
                optimizer.step()
            seen.append(kernels)
        return told

    return train


class Optimizers(unittest.TestCase):
    def check(self, optimize: Callable[[nn.Module], torch.optim.Optimizer], expect: Callable[..., None]) -> None:
        """Equal to one process, bit for bit, by the kernels that `expect` looks for in the last step."""
        def train_with(module: nn.Module, *args: Any) -> Any:
            seen: list[Kernels] = []
            told = watched(seen)(module, *args)
            expect(seen[-1], len(list(module.parameters())))
            return told

        for world in (1, 2):
            for dtype in (None, torch.bfloat16):
                with self.subTest(world=world, dtype=dtype):
                    harness.compare(daemon.socket, world, models.GPT, optimize, models.gpt_loss, dtype=dtype,
                                    train_with=train_with)

    def test_fused(self) -> None:
        """fused AdamW: one kernel for all parameters, and none for one of them; equal bit for bit"""
        def expect(kernels: Kernels, parameters: int) -> None:
            self.assertEqual(kernels.calls["_fused_adamw_"], 1)
            self.assertEqual(kernels.tensors["_fused_adamw_"], parameters)
            self.assertFalse(SINGLE & set(kernels.calls), kernels.calls)

        self.check(models.adamw_fused, expect)

    def foreach(self, kernels: Kernels, parameters: int) -> None:
        for name in ("_foreach_lerp_", "_foreach_addcmul_", "_foreach_addcdiv_"):
            self.assertEqual((kernels.calls[name], kernels.tensors[name]), (1, parameters), name)
        self.assertFalse(SINGLE & set(kernels.calls), kernels.calls)

    def test_foreach(self) -> None:
        """foreach AdamW: each operation once for all parameters, and none for one of them; equal bit for bit"""
        self.check(models.adamw_foreach, self.foreach)

    @unittest.skipIf(models.DEVICE == "cpu", "on the CPU torch's default is neither")
    def test_default(self) -> None:
        """AdamW as it is: foreach, as with plain parameters on GPUs"""
        self.check(models.adamw, self.foreach)

    def test_single(self) -> None:
        """neither: one parameter after another, which is what the other two are told from"""
        def plain(module: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1, foreach=False, fused=False)

        def expect(kernels: Kernels, parameters: int) -> None:
            self.assertGreaterEqual(kernels.calls["lerp_"], parameters)
            self.assertFalse([name for name in kernels.calls if name.startswith(("_foreach_lerp", "_fused"))])

        self.check(plain, expect)


if __name__ == "__main__":
    support.main()
