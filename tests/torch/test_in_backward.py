#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""optimizer_in_backward(): the bits of an optimizer that runs behind the backward, and what a rank that raises leaves.

And the copies of gradients in the backward, on which it builds.
"""
from __future__ import annotations

import atexit
import copy
import gc
import multiprocessing
import threading
import unittest
import warnings
from functools import partial
from typing import Any, Callable, Optional
from unittest import mock

import harness
import models
import torch
from harness import same, support
from torch import nn

import zerod
import zerod.torch as zt
from zerod.torch import fetcher
from zerod.torch.block import Use

VALUES = ("params", "optimizer", "all")
EACH = (*VALUES, None)  # None: on the device


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=3, arena=harness.ARENA, host_arena="256M").for_module()


def small() -> models.MLP:
    return models.MLP(width=29, depth=2)


def when_backward_comes(module: nn.Module, call: Callable[[], Any]) -> None:
    """Has each backward call it before that of the module."""
    class Calls(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
            call()
            return gradient

    module.register_forward_hook(lambda _module, _args, output: Calls.apply(output))


class Trouble(Exception):
    pass


class Equal(unittest.TestCase):
    """Losses and weights are those of one process, which are those of an optimizer that runs behind the backward."""

    def compare(self, world: int, make: Callable, optimize: Callable, losses: Callable, **options: Any) -> None:
        def wrapped(module: nn.Module) -> torch.optim.Optimizer:
            optimizer = optimize(module)
            return zt.optimizer_in_backward(module, optimizer) if hasattr(module, "_zerod_model") else optimizer

        harness.compare(daemon.socket, world, make, wrapped, losses, **options)

    def test_optimizers(self) -> None:
        """float32, one rank and two: SGD, AdamW, foreach, fused; each value of offload"""
        optimizers = (models.sgd, models.adamw, models.adamw_foreach, models.adamw_fused)
        for offload, world, optimize in harness.combined(EACH, (1, 2), optimizers):
            with self.subTest(offload=offload, world=world, optimize=optimize.__name__):
                self.compare(world, models.MLP, optimize, models.mlp_loss, offload=offload)

    def test_masters(self) -> None:
        """a tied GPT, bfloat16 with float32 masters; stage 2, slots, persistent units"""
        each: Any = ({"stage": 2}, {"slots": True}, {"persist_below": 500}, {})
        for offload, options, world in harness.combined(EACH, each, (1, 2)):
            with self.subTest(offload=offload, options=options, world=world):
                self.compare(world, models.GPT, models.adamw, models.gpt_loss, dtype=torch.bfloat16, offload=offload, **options)

    def test_checkpointed(self) -> None:
        """blocks that run again in the backward"""
        from torch.utils.checkpoint import checkpoint

        def make(reentrant: bool) -> models.GPT:
            model = models.GPT()
            model.wrap = lambda block, x: checkpoint(block, x, use_reentrant=reentrant)
            return model

        for offload in EACH:
            for reentrant in (False, True):
                with self.subTest(offload=offload, reentrant=reentrant):
                    self.compare(2, lambda: make(reentrant), models.adamw, models.gpt_loss, offload=offload)

    def test_held(self) -> None:
        """a block that is still held when its unit is published: the backward goes on with the former weights"""
        class Frozen(models.MLP):
            def __init__(self) -> None:
                super().__init__()
                self.layers[-1][0].bias.requires_grad_(False)  # keeps the block until another one's backward begins

        def drain(model: Any) -> None:
            model.gradients.fetcher.drain()
            held.append(model.blocks[-1].uses & Use.BACKWARD)

        def optimize(module: nn.Module) -> torch.optim.Optimizer:
            if hasattr(module, "_zerod_model"):
                when_backward_comes(module.layers[-2], partial(drain, zt.model_of(module)))
            return models.sgd(module)

        def losses(module: nn.Module, rank: int, micro: int) -> torch.Tensor:
            held.clear()
            loss = models.mlp_loss(module, rank, micro)
            if hasattr(module, "_zerod_model"):
                self.assertEqual(held, [Use.BACKWARD])
            return loss

        held: list[int] = []
        for offload in EACH:
            with self.subTest(offload=offload):
                self.compare(2, Frozen, optimize, losses, offload=offload)

    def test_no_sync(self) -> None:
        """with no_sync() the optimizer runs in the backward outside of it; without one, in step()"""
        def train(module: Any, optimizer: Any, losses: Any, rank: int, steps: int, accumulate: int, _: Any) -> Any:
            seen = []
            for step in range(steps):
                optimizer.zero_grad()
                with zt.no_sync(module):
                    for micro in range(accumulate - (step % 2 == 0)):
                        seen.append(losses(module, rank, step * accumulate + micro))
                if step % 2 == 0:
                    seen.append(losses(module, rank, step * accumulate + accumulate - 1))
                optimizer.step()
            return seen

        for offload in ("params", None):
            self.compare(2, models.MLP, models.adamw, models.mlp_loss, accumulate=3, offload=offload, train_with=train,
                         local=True)

    def test_groups(self) -> None:
        """two groups of parameters, and a scheduler: each step has its own rate"""
        def make(module: nn.Module) -> torch.optim.Optimizer:
            parameters = list(module.parameters())
            optimizer = torch.optim.AdamW([{"params": parameters[::2]}, {"params": parameters[1::2], "weight_decay": 0.3}],
                                          lr=1e-2)
            optimizer.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)  # before it is wrapped
            return optimizer

        def train(module: Any, optimizer: Any, losses: Any, rank: int, steps: int, *_: Any) -> Any:
            seen = []
            for step in range(steps):
                optimizer.zero_grad()
                seen.append(losses(module, rank, step))
                optimizer.step()
                optimizer.scheduler.step()
            return seen

        for offload in ("params", None):
            self.compare(2, models.MLP, make, models.mlp_loss, offload=offload, train_with=train,
                         before_step=self.count_with_scheduler())

    @staticmethod
    def count_with_scheduler() -> Callable:
        """The reference's: it has no loop of its own, so the rate of a step is set before it."""
        seen = []

        def before(_: nn.Module, optimizer: Any) -> None:
            if seen:
                optimizer.scheduler.step()
            seen.append(None)

        return before

    def test_unused(self) -> None:
        """parameters without a gradient on one rank, and on all: step() steps them, or does not"""
        class Parts(models.MLP):
            def __init__(self) -> None:
                super().__init__()
                self.here = nn.Linear(13, 13)
                self.nowhere = nn.Linear(13, 13)

        def losses(module: nn.Module, rank: int, micro: int) -> torch.Tensor:
            x = models.numbers(rank, micro, 6, 13)
            loss = module(module.here(x) if rank else x).square().mean()
            loss.backward()
            return loss.detach()

        for offload in EACH:
            with self.subTest(offload=offload):
                self.compare(2, Parts, models.adamw, losses, offload=offload)

    def test_frozen(self) -> None:
        """blocks are frozen and unfrozen between steps"""
        for offload in ("params", None):
            for world in (1, 2):
                with self.subTest(offload=offload, world=world):
                    self.compare(world, models.partly_frozen, models.adamw, models.freezing_loss, steps=6, offload=offload)

    def test_unused_block(self) -> None:
        """a block that no rank uses"""
        class Parts(models.MLP):
            def __init__(self) -> None:
                super().__init__()
                self.layers.append(nn.Sequential(nn.Linear(29, 29)))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                used, self.layers = self.layers, self.layers[:-1]
                try:
                    return super().forward(x)
                finally:
                    self.layers = used

        for world in (1, 2):
            self.compare(world, Parts, models.adamw, models.mlp_loss)
            self.compare(world, Parts, models.adamw, models.mlp_loss, offload="params")

    def test_reads(self) -> None:
        """a program reads masters in two halves while the thread steps their units"""
        def trained(rank: int, offload: str, reads: bool) -> Any:
            module = harness.shard(harness.seeded(small), param_dtype=torch.bfloat16, offload=offload)
            parameters = list(module.parameters())
            if reads:
                for layer in module.layers:
                    when_backward_comes(layer, lambda: [parameter.detach().sum() for parameter in parameters])
            harness.train(module, zt.AdamW(parameters, lr=1e-2, in_backward=True), models.mlp_loss, rank, 3)
            return dict(zt.state_dict(module, full=True)["model"])

        for offload in (None, "params"):
            with self.subTest(offload=offload):
                same(*(harness.ranks(daemon.socket, 1, partial(trained, offload=offload, reads=reads)) for reads in (True, False)))

    def test_state(self) -> None:
        """state of a run with the one kind of optimizer continues in a run with the other"""
        def run(rank: int, saved: bool, loaded: bool) -> Any:
            module, optimizer = self.trained(rank, saved, 2)
            state = copy.deepcopy(zt.state_dict(module, optimizer, full=True))
            module, optimizer = self.trained(rank, loaded, 1)
            zt.load_state_dict(module, state, optimizer)
            harness.train(module, optimizer, models.mlp_loss, rank, 2)
            state = zt.state_dict(module, optimizer, full=True)
            return dict(state["model"]), state["optimizer"]["state"]

        wanted = harness.ranks(daemon.socket, 2, lambda rank: run(rank, False, False))
        for saved, loaded in ((True, False), (False, True), (True, True)):
            with self.subTest(saved=saved, loaded=loaded):
                same(harness.ranks(daemon.socket, 2, lambda rank: run(rank, saved, loaded)), wanted)

    @staticmethod
    def trained(rank: int, wrapped: bool, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        module = harness.shard(harness.seeded(small), param_dtype=torch.bfloat16, offload="params")
        optimizer = models.adamw(module)
        if wrapped:
            zt.optimizer_in_backward(module, optimizer)
        harness.train(module, optimizer, models.mlp_loss, rank, steps)
        return module, optimizer


class Overlap(unittest.TestCase):
    def test_gradients(self) -> None:
        """gradients are copied in the backward, but not behind a window with several of them"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(small), offload="params")
            fetcher = zt.model_of(module).gradients.fetcher
            optimizer, found = models.sgd(module), []
            for backwards in (1, 2, 2, 1, 1):
                for micro in range(backwards):
                    models.mlp_loss(module, rank, micro)
                fetcher.drain()
                found.append(len(fetcher.fetched))
                optimizer.step()
                optimizer.zero_grad()
            return len(zt.model_of(module).units), found

        for units, found in harness.ranks(daemon.socket, 2, body):
            self.assertEqual(found, [units, 0, 0, 0, units])

    def test_before_end(self) -> None:
        """the unit of the last block is updated before the backward of the first one begins, which waits for it"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(small), offload="params")
            last = zt.model_of(module).blocks[-1]
            parameters = set(last.module.parameters())
            ran, waited = threading.Event(), []

            class Told(torch.optim.SGD):
                def step(self, closure: Any = None) -> None:
                    super().step(closure)
                    if parameters & {parameter for group in self.param_groups for parameter in group["params"]}:
                        ran.set()

            when_backward_comes(module.layers[0], lambda: waited.append(ran.wait(30)))
            optimizer = zt.optimizer_in_backward(module, Told(module.parameters(), lr=0.1))
            harness.train(module, optimizer, models.mlp_loss, rank, 2)
            return waited

        for world in (1, 2):
            same(harness.ranks(daemon.socket, world, body), [[True, True]] * world)

    def test_rounding(self) -> None:
        """the CPU rounds masters while the backward goes on, and the device behind it; not where shards are on the device"""
        def body(rank: int, offload: str) -> Any:
            module = harness.shard(harness.seeded(small), offload=offload, param_dtype=torch.bfloat16)
            optimizer = zt.optimizer_in_backward(module, models.sgd(module))
            model = zt.model_of(module)
            first, ended = model.blocks[1], threading.Event()
            update, publish_from = model.gradients.fetcher._update, model.group.publish_from

            def held(unit: Any, copied: Any) -> bool:
                if unit.block == first.name:
                    self.assertTrue(ended.wait(30))
                return update(unit, copied)

            def counted(sources: Any, *arguments: Any, **options: Any) -> int:
                rounded.extend(unit for unit, _ in sources)
                return publish_from(sources, *arguments, **options)

            rounded: list[Any] = []
            model.gradients.fetcher._update, model.group.publish_from = held, counted
            when_backward_comes(first.module, model.gradients.fetcher.drain)
            found = []
            for step in range(2):
                models.mlp_loss(module, rank, step)
                ended.set()
                optimizer.step()
                optimizer.zero_grad()
                ended.clear()
                found.append([unit in rounded for unit in (first.units[0].unit, model.blocks[-1].units[0].unit)])
                rounded.clear()
            return found

        for offload in VALUES:
            with self.subTest(offload=offload):
                found = harness.ranks(daemon.socket, 2, partial(body, offload=offload))
                same(found, [[[offload != "optimizer", False]] * 2] * 2)

    def test_dropped(self) -> None:
        """a model that the program drops takes its threads with it"""
        def body(rank: int) -> Any:
            found = []
            for offload in ("params", None):
                module = zt.shard(harness.seeded(small), offload=offload)
                harness.train(module, zt.optimizer_in_backward(module, models.sgd(module)), models.mlp_loss, rank, 2)
                zt.barrier(module)
                threads = [thread for thread in threading.enumerate() if thread.name.startswith("zerod-")]
                del module
                gc.collect()
                for thread in threads:
                    thread.join(30)
                found.append([len(threads), *(thread.is_alive() for thread in threads)])
            return found

        same(harness.ranks(daemon.socket, 2, body), [[[2, False, False], [1, False]]] * 2)

    def test_unpinned(self) -> None:
        """masters that cannot be pinned: an error, and the model trains on with an ordinary optimizer"""
        def refuse(_: torch.Tensor) -> None:
            raise Trouble

        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(small), offload="all", param_dtype=torch.bfloat16)
            optimizer, model = models.sgd(module), zt.model_of(module)
            model.offload.pin = refuse
            with self.assertRaises(Trouble):
                zt.optimizer_in_backward(module, optimizer)
            harness.train(module, optimizer, models.mlp_loss, rank, 2)
            return not model.gradients.fetcher.runs_optimizer, model.gradients.fetcher._fetches._thread.is_alive()

        same(harness.ranks(daemon.socket, 2, body), [(True, True)] * 2)

    def test_end(self) -> None:
        """a process ends, though its threads wait for a rank that does not come, or for nothing"""
        ended = multiprocessing.get_context("fork").Event()

        def body(rank: int, world: int) -> Any:
            atexit._clear()  # the test's own
            module = zt.shard(harness.seeded(small), offload="params")
            optimizer = zt.optimizer_in_backward(module, models.sgd(module))
            harness.train(module, optimizer, models.mlp_loss, rank, 1)
            zt.barrier(module)
            if rank == 1:
                return ended.wait(60)
            if world == 2:
                models.mlp_loss(module, rank, 1)
            atexit._run_exitfuncs()
            ended.set()
            return not any(thread.is_alive() for thread in threading.enumerate() if thread.name.startswith("zerod-"))

        for world in (1, 2):
            ended.clear()
            self.assertEqual(harness.ranks(daemon.socket, world, lambda rank: body(rank, world)), [True] * world)

    def test_end_beside_a_thread(self) -> None:
        """a process ends beside a thread that waits on: it does not close the connection in which that waits"""
        ended = multiprocessing.get_context("fork").Event()

        def body(rank: int) -> Any:
            atexit._clear()  # the test's own
            module = zt.shard(harness.seeded(small), offload="params")
            harness.train(module, zt.optimizer_in_backward(module, models.sgd(module)), models.mlp_loss, rank, 1)
            zt.barrier(module)
            if rank == 1:
                return ended.wait(60)
            models.mlp_loss(module, rank, 1)  # rank 1 does not come
            group = zt.model_of(module).group
            with mock.patch.object(fetcher, "_END_MS", 100), mock.patch.object(group, "backward_abandon", side_effect=zerod.errors.error(zerod.Status.DEADLINE, "late")):
                atexit._run_exitfuncs()
            alive = any(thread.is_alive() for thread in threading.enumerate() if thread.name == "zerod-fetch")
            ended.set()
            return alive and not group.client.closed

        self.assertEqual(harness.ranks(daemon.socket, 2, body), [True, True])


