#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shard(offload=...): weights, gradients and the optimizer's state in host memory give the bits of a run without it."""
from __future__ import annotations

import copy
import os
import tempfile
import unittest
from typing import Any, Callable, Optional

import harness
import models
import torch
from harness import same, support

import zerod
import zerod.torch as zt

VALUES = ("params", "optimizer", "all")
PLAIN = None if models.DEVICE == "cpu" else "all"  # has the bits of the others: optimizers on a GPU have other ones
SHARED = 1 if models.DEVICE == "cpu" or "ZD_SEVERAL" in os.environ else 2  # ranks on a device


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

    def test_masters(self) -> None:
        """a tied GPT, bfloat16 with float32 masters: SGD, AdamW; each value of offload"""
        for offload in VALUES:
            for optimize in (models.sgd, models.adamw):
                with self.subTest(offload=offload, optimize=optimize.__name__):
                    harness.compare(daemon.socket, 2, models.GPT, optimize, models.gpt_loss, dtype=torch.bfloat16,
                                    offload=offload)

    def test_own_dtype(self) -> None:
        """a model that is bfloat16 itself"""
        for offload in VALUES:
            with self.subTest(offload=offload):
                harness.compare(daemon.socket, 2, lambda: small().to(torch.bfloat16), models.sgd, models.mlp_loss,
                                offload=offload)

    def test_options(self) -> None:
        """one rank and three; stage 2, slots, persistent units, several blocks ahead"""
        for options in ({"stage": 2}, {"slots": True}, {"persist_below": 500}, {"prefetch": 2}):
            with self.subTest(options=options):
                harness.compare(daemon.socket, 2, models.MLP, models.adamw, models.mlp_loss, offload="params", **options)
        for world in (1, 3):
            for offload in VALUES:
                with self.subTest(world=world, offload=offload):
                    harness.compare(daemon.socket, world, models.MLP, models.adamw, models.mlp_loss, offload=offload)

    def test_accumulation(self) -> None:
        """several backwards before a step, with no_sync() and without"""
        def train_local(module: Any, optimizer: Any, losses: Any, rank: int, steps: int, accumulate: int, _: Any) -> Any:
            seen = []
            for step in range(steps):
                optimizer.zero_grad()
                with zt.no_sync(module):
                    for micro in range(accumulate - 1):
                        seen.append(losses(module, rank, step * accumulate + micro))
                seen.append(losses(module, rank, step * accumulate + accumulate - 1))
                optimizer.step()
            return seen

        for offload in VALUES:
            with self.subTest(offload=offload):
                harness.compare(daemon.socket, 2, models.MLP, models.adamw, models.mlp_loss, accumulate=3, offload=offload)
                harness.compare(daemon.socket, 2, models.MLP, models.adamw, models.mlp_loss, accumulate=3, offload=offload,
                                train_with=train_local, local=True)


