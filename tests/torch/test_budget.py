#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shard(offload=..., device_budget=...): some units stay on the device, and the bits are those of a run without offload.

On GPUs an optimizer rounds otherwise than the CPU's, so losses there are compared to 1 percent.
"""
from __future__ import annotations

import copy
import os
import tempfile
import unittest
import warnings
from typing import Any, Callable, Optional

import harness
import models
import test_durable
import test_recover
import torch
from harness import same, support
from torch import nn

import zerod
import zerod.torch as zt
from zerod.torch.placement import staying

VALUES = ("params", "optimizer", "all")
ALL = 1 << 40


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=3, arena=harness.ARENA, host_arena="256M").for_module()


def make() -> models.MLP:
    return models.MLP(width=37, depth=5)


def budget(offload: str, world: int = 2, module: Callable = make, dtype: Optional[torch.dtype] = None,
           part: float = 0.5) -> int:
    """So many bytes that this part of the module stays."""
    return int(part * zt.plan(module(), world, param_dtype=dtype, offload=offload, device_budget=ALL).budget_used)


def alike(actual: Any, expected: Any) -> None:
    """Of (losses, further results) of each rank."""
    if models.DEVICE == "cpu":
        return same(actual, expected)
    for mine, others in zip(actual, expected):
        torch.testing.assert_close(mine[0], others[0], rtol=1e-2, atol=1e-2)


class Rule(unittest.TestCase):
    def test_staying(self) -> None:
        """equal blocks are spread evenly, beginning with the first; as many stay as fit"""
        for count, indices in enumerate(([], [0], [0, 4], [0, 3, 6], [0, 2, 4, 6], [0, 2, 4, 5, 7])):
            self.assertEqual(staying([10] * 8, 10 * count), indices)
            self.assertEqual(staying([10] * 8, 10 * count + 9), indices)
        self.assertEqual(staying([10] * 8, 79), [0, 2, 3, 4, 5, 6, 7])
        self.assertEqual(staying([10] * 8, 80), list(range(8)))
        for blocks in range(1, 30):
            for count in range(1, blocks + 1):
                chosen = staying([1] * blocks, count)
                gaps = {after - before for before, after in zip(chosen, chosen[1:] + [blocks])}
                self.assertEqual(len(chosen), count)
                self.assertLessEqual(max(gaps) - min(gaps), 1)

    def test_unequal(self) -> None:
        """a block that is larger than the budget is left out; what is left of the budget is used"""
        self.assertEqual(staying([100] + [10] * 8, 40), [1, 3, 5, 7])
        self.assertEqual(staying([20] + [10] * 8, 40), [0, 3, 6])
        self.assertEqual(staying([10, 10, 10, 100], 100), [0, 1, 2])
        self.assertEqual(staying([10, 100] * 4, 200), [0, 1, 2, 4, 6])  # what is left suffices for one large block
        self.assertEqual(staying([0, 10, 0, 10], 9), [0, 2])
        self.assertEqual(staying([], 9), [])
        self.assertEqual(staying([10], 9), [])

    def test_plan(self) -> None:
        """plan() says which units stay: no more than fit, blocks as a whole, and without a budget none"""
        def mixed() -> nn.Module:
            module = make()
            for layer in module.layers:
                layer[1].requires_grad_(False)  # a second unit of each block
            return module

        for offload in VALUES:
            for dtype in (None, torch.bfloat16):
                for module in (make, mixed):
                    with self.subTest(offload=offload, dtype=dtype, module=module.__name__), torch.device("meta"):
                        self.check_plan(offload, dtype, module)
        shown = str(zt.plan(make(), 2, offload="params", device_budget=budget("params")))
        self.assertRegex(shown, r"layers.0:float32: weights \S+ MiB on host, masters \S+ and gradients \S+ on host")
        self.assertRegex(shown, r"layers.1:float32: weights \S+ MiB on device, masters \S+ and gradients \S+ on device")
        self.assertRegex(shown, r"3 of 6 units stay on the device, by \S+ MiB of a budget of \S+ MiB")

    def check_plan(self, offload: str, dtype: Optional[torch.dtype], module: Callable) -> None:
        def plan(budget: Optional[int], offload: Optional[str] = offload) -> Any:
            return zt.plan(module(), 2, param_dtype=dtype, offload=offload, device_budget=budget)

        none, every = plan(None), plan(ALL)
        self.assertEqual(plan(0), none)
        self.assertEqual(every.units, plan(None, None).units)
        self.assertEqual(every.host, 0)
        total = every.budget_used
        self.assertEqual(total, every.device - none.device)
        self.assertEqual(plan(total).units, every.units)
        self.assertNotEqual(plan(total - 1).units, every.units)
        for part in range(1, 8):
            some = plan(total * part // 8)
            self.assertLessEqual(some.budget_used, total * part // 8)
            self.assertEqual(some.device - none.device, some.budget_used)
            self.assertLess(some.host, none.host + 1)
            for block in {unit.block for unit in some.units}:
                self.assertEqual(len({unit.optimizer_on_host for unit in some.units if unit.block == block}), 1)


class Equal(unittest.TestCase):
    """Losses and weights are those of a run without offload."""

    def compare(self, world: int, optimize: Callable, offload: str, module: Callable = make,
                losses: harness.Loss = models.mlp_loss, dtype: Optional[torch.dtype] = None, part: float = 0.5,
                train: Callable = harness.train, overlapped: bool = False, **options: Any) -> None:
        def run(rank: int, offload: Optional[str], **placed: Any) -> Any:
            sharded = harness.shard(harness.seeded(module), param_dtype=dtype, offload=offload, **placed, **options)
            optimizer = optimize(sharded)
            if overlapped and offload is not None:
                zt.optimizer_in_backward(sharded, optimizer)
            seen = train(sharded, optimizer, losses, rank, 4)
            model = zt.model_of(sharded)
            self.assertEqual({unit.placement.optimizer_on_host for unit in model.units}, {False, offload is not None})
            model.settle()
            model.group.barrier()
            gathered = model.client.device(model.device_index).gathered_bytes
            model.group.barrier()
            return seen, harness.slices(sharded), 0 if options.get("persist_below") else gathered

        wanted = harness.ranks(daemon.socket, world, lambda rank: run(rank, None))
        alike(harness.ranks(daemon.socket, world, lambda rank: run(
            rank, offload, device_budget=budget(offload, world, module, dtype, part))), wanted)

    def test_float32(self) -> None:
        """an MLP, float32: SGD, AdamW, foreach, fused; each value of offload; one rank, two and three"""
        optimizers = (models.sgd, models.adamw, models.adamw_foreach, models.adamw_fused)
        for offload, world, optimize in harness.combined(VALUES, (1, 2, 3), optimizers):
            with self.subTest(offload=offload, world=world, optimize=optimize.__name__):
                self.compare(world, optimize, offload)

    def test_masters(self) -> None:
        """a tied GPT, bfloat16 with float32 masters; stage 2, slots, persistent units, several blocks ahead"""
        each: Any = ({}, {"stage": 2}, {"slots": True}, {"persist_below": 500}, {"prefetch": 2})
        for offload, options in harness.combined(VALUES, each):
            with self.subTest(offload=offload, options=options):
                self.compare(2, models.adamw_fused, offload, models.GPT, models.gpt_loss, torch.bfloat16, **options)

    def test_in_place(self) -> None:
        """at world size 1, where a gather of a unit on the device gives its shard: not all blocks are held"""
        def train(module: nn.Module, *rest: Any) -> Any:
            seen = harness.train(module, *rest)
            shards = [unit.address == unit.shard.data for unit in zt.model_of(module).units]
            on_host = [unit.placement.shards_on_host for unit in zt.model_of(module).units]
            self.assertEqual(shards, [not each for each in on_host])
            self.assertEqual(zt.model_of(module).context.in_place, not any(on_host))
            return seen

        os.environ["ZEROD_POISON"] = "0"
        try:
            for offload in VALUES:
                for overlapped in (False, True):
                    with self.subTest(offload=offload, overlapped=overlapped):
                        self.compare(1, models.adamw, offload, train=train, overlapped=overlapped)
        finally:
            os.environ["ZEROD_POISON"] = "1"

    def test_accumulation(self) -> None:
        """several backwards before a step, with no_sync() and without; gradients that are clipped"""
        def train(module: Any, optimizer: Any, losses: Any, rank: int, steps: int) -> Any:
            seen = []
            for step in range(steps):
                optimizer.zero_grad()
                if step % 2:
                    with zt.no_sync(module):
                        seen.append(losses(module, rank, 3 * step))
                else:
                    seen.append(losses(module, rank, 3 * step))
                seen.append(losses(module, rank, 3 * step + 1))
                seen.append(zt.clip_grad_norm_(module, 0.01, (2.0, 1.0, float("inf"))[step % 3]).cpu())
                optimizer.step()
            return seen

        for offload in VALUES:
            with self.subTest(offload=offload):
                self.compare(2, models.sgd, offload, train=train)

    def test_in_backward(self) -> None:
        """optimizer_in_backward(): offloaded units are stepped in the backward, those on the device in step()"""
        def optimize(module: nn.Module) -> torch.optim.Optimizer:
            optimizer = models.adamw_fused(module)
            optimizer.register_step_pre_hook(lambda *_: check(module))  # runs in step() alone
            return optimizer

        def check(module: nn.Module) -> None:
            for unit in zt.model_of(module).units if getattr(zt.model_of(module).gradients.fetcher, "runs_optimizer", False) else ():
                waits = {member.parameter.grad is not None for member in unit.members}
                self.assertEqual(waits, {not unit.placement.optimizer_on_host}, unit.name)

        for offload in VALUES:
            for world in (1, 2):
                for dtype in (None, torch.bfloat16):
                    with self.subTest(offload=offload, world=world, dtype=dtype):
                        self.compare(world, optimize, offload, dtype=dtype, overlapped=True)

    def test_everything(self) -> None:
        """a budget for all units: the daemon needs no host memory, and optimizer_in_backward() steps all in step()"""
        def run(rank: int, offload: Optional[str]) -> Any:
            module = harness.shard(harness.seeded(make), offload=offload, device_budget=ALL if offload else None)
            optimizer = models.adamw(module)
            if offload:
                zt.optimizer_in_backward(module, optimizer)
            seen = harness.train(module, optimizer, models.mlp_loss, rank, 3)
            same({parameter.device.type for parameter in module.parameters()}, {models.DEVICE})
            return seen, harness.slices(module), zt.summary(module).host_bytes

        with support.Daemon(devices=2) as own:
            wanted = harness.ranks(own.socket, 2, lambda rank: run(rank, None))
            for offload in VALUES:
                with self.subTest(offload=offload):
                    same(harness.ranks(own.socket, 2, lambda rank: run(rank, offload)), wanted)


class Places(unittest.TestCase):
    def test_bytes(self) -> None:
        """the daemon's bytes on the device and in host memory are those of the planned units"""
        def large() -> models.MLP:
            return models.MLP(width=257, depth=3)

        def run(rank: int, offload: str, dtype: Optional[torch.dtype], planned: Any) -> Any:
            module = harness.shard(harness.seeded(large), param_dtype=dtype, offload=offload,
                                   device_budget=planned.device_budget)
            harness.train(module, models.adamw_fused(module), models.mlp_loss, rank, 1)
            model = zt.model_of(module)
            model.settle()
            model.group.barrier()
            self.assertEqual(zt.summary(module).units, planned.units)
            for unit, of in zip(model.units, planned.units):
                same(unit.unit.on_host, of.weights_on_host)
                same({member.parameter.device.type for member in unit.members},
                     {"cpu" if of.optimizer_on_host else models.DEVICE})
            found = zt.summary(module)
            model.group.barrier()
            return found.allocated_bytes, found.host_bytes

        shared = 1 if models.DEVICE == "cpu" or "ZD_SEVERAL" in os.environ else 2  # ranks on a device
        for dtype in (None, torch.bfloat16):
            for offload in VALUES:
                planned = zt.plan(large(), 2, param_dtype=dtype, offload=offload,
                                  device_budget=budget(offload, 2, large, dtype))
                self.assertEqual({unit.optimizer_on_host for unit in planned.units}, {False, True})
                with self.subTest(dtype=dtype, offload=offload), \
                        support.Daemon(devices=2, arena="64M", host_arena="64M") as own:
                    pages = 4096 * 4 * len(planned.units)
                    for device, host in harness.ranks(own.socket, 2, lambda rank: run(rank, offload, dtype, planned)):
                        weights = sum(unit.weights for unit in planned.units if not unit.weights_on_host)
                        self.assertGreaterEqual(device, shared * weights)
                        # The target of flags of usage, and the padding of units in place.
                        self.assertLessEqual(device, shared * (weights + 4096 * (1 + len(planned.units))))
                        # The optimizer's state is torch's. Targets are there in a step alone, copies of them always.
                        kept = sum((unit.weights if unit.weights_on_host else unit.gradients) + unit.masters + unit.staging
                                   for unit in planned.units if unit.optimizer_on_host)
                        self.assertGreaterEqual(host + pages, 2 * kept)  # the plan's shards are padded
                        self.assertLessEqual(host, 2 * (kept + pages))

    def test_mistakes(self) -> None:
        """budgets that are no number of bytes, or without offload; budgets that differ between ranks"""
        for value in (-1, 1.5, 1e9, True, "1G"):
            with self.subTest(value=value), self.assertRaisesRegex(ValueError, f"device_budget is {value!r}: it is a whole"):
                zt.plan(make(), 2, offload="all", device_budget=value)
        with self.assertRaisesRegex(ValueError, "device_budget=5 without offload"):
            zt.plan(make(), 2, device_budget=5)

        def body(rank: int) -> None:
            with self.assertRaisesRegex(ValueError, "device_budget is -1"):
                zt.shard(make(), offload="all", device_budget=-1)
            with self.assertRaisesRegex(ValueError, "device_budget=5 without offload"):
                zt.shard(make(), device_budget=5)
            for offload, budget in (("all", 1000 + rank), ("params" if rank else "optimizer", 0), ("all", 30000 * rank)):
                text = (f"ranks 0 and 1 have different arguments of shard..: those of rank {rank} are "
                        f"offload='{offload}' and device_budget={budget}")
                with self.assertRaisesRegex(zerod.Mismatch, text):
                    zt.shard(make(), offload=offload, device_budget=budget)
            harness.shard(make(), offload="all", device_budget=0 if rank else None)

        harness.ranks(daemon.socket, 2, body)