class Failing(unittest.TestCase):
    def told(self, world: int, where: str, offload: Optional[str] = "params", ordinary: bool = False, **options: Any) -> list[Any]:
        """Returns what each rank was told in three steps, in the second of which rank 1 (or 0 alone) raises.

        Where it raises in the backward, rank 0's threads lag behind: it has updated nothing, and rank 1 has.
        """
        bad = min(1, world - 1)
        raised = multiprocessing.get_context("fork").Event()

        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(small), offload=offload, **options)
            model, state = zt.model_of(module), {"where": ""}

            class Raises(torch.optim.SGD):
                def step(self, closure: Any = None) -> None:
                    if state["where"] == "optimizer":
                        raise Trouble("optimizer")
                    super().step(closure)

            class RaisesOnDevice(zt.SGD):
                def update(self, *args: Any) -> None:
                    if state["where"] == "optimizer":
                        raise Trouble("optimizer")
                    super().update(*args)

            class Hurdle(torch.autograd.Function):
                @staticmethod
                def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
                    if state["where"] == "forward":
                        raise Trouble("forward")
                    return x.clone()

                @staticmethod
                def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
                    if state["where"] == "backward":
                        model.gradients.fetcher.drain()  # so that the last block is updated here
                        raise Trouble("backward")
                    return gradient

            module.layers[0].register_forward_hook(lambda _module, _args, output: Hurdle.apply(output))
            optimizer = (Raises if offload else RaisesOnDevice)(module.parameters(), lr=0.1)
            if not ordinary:
                zt.optimizer_in_backward(module, optimizer)
            told: list[Any] = []
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                for step in range(3):
                    optimizer.zero_grad()
                    state["where"] = where if (rank, step) == (bad, 1) else ""
                    if (rank, step, where) == (0, 1, "backward") and world > 1:
                        model.gradients.fetcher._fetches.put(lambda: raised.wait(60))
                    try:
                        models.mlp_loss(module, rank, step)
                        optimizer.step()
                    except Trouble as trouble:
                        told.append((step, str(trouble)))
                        raised.set()
                    except (zt.StepAbandoned, zt.StepTorn) as failed:
                        told.append((step, type(failed).__name__, failed.rank))
            told += [str(warning.message)[:33] for warning in warned if "abandoned" in str(warning.message)]
            with torch.no_grad():
                output = module(torch.ones(2, 13))
            model.settle()
            model.group.barrier()
            return told, output, model.client.device(model.device_index).gathered_bytes

        results = harness.ranks(daemon.socket, world, body)
        for result in results:
            same(result[1], results[0][1], "output ")
            self.assertTrue(torch.isfinite(result[1]).all())
            self.assertEqual(result[2], 0)
        return [result[0] for result in results]

    def test_forward(self) -> None:
        """a rank raises in its forward: no unit is updated, so the step is nobody's"""
        self.assertEqual(self.told(2, "forward"), [[(1, "StepAbandoned", 1)], [(1, "forward")]])
        self.assertEqual(self.told(1, "forward"), [[(1, "forward")]])

    def test_backward(self) -> None:
        """a rank raises in its backward behind an update: the weights are torn, and are the same for all ranks"""
        warning = "zerod.torch: rank {} has abandoned"
        for offload in EACH:
            with self.subTest(offload=offload):
                self.assertEqual(self.told(3, "backward", offload),
                                 [[(1, "StepTorn", 1)], [(1, "backward"), warning.format(1)], [(1, "StepTorn", 1)]])
        self.assertEqual(self.told(1, "backward"), [[(1, "backward"), warning.format(0)]])

    def test_budget(self) -> None:
        """the same where units stay on the device: those are stepped in step(), so they are not torn"""
        for offload in VALUES:
            budget = zt.plan(small(), 3, offload=offload, device_budget=1 << 30).budget_used // 2
            with self.subTest(offload=offload):
                self.assertEqual(self.told(3, "backward", offload, device_budget=budget),
                                 [[(1, "StepTorn", 1)], [(1, "backward"), "zerod.torch: rank 1 has abandoned"],
                                  [(1, "StepTorn", 1)]])
                self.assertEqual(self.told(3, "backward", offload, ordinary=True, device_budget=budget),
                                 [[(1, "StepAbandoned", 1)], [(1, "backward")], [(1, "StepAbandoned", 1)]])
                self.assertEqual(self.told(2, "optimizer", offload, device_budget=budget),
                                 [[(1, "StepTorn", 1)], [(1, "optimizer")]])

    def test_ordinary(self) -> None:
        """an ordinary optimizer, whose gradients are copied in the backward: the step is nobody's"""
        for where in ("forward", "backward"):
            for offload in VALUES:
                with self.subTest(where=where, offload=offload):
                    self.assertEqual(self.told(3, where, offload, ordinary=True),
                                     [[(1, "StepAbandoned", 1)], [(1, where)], [(1, "StepAbandoned", 1)]])

    def test_optimizer(self) -> None:
        """the optimizer raises: its rank's step() does, the others get StepTorn"""
        for offload in EACH:
            with self.subTest(offload=offload):
                self.assertEqual(self.told(2, "optimizer", offload), [[(1, "StepTorn", 1)], [(1, "optimizer")]])

    def test_mistakes(self) -> None:
        """what does not go together is refused, and says why"""
        def refused(kind: type, text: str, call: Callable) -> None:
            with self.assertRaisesRegex(kind, text):
                call()

        def body(_: int) -> None:
            plain = harness.shard(harness.seeded(small))
            refused(ValueError, "LBFGS is not known as one",
                    lambda: zt.optimizer_in_backward(plain, torch.optim.LBFGS(plain.parameters())))
            some = list(plain.parameters())[:-1]
            refused(ValueError, "some parameters of .*, and not last.bias", lambda: zt.optimizer_in_backward(plain, torch.optim.SGD(some)))
            durable = harness.shard(harness.seeded(small), durable="in-backward", offload="all")
            refused(ValueError, "durable= is not", lambda: zt.optimizer_in_backward(durable, models.sgd(durable)))
            for offload in ("all", None):
                mistakes(harness.shard(harness.seeded(small), offload=offload), plain)

        def mistakes(module: nn.Module, plain: nn.Module) -> None:
            refused(TypeError, "of torch.optim, not function", lambda: zt.optimizer_in_backward(module, lambda _: None))
            refused(ValueError, "no parameter of the model", lambda: zt.optimizer_in_backward(module, models.sgd(plain)))
            optimizer = zt.optimizer_in_backward(module, models.sgd(module))
            refused(ValueError, "already", lambda: zt.optimizer_in_backward(module, optimizer))
            refused(RuntimeError, "the norm is known when", lambda: zt.clip_grad_norm_(module, 1.0))
            models.mlp_loss(module, 0, 0)
            refused(RuntimeError, "given another optimizer", models.sgd(module).step)
            refused(RuntimeError, "went with the optimizer's step in the backward", lambda: next(module.parameters()).grad.norm())
            refused(RuntimeError, "weight went with", lambda: nn.utils.clip_grad_norm_(module.parameters(), 1.0))
            refused(RuntimeError, "call step.. behind each", lambda: models.mlp_loss(module, 0, 1))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module(models.numbers(0, 0, 6, 13)).mean().backward()
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(torch.ones(()))
            refused(RuntimeError, "GradScaler and programs .* need an optimizer without", lambda: scaler.step(optimizer))
            optimizer.found_inf = optimizer.grad_scale = None
            optimizer.zero_grad()
            refused(RuntimeError, "call step.. behind each", lambda: models.mlp_loss(module, 0, 2))  # it has left a step out
            optimizer.step()
            self.assertEqual([parameter.grad for parameter in module.parameters()], [None] * len(list(module.parameters())))

        harness.ranks(daemon.socket, 1, body)

    def used(self, offload: Optional[str], reads: bool) -> Any:
        """The values after a step. reads: while the optimizer's thread steps a unit, the program uses its gradient."""
        entered, leave, main, sgd = threading.Event(), threading.Event(), threading.get_ident(), torch.optim.SGD.step

        def pauses(optimizer: Any, *args: Any) -> Any:
            if threading.get_ident() != main:
                entered.set()
                self.assertTrue(leave.wait(60))
            return sgd(optimizer, *args)

        def read() -> None:
            self.assertTrue(entered.wait(60))
            for use in (torch.Tensor.norm, torch.Tensor.zero_, lambda gradient: gradient.mul_(2),
                        lambda gradient: gradient.detach().zero_()):
                with self.assertRaisesRegex(RuntimeError, "went with the optimizer's step in the backward"):
                    use(weight.grad)
            leave.set()

        module = harness.shard(harness.seeded(small), offload=offload)
        weight = next(module.layers[1].parameters())
        if reads:
            when_backward_comes(module.layers[0], read)
        else:
            leave.set()
        optimizer = zt.optimizer_in_backward(module, models.sgd(module))
        with mock.patch.object(torch.optim.SGD, "step", pauses):
            models.mlp_loss(module, 0, 0)
        optimizer.step()
        return harness.slices(module)

    def test_use(self) -> None:
        """a gradient that the optimizer's thread reads at that moment is refused as well, and remains unchanged"""
        for offload in EACH:
            with self.subTest(offload=offload):
                [found] = harness.ranks(daemon.socket, 1, lambda _: self.used(offload, True))
                [expected] = harness.ranks(daemon.socket, 1, lambda _: self.used(offload, False))
                same(found, expected)


if __name__ == "__main__":
    support.main()