def trained(rank: int, steps: int = 2, make: Callable = small,
            **options: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    module = harness.shard(harness.seeded(make), **options)
    optimizer = models.adamw(module)
    harness.train(module, optimizer, models.mlp_loss, rank, steps)
    return module, optimizer


class Places(unittest.TestCase):
    def test_bytes(self) -> None:
        """parameters, gradients and state are the CPU's; the daemon counts the bytes on the devices where they are"""
        for dtype in (None, torch.bfloat16):
            for offload in VALUES:
                with self.subTest(dtype=dtype, offload=offload), \
                        support.Daemon(devices=2, arena="64M", host_arena="64M") as own:
                    results = harness.ranks(own.socket, 2, lambda rank: self.places(rank, dtype, offload))
                    numel = sum(found["numel"] for found in results)  # the last slice of a unit is shorter
                    for found in results:
                        same(found["devices"], {"cpu"})
                        self.check({**found, "numel": numel / 2}, dtype, offload)

    def places(self, rank: int, dtype: Optional[torch.dtype], offload: str) -> Any:
        module, optimizer = trained(rank, make=large, param_dtype=dtype, offload=offload)
        model = zt.model_of(module)
        seen: set[str] = set()

        def look(*_: Any) -> None:
            seen.update(p.grad.device.type for p in module.parameters())

        optimizer.register_step_pre_hook(look)
        harness.train(module, optimizer, models.mlp_loss, rank, 1)
        seen.update(p.device.type for p in module.parameters())
        seen.update(value.device.type for state in optimizer.state.values() for value in state.values())
        model.settle()
        model.group.barrier()
        host = model.client.device(model.client.device(model.device_index).host)
        device = model.client.device(model.device_index)
        found = {"devices": seen, "host": host.allocated_bytes, "device": device.allocated_bytes,
                 "shards": sum(unit.shard.shard_numel * unit.dtype.itemsize for unit in model.units),
                 "numel": sum(unit.shard.true_numel for unit in model.units)}
        model.group.barrier()
        return found

    def check(self, found: Any, dtype: Optional[torch.dtype], offload: str) -> None:
        shards, rest, pages = found["shards"], 4 * found["numel"], 3 * 4096 * 3  # three things of three units
        masters = rest if dtype is not None or offload == "optimizer" else 0
        gradients = rest if offload == "optimizer" else 0  # copies; else the targets, of open steps alone
        least = masters + gradients + (shards if offload != "optimizer" else 0)
        staging = shards if offload == "optimizer" and dtype is not None else 0
        self.assertGreater(rest, 4 * pages)
        self.assertGreaterEqual(found["host"], 2 * least)  # both ranks have the same host memory
        self.assertLessEqual(found["host"], 2 * (least + staging + pages))
        flags = 4096  # the target of flags of usage
        on_device = SHARED * shards if offload == "optimizer" else 0
        self.assertGreaterEqual(found["device"], on_device)
        self.assertLessEqual(found["device"], SHARED * flags + on_device)

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


class State(unittest.TestCase):
    def test_round_trip(self) -> None:
        """whole state of a run with one value of offload continues in a run with another one, and in one with none"""
        for dtype in (None, torch.bfloat16):
            wanted = self.states(dtype, PLAIN, PLAIN)
            for saved, loaded in (("params", "optimizer"), ("optimizer", PLAIN), (PLAIN, "all"), ("all", "params")):
                with self.subTest(dtype=dtype, saved=saved, loaded=loaded):
                    same(self.states(dtype, saved, loaded), wanted)

    def states(self, dtype: Any, saved: Optional[str], loaded: Optional[str]) -> Any:
        def body(rank: int) -> Any:
            module, optimizer = trained(rank, param_dtype=dtype, offload=saved)
            first = copy.deepcopy(zt.state_dict(module, optimizer, full=True))
            module, optimizer = trained(rank, 1, param_dtype=dtype, offload=loaded)
            zt.load_state_dict(module, first, optimizer)
            harness.train(module, optimizer, models.mlp_loss, rank, 2)
            second = zt.state_dict(module, optimizer, full=True)
            return [(dict(each["model"]), each["optimizer"]["state"]) for each in (first, second)]

        return harness.ranks(daemon.socket, 2, body)

    def test_checkpoint(self) -> None:
        """save() and load() by torch.distributed.checkpoint: weights, masters and the optimizer's state"""
        def body(folder: str, saved: Optional[str], loaded: Optional[str]) -> Any:
            module, optimizer = trained(0, param_dtype=torch.bfloat16, offload=saved)
            zt.save(folder, module, optimizer)
            module, optimizer = trained(0, 1, param_dtype=torch.bfloat16, offload=loaded)
            zt.load(folder, module, optimizer)
            harness.train(module, optimizer, models.mlp_loss, 0, 2)
            return Durable.result(module, optimizer)

        def run(*values: Optional[str]) -> Any:
            with tempfile.TemporaryDirectory() as folder:
                return harness.ranks(daemon.socket, 1, lambda rank: body(folder, *values))

        wanted = run(PLAIN, PLAIN)
        for values in (("params", "optimizer"), ("optimizer", "params"), ("all", PLAIN)):
            with self.subTest(values=values):
                same(run(*values), wanted)


class Durable(unittest.TestCase):
    def test_resume(self) -> None:
        """a durable job: killed inside of the optimizer's step, it goes on from the last step, bit by bit"""
        for dtype in (None, torch.bfloat16):
            wanted = harness.ranks(daemon.socket, 2, lambda rank: self.result(*trained(rank, 4, param_dtype=dtype,
                                                                                             offload=PLAIN)))
            for offload in VALUES:
                with self.subTest(dtype=dtype, offload=offload):
                    job = f"offload-{dtype}-{offload}"
                    killed = harness.outcomes(harness.start(daemon.socket, 2, lambda rank: self.run_job(
                        job, rank, dtype, offload, kill=2)))
                    self.assertFalse(any(good for good, _ in killed), killed)
                    resumed = harness.ranks(daemon.socket, 2, lambda rank: self.run_job(job, rank, dtype, offload))
                    same([began for began, _ in resumed], [2, 2])
                    same([result for _, result in resumed], wanted)
                    self.refuse(job, dtype, offload)

    @staticmethod
    def result(module: Any, optimizer: Any) -> Any:
        state = zt.state_dict(module, optimizer, full=True)
        return dict(state["model"]), state["optimizer"]["state"]

    def run_job(self, job: str, rank: int, dtype: Any, offload: Optional[str], kill: int = -1) -> Any:
        module = harness.shard(harness.seeded(small), param_dtype=dtype, durable=job, offload=offload)
        optimizer = models.adamw(module)
        began = zt.committed_step(module)
        for step in range(began, 4):
            optimizer.zero_grad()
            models.mlp_loss(module, rank, step)
            if step == kill:
                optimizer.register_step_pre_hook(models.spoil)
            optimizer.step()
        model = zt.model_of(module)
        kept = [slab.unit for slab in model.durable.slabs] + [unit.master_unit for unit in model.units if unit.master_unit]
        self.assertEqual({unit.on_host for unit in kept}, {True})
        return began, self.result(module, optimizer)

    def refuse(self, job: str, dtype: Any, offload: str) -> None:
        def body(rank: int) -> None:
            with self.assertRaisesRegex(zerod.Mismatch, f"offload='{offload}'"):
                zt.shard(harness.seeded(small), param_dtype=dtype, durable=job)

        harness.ranks(daemon.socket, 2, body)


if __name__ == "__main__":
    support.main()