def trained(rank: int, steps: int, offload: Optional[str], optimize: Callable = models.adamw_fused,
            **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, list[Any]]:
    """`offload` may end with "+": half of the module stays."""
    value = offload and offload.rstrip("+")
    if value != offload:
        options["device_budget"] = budget(value, int(os.environ["WORLD_SIZE"]), dtype=options.get("param_dtype"))
    module = harness.shard(harness.seeded(make), offload=value, **options)
    optimizer = optimize(module)
    return module, optimizer, harness.train(module, optimizer, models.mlp_loss, rank, steps)


def result(module: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    state = zt.state_dict(module, optimizer, full=True)
    return copy.deepcopy((dict(state["model"]), state["optimizer"]["state"]))


class State(unittest.TestCase):
    def compare(self, body: Callable[[int, Optional[str]], Any]) -> None:
        """Two ranks return the same with each placement."""
        wanted = harness.ranks(daemon.socket, 2, lambda rank: body(rank, None))
        for offload in VALUES:
            with self.subTest(offload=offload):
                alike(harness.ranks(daemon.socket, 2, lambda rank: body(rank, offload + "+")), wanted)

    def test_round_trip(self) -> None:
        """whole state of a run with a budget continues in a run without, and the other way round"""
        def body(rank: int, dtype: Any, saved: Optional[str], loaded: Optional[str]) -> Any:
            module, optimizer, _ = trained(rank, 2, saved, param_dtype=dtype)
            state = copy.deepcopy(zt.state_dict(module, optimizer, full=True))
            module, optimizer, _ = trained(rank, 1, loaded, param_dtype=dtype)
            zt.load_state_dict(module, state, optimizer)
            seen = harness.train(module, optimizer, models.mlp_loss, rank, 2)
            return seen, result(module, optimizer)

        for dtype in (None, torch.bfloat16):
            wanted = harness.ranks(daemon.socket, 2, lambda rank: body(rank, dtype, None, None))
            for saved, loaded in (("params+", "optimizer+"), ("optimizer+", None), (None, "all+"), ("all+", "all")):
                with self.subTest(dtype=dtype, saved=saved, loaded=loaded):
                    alike(harness.ranks(daemon.socket, 2, lambda rank: body(rank, dtype, saved, loaded)), wanted)

    def test_checkpoint(self) -> None:
        """save() and load() by torch.distributed.checkpoint"""
        def body(folder: str, saved: Optional[str], loaded: Optional[str]) -> Any:
            module, optimizer, _ = trained(0, 2, saved, param_dtype=torch.bfloat16)
            zt.save(folder, module, optimizer)
            module, optimizer, _ = trained(0, 1, loaded, param_dtype=torch.bfloat16)
            zt.load(folder, module, optimizer)
            seen = harness.train(module, optimizer, models.mlp_loss, 0, 2)
            return seen, result(module, optimizer)

        def run(*values: Optional[str]) -> Any:
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch.distributed is not initialized
                return harness.ranks(daemon.socket, 1, lambda rank: body(folder, *values))

        wanted = run(None, None)
        for values in (("params+", "optimizer+"), ("optimizer+", None), (None, "all+")):
            with self.subTest(values=values):
                alike(run(*values), wanted)

    def test_write(self) -> None:
        """full_parameters(write=True): what rank 0 writes is trained on"""
        def body(rank: int, offload: Optional[str]) -> Any:
            module, optimizer, _ = trained(rank, 1, offload, param_dtype=torch.bfloat16)
            with zt.full_parameters(module, write=True):
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter.mul_(0.5 if rank == 0 else 0.25)
            seen = harness.train(module, optimizer, models.mlp_loss, rank, 2)
            return seen, dict(module.state_dict())

        self.compare(body)

    def test_abandoned(self) -> None:
        """a rank raises in its loss: no rank takes that step, and training goes on"""
        def body(rank: int, offload: Optional[str]) -> Any:
            module, optimizer, _ = trained(rank, 2, offload)
            if rank == 0:
                zt.abandon(module)
            else:
                models.mlp_loss(module, rank, 2)
                with self.assertRaises(zt.StepAbandoned):
                    optimizer.step()
            return harness.train(module, optimizer, models.mlp_loss, rank, 1), dict(module.state_dict())

        self.compare(body)

    def test_frozen(self) -> None:
        """parameters that are frozen, and unfrozen between two steps, of units on the device and in host memory"""
        def body(rank: int, offload: Optional[str]) -> Any:
            module, optimizer, seen = trained(rank, 2, offload, models.sgd)
            for wanted in (False, True):
                module.layers[0].requires_grad_(wanted)
                module.layers[1][0].bias.requires_grad_(wanted)
                module.layers[2].requires_grad_(wanted)
                seen += harness.train(module, optimizer, models.mlp_loss, rank, 1)
            return seen, dict(module.state_dict())

        self.compare(body)


class Keeping(test_recover.Keeping):
    def __init__(self) -> None:
        support.Daemon.__init__(self, 2, harness.ARENA, "--keep-state", "holder", host_arena="256M")


class Durable(unittest.TestCase):
    def test_resume(self) -> None:
        """a durable job: killed inside of the optimizer's step, it goes on from the last step"""
        for dtype in (None, torch.bfloat16):
            wanted = harness.ranks(daemon.socket, 2, lambda rank: self.run_job(rank, None, dtype))
            for offload in VALUES:
                with self.subTest(dtype=dtype, offload=offload):
                    half = budget(offload, dtype=dtype)
                    options = {"durable": f"budget-{dtype}-{offload}", "offload": offload, "device_budget": half}
                    killed = harness.outcomes(harness.start(daemon.socket, 2, lambda rank: self.run_job(
                        rank, 2, dtype, **options)))
                    self.assertFalse(any(good for good, _ in killed), killed)
                    alike(harness.ranks(daemon.socket, 2, lambda rank: self.run_job(rank, None, dtype, **options)),
                          [(seen[2:], state) for seen, state in wanted])
                    for other in (None, ALL):
                        self.refuse(dtype, {**options, "device_budget": other}, offload)

    def run_job(self, rank: int, kill: Optional[int], dtype: Any, **options: Any) -> Any:
        module = harness.shard(harness.seeded(make), param_dtype=dtype, **options)
        optimizer = models.adamw_fused(module)
        seen, kept = [], zt.model_of(module).durable
        for step in range(zt.committed_step(module), 4):
            optimizer.zero_grad()
            seen.append(models.mlp_loss(module, rank, step))
            if step == kill:
                optimizer.register_step_pre_hook(models.spoil)
            optimizer.step()
        if kept is not None:
            self.assertEqual([slab.unit.on_host for slab in kept.slabs], [True, False])
            for unit in zt.model_of(module).units:
                for place in [unit.master_unit] if unit.master_unit else []:
                    self.assertEqual(place.on_host, unit.placement.optimizer_on_host)
                for member in unit.members:
                    values = optimizer.state[member.parameter].values()
                    same({value.device.type for value in values},
                         {"cpu" if unit.placement.optimizer_on_host else models.DEVICE})
        return seen, result(module, optimizer)

    def refuse(self, dtype: Any, options: Any, offload: str) -> None:
        def body(rank: int) -> None:
            with self.assertRaisesRegex(zerod.Mismatch, f"parameter [0-9]+ is .*{offload}"):
                zt.shard(harness.seeded(make), param_dtype=dtype, **options)

        harness.ranks(daemon.socket, 2, body)

    def test_recover(self) -> None:
        """recover(): the same units stay when the next daemon has the job"""
        small = test_durable.make_small
        for dtype, offload in ((None, "params"), (torch.bfloat16, "optimizer")):
            with self.subTest(dtype=dtype, offload=offload), Keeping() as own:
                half = budget(offload, 2, small, dtype)
                wanted = harness.alone(lambda: test_durable.expected(small, models.adamw, dtype))
                restarts = test_recover.Restarts(own)
                children = harness.start(own.socket, 2, lambda rank: self.recovered(
                    rank, dtype, restarts, offload=offload, device_budget=half))
                restarts.serve()
                for (name,), *found in harness.collect(children):
                    self.assertEqual(name, "ConnectionFailed")
                    if models.DEVICE == "cpu":
                        same(tuple(found), tuple(wanted))

    def recovered(self, rank: int, dtype: Any, restarts: Any, **options: Any) -> Any:
        found = test_recover.recovered("kept", rank, dtype, "optimizer", restarts.ask, **options)
        placements = {unit.placement.optimizer_on_host for unit in harness._models[0].units}
        self.assertEqual(placements, {False, True})
        return found


if __name__ == "__main__":
    support.main()
