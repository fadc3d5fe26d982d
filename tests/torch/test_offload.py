#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shard(offload=...): everything in host memory gives the bits of one process. test_budget.py has the other tests of offload."""
from __future__ import annotations

import unittest
from typing import Any, Callable, Optional

import harness
import models
import torch
from harness import same, support

import zerod
import zerod.torch as zt

VALUES = ("params", "optimizer", "all")


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=2, arena=harness.ARENA, host_arena="256M").for_module()


def small() -> models.MLP:
    return models.MLP(width=29, depth=2)


def large() -> models.MLP:
    return models.MLP(width=257, depth=2)


def clip(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if hasattr(module, "_zerod_model"):
        zt.clip_grad_norm_(module, 1e9)  # no bit changes, but the norm is asked for


class Equal(unittest.TestCase):
    """Losses and weights are those of one process, which are those of a run without offload."""

    def test_float32(self) -> None:
        """an MLP, float32: SGD, AdamW, foreach, fused; each value of offload"""
        for offload in VALUES:
            for optimize in (models.sgd, models.adamw, models.adamw_foreach, models.adamw_fused):
                with self.subTest(offload=offload, optimize=optimize.__name__):
                    harness.compare(daemon.socket, 2, models.MLP, optimize, models.mlp_loss, offload=offload,
                                    before_step=clip)

    def test_own_dtype(self) -> None:
        """a model that is bfloat16 itself"""
        for offload in VALUES:
            with self.subTest(offload=offload):
                harness.compare(daemon.socket, 2, lambda: small().to(torch.bfloat16), models.sgd, models.mlp_loss,
                                offload=offload)


def trained(rank: int, steps: int = 2, make: Callable = small,
            **options: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    module = harness.shard(harness.seeded(make), **options)
    optimizer = models.adamw(module)
    harness.train(module, optimizer, models.mlp_loss, rank, steps)
    return module, optimizer


class Places(unittest.TestCase):
    def test_plan(self) -> None:
        """plan() says before what summary() says after, and both are what the daemon counts"""
        for dtype in (None, torch.bfloat16):
            for offload in (None, *VALUES):
                with self.subTest(dtype=dtype, offload=offload), torch.device("meta"):
                    planned = zt.plan(large(), 2, param_dtype=dtype, offload=offload)
                found = harness.ranks(daemon.socket, 2, lambda rank: self.summarized(rank, dtype, offload))[0]
                summary, shards = found
                self.assertEqual(summary.units, planned.units)
                padding = shards - sum(unit.weights for unit in planned.units)
                self.assertGreaterEqual(padding, 0)
                self.assertLess(padding, 4096 * len(planned.units))  # of units in place
                self.assertEqual(planned.host > 0, offload is not None)
                self.assertEqual(planned.host + planned.device - planned.gathered,
                                 sum(unit.host + unit.device for unit in summary.units))
                if offload is not None:
                    self.assertLessEqual(sum(unit.host - unit.state for unit in planned.units), summary.host_bytes)
                place = {None: "device", "optimizer": "device"}.get(offload, "host")
                self.assertRegex(str(planned), f"layers.0:float32: weights .* MiB on {place}, masters")
        with self.assertRaisesRegex(ValueError, "offload is 'disk'"):
            zt.plan(small(), 2, offload="disk")

    @staticmethod
    def summarized(rank: int, dtype: Optional[torch.dtype], offload: Optional[str]) -> Any:
        module, _ = trained(rank, 1, large, param_dtype=dtype, offload=offload)
        zt.model_of(module).group.barrier()
        return zt.summary(module), sum(unit.shard.shard_numel * unit.dtype.itemsize for unit in zt.model_of(module).units)

    def test_missing(self) -> None:
        """a daemon without host memory, unknown values, stage 1 and meshes are refused by name"""
        def body(rank: int) -> None:
            with self.assertRaisesRegex(zerod.ZerodError, "offload='params': the daemon has no host memory.*--host-arena"):
                zt.shard(small(), offload="params")
            with self.assertRaisesRegex(ValueError, "offload is 'disk'"):
                zt.shard(small(), offload="disk")
            with self.assertRaisesRegex(ValueError, "offload='all' with stage=1"):
                zt.shard(small(), offload="all", stage=1)
            with self.assertRaisesRegex(ValueError, "offload='all' with a mesh of two dimensions"):
                zerod.torch.offload.check("all", stage=3, mesh=object())
            module, _ = trained(rank)
            same({p.device.type for p in module.parameters()}, {models.DEVICE})

        with support.Daemon(devices=2) as own:
            harness.ranks(own.socket, 2, body)


if __name__ == "__main__":
    support.main()
