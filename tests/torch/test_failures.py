#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exceptions on one rank, ranks and daemons that are killed, and what users get wrong."""
from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import types
import unittest
from contextlib import suppress
from functools import partial
from typing import Any, Callable
from unittest import mock

import harness
import models
import old_daemon
import torch
from harness import support
from torch import nn

import zerod
import zerod.torch as zt
from zerod.torch import block, environment, gradients, layout, updates


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


class Trouble(Exception):
    pass


class Troubled(models.MLP):
    """Raises where it is told to: in a block's forward or backward."""

    def __init__(self) -> None:
        super().__init__()
        self.where = ""
        self.layers[1].append(Hurdle(self))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Hurdle(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = [model]
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        where = self.model[0].where
        if where == "forward":
            raise Trouble(where)
        if where == "backward":
            x = x.clone()
            x.register_hook(self._raise)
        return x * self.scale

    def _raise(self, _: torch.Tensor) -> None:
        raise Trouble("backward")


class Raising(torch.optim.SGD):
    where = ""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if self.where == "middle":
            self.param_groups[0]["params"][0].add_(1)
        if self.where in ("optimizer", "middle"):
            raise Trouble(self.where)
        super().step(closure)


class RaisingByUnit(zt.AdamW):
    """Raises before its first unit, or before the second."""

    where = ""
    units = 0

    def step(self, closure: Any = None) -> None:
        self.units = 0
        super().step(closure)

    def _apply(self, *args: Any) -> None:
        if self.where == ("optimizer", "middle")[self.units > 0]:
            raise Trouble(self.where)
        self.units += 1
        super()._apply(*args)


class Again:
    """Each of its steps raises, and is called again."""

    def __init__(self, module: nn.Module) -> None:
        self.optimizer = Raising(module.parameters(), lr=0.1)
        self.zero_grad = self.optimizer.zero_grad

    def step(self) -> None:
        self.optimizer.where = "optimizer"
        try:
            self.optimizer.step()
        except Trouble:
            self.optimizer.where = ""
            self.optimizer.step()


def train_with_trouble(rank: int, make: Any, place: str, troubled: int, micro_batches: int, **options: Any) -> Any:
    module = harness.shard(Troubled(), **options)
    model = module._zerod_model
    optimizer = make(module.parameters(), lr=0.1)
    told = []
    for step in range(5):
        hit = step == 2 and rank == troubled
        module.where = place if hit else ""
        optimizer.where = place if hit else ""
        try:
            for micro in range(micro_batches):
                if place == "forward" and micro < micro_batches - 1:
                    module.where = ""
                elif hit:
                    module.where = place
                models.mlp_loss(module, rank, micro_batches * step + micro)
            optimizer.step()
        except Trouble as trouble:
            told.append((step, str(trouble)))
        except (zt.StepAbandoned, zt.StepTorn) as failed:
            told.append((step, failed.rank))
        optimizer.zero_grad()
    model.settle()
    model.group.barrier()
    gathered = model.client.device(rank).gathered_bytes
    model.group.barrier()
    return told, gathered, harness.slices(module), model.counts.steps


class Exceptions(unittest.TestCase):
    def test_forward_backward(self) -> None:
        """a rank raises in forward or backward: the others learn which rank, that step is nobody's, training goes on"""
        for make, place in itertools.product((Raising, RaisingByUnit), ("forward", "backward")):
            for micro_batches, stage in ((1, 3), (2, 3), (1, 1)):
                with self.subTest(make=make.__name__, place=place, micro_batches=micro_batches, stage=stage):
                    results = harness.ranks(daemon.socket, 3, lambda rank: train_with_trouble(rank, make, place, 1,
                                                                                               micro_batches, stage=stage))
                    self.assertEqual([result[0] for result in results], [[(2, 1)], [(2, place)], [(2, 1)]])
                    if stage == 3:
                        self.assertEqual([result[1] for result in results], [0, 0, 0])
                    self.assertEqual([result[3] for result in results], [4, 4, 4])
                    for value in harness.whole([result[2] for result in results]).values():
                        self.assertTrue(torch.isfinite(value).all())

    def test_optimizer(self) -> None:
        """a rank raises in the optimizer: the others learn which rank, all have the same weights, training goes on"""
        for make, place in itertools.product((Raising, RaisingByUnit), ("optimizer", "middle")):
            for dtype in (None, torch.bfloat16):
                with self.subTest(make=make.__name__, place=place, dtype=dtype), \
                        mock.patch.object(updates, "PORTION_BYTES", 1):
                    results = harness.ranks(daemon.socket, 3, lambda rank: train_with_trouble(rank, make, place, 1, 2,
                                                                                               param_dtype=dtype))
                    self.assertEqual([result[0] for result in results], [[(2, 1)], [(2, place)], [(2, 1)]])
                    self.assertEqual([result[1] for result in results], [0, 0, 0])
                    self.assertEqual([result[3] for result in results], [5, 5, 5])
                    for value in harness.whole([result[2] for result in results]).values():
                        self.assertTrue(torch.isfinite(value).all())

    def test_slices(self) -> None:
        """the slices of the rank that raised are as its optimizer left them, the others' are updated; all see the same"""
        def body(rank: int, place: str) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            optimizer = Raising(module.parameters(), lr=0.1)
            models.mlp_loss(module, rank, 0)
            optimizer.where = place if rank == 1 else ""
            try:
                optimizer.step()
            except (Trouble, zt.StepTorn):
                pass
            return module(torch.ones(2, 13)).detach(), harness.slices(module)

        before, good, middle = [harness.ranks(daemon.socket, 2, lambda rank: body(rank, place) if place else (
            None, harness.slices(harness.shard(harness.seeded(models.MLP))))) for place in ("", "none", "middle")]
        harness.same(middle[0][0], middle[1][0], "output ")
        harness.same(middle[0][1], good[0][1], "slice of rank 0 ")
        expected = {name: (begin, values + 1 if name == "first.weight" else values)
                    for name, (begin, values) in before[1][1].items()}
        harness.same(middle[1][1], expected, "slice of rank 1 ")

    def test_load(self) -> None:
        """after an exception in the optimizer all ranks load a checkpoint at once, and train on as without it"""
        def body(rank: int, fails: bool) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            optimizer = Raising(module.parameters(), lr=0.1)
            saved = {name: value.clone() for name, value in module.state_dict().items()}
            for step in range(2):
                models.mlp_loss(module, rank, step)
                optimizer.where = "middle" if fails and rank == 1 and step == 0 else ""
                with suppress(Trouble, zt.StepTorn):
                    optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    module.load_state_dict(saved)
            return harness.slices(module)

        harness.same(*(harness.ranks(daemon.socket, 2, lambda rank: body(rank, fails)) for fails in (True, False)))

    def test_next_forward(self) -> None:
        """where the optimizers have not all parameters, the others are told by their next forward"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            optimizer = Raising([module.first.weight, module.last.weight], lr=0.1)
            models.mlp_loss(module, rank, 0)
            optimizer.where = "optimizer" if rank == 1 else ""
            try:
                optimizer.step()
            except Trouble:
                pass
            try:
                models.mlp_loss(module, rank, 1)
            except zt.StepTorn as torn:
                return torn.rank
            optimizer.where = ""
            return None

        self.assertEqual(harness.ranks(daemon.socket, 2, body), [1, None])

    def test_no_step(self) -> None:
        """a rank that looks at its gradients and takes no step is named by the others, whose weights stay as they are"""
        def body(rank: int, abandons: bool) -> Any:
            module = harness.shard(models.MLP())
            optimizer = models.sgd(module)
            told = []
            for step in range(3):
                optimizer.zero_grad()
                models.mlp_loss(module, rank, step)
                zt.clip_grad_norm_(module, 1.0)
                if rank == 2 and step == 1:
                    if abandons:
                        zt.abandon(module)
                    continue
                before = harness.slices(module)
                try:
                    optimizer.step()
                except zt.StepAbandoned as abandoned:
                    told.append((step, abandoned.rank))
                    harness.same(harness.slices(module), before, "")
            return told

        for abandons in (False, True):
            self.assertEqual(harness.ranks(daemon.socket, 3, lambda rank: body(rank, abandons)), [[(1, 2)], [(1, 2)], []])

    def test_evaluates(self) -> None:
        """between clipping and step() a rank alone reads weights and evaluates: the others wait with theirs"""
        def body(rank: int, world: int, evaluates: bool, by_hand: bool) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            optimizer = models.sgd(module)
            for step in range(3):
                models.mlp_loss(module, rank, step)
                zt.clip_grad_norm_(module, 1.0)
                module.layers[0].requires_grad_(step == 1)  # it is followed after the step
                if evaluates and rank == world - 1:
                    with torch.no_grad():
                        self.assertTrue(module(torch.ones(2, 13)).isfinite().all())
                        self.assertEqual(module.first.weight.whole().shape, module.first.weight.shape)
                if by_hand:
                    with torch.no_grad():
                        module.last.weight.mul_(0.5)
                optimizer.step()
                optimizer.zero_grad()
            return harness.slices(module)

        for world, by_hand in itertools.product((2, 4), (False, True)):
            alone, plain = [harness.ranks(daemon.socket, world, lambda rank: body(rank, world, evaluates, by_hand)) for evaluates in (True, False)]
            harness.same(alone, plain, "")

    def test_skipped(self) -> None:
        """after an overflow a rank alone may run a forward: the step that no rank takes ends without the others"""
        def body(rank: int) -> None:
            module = harness.shard(models.MLP())
            optimizer = models.sgd(module)
            scaler = torch.amp.GradScaler(models.DEVICE)
            scaler.scale(module(models.numbers(rank, 0, 6, 13)).mean() * float("inf")).backward()
            scaler.step(optimizer)
            if rank == 1:
                with torch.no_grad():
                    module(models.numbers(rank, 1, 6, 13))
            module._zerod_model.group.barrier()

        harness.ranks(daemon.socket, 2, body)

    def test_step_again(self) -> None:
        """a rank that calls step() again has not failed"""
        harness.compare(daemon.socket, 2, models.MLP, Again, models.mlp_loss)

    def test_interrupted_step(self) -> None:
        """Ctrl-C in a step that goes by units, before the others have begun it: it may be abandoned, and training goes on"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            optimizer = zt.AdamW(module.parameters(), lr=0.1)
            models.mlp_loss(module, rank, 0)
            if rank == 0:
                with mock.patch.object(gradients.Gradients, "await_units", side_effect=KeyboardInterrupt), \
                        self.assertRaises(KeyboardInterrupt):
                    optimizer.step()
                zt.abandon(module)
            module._zerod_model.group.barrier()
            if rank == 1:
                with self.assertRaises(zt.StepAbandoned):
                    optimizer.step()
            optimizer.zero_grad()
            before = harness.slices(module)
            harness.train(module, optimizer, models.mlp_loss, rank, 2)
            return before

        unchanged = harness.ranks(daemon.socket, 2, lambda rank: harness.slices(harness.shard(harness.seeded(models.MLP))))
        harness.same(harness.ranks(daemon.socket, 2, body), unchanged)

    def test_unit_again(self) -> None:
        """nor one whose step by units is called again: each unit is stepped once"""
        def body(rank: int, raises: bool) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            optimizer = RaisingByUnit(module.parameters(), lr=0.1)
            for step in range(3):
                models.mlp_loss(module, rank, step)
                optimizer.where = "middle" if raises and rank == 1 and step < 2 else ""
                try:
                    optimizer.step()
                except Trouble:
                    optimizer.where = ""
                    optimizer.step()
                optimizer.zero_grad()
            return harness.slices(module)

        with mock.patch.object(updates, "PORTION_BYTES", 1):
            harness.same(*[harness.ranks(daemon.socket, 2, lambda rank: body(rank, raises)) for raises in (False, True)])

    def test_interrupted(self) -> None:
        """Ctrl-C in a forward, in and between blocks, behind which torch runs no hooks: the step is nobody's, and training goes on"""
        def trained(rank: int) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            optimizer, plain = models.sgd(module), [layer.forward for layer in module.layers]

            def interrupted(x: torch.Tensor) -> torch.Tensor:
                if rank in hit:
                    raise KeyboardInterrupt
                return plain[1](x)

            told = []
            for step in range(4):
                hit = {1: (0,), 2: (0, 1)}.get(step, ())
                module.layers[1].forward = interrupted
                optimizer.zero_grad()
                try:
                    models.mlp_loss(module, rank, step)
                    optimizer.step()
                except (KeyboardInterrupt, zt.StepAbandoned) as raised:
                    told.append(type(raised).__name__)
            return told, harness.slices(module)

        def expected() -> Any:
            def losses(module: nn.Module, rank: int, step: int) -> torch.Tensor:
                return models.mlp_loss(module, rank, 3 * step)

            return harness.reference(models.MLP, models.sgd, losses, 2, 2)[1]

        (first, a), (second, b) = harness.ranks(daemon.socket, 2, trained)
        self.assertEqual((first, second), (["KeyboardInterrupt"] * 2, ["StepAbandoned", "KeyboardInterrupt"]))
        harness.same(harness.whole([a, b]), harness.alone(expected))

    def test_alone(self) -> None:
        """one rank alone: an exception in backward, then in forward"""
        for place in ("forward", "backward"):
            (result,) = harness.ranks(daemon.socket, 1, lambda rank: train_with_trouble(rank, Raising, place, 0, 2))
            self.assertEqual(result[:2], ([(2, place)], 0))


class Ends(unittest.TestCase):
    def test_absent(self) -> None:
        """no daemon: ConnectionFailed with the socket"""
        def body(rank: int) -> Any:
            try:
                zt.shard(models.MLP())
            except zerod.ConnectionFailed as failed:
                return failed.text
            return "no error"

        self.assertRegex(harness.ranks("/nowhere/zerod.sock", 1, body)[0], "/nowhere/zerod.sock")

    def test_deadline(self) -> None:
        """shard(deadline_ms=) bounds every wait: of a step that another rank does not begin, and of a barrier"""
        done = os.pipe()

        def body(rank: int) -> list[str]:
            module = zt.shard(models.MLP(), deadline_ms=3000)
            optimizer = models.sgd(module)
            models.mlp_loss(module, rank, 0)
            if rank == 1:
                os.read(done[0], 1)
                return []
            told = []
            for call in (optimizer.step, partial(zt.barrier, module)):
                with self.assertRaises(zerod.Deadline) as raised:
                    call()
                told.append(str(raised.exception))
            os.write(done[1], b".")
            return told

        told, _ = harness.ranks(daemon.socket, 2, body)
        self.assertRegex(told[0], "waited 3[0-9]{3} ms for rank 1 to begin the step")
        self.assertRegex(told[1], "waited 3[0-9]{3} ms for rank 1 to agree")

    def test_draining(self) -> None:
        """the daemon is told to end: steps go on, ConnectionFailed says why nobody joins and, in a step, that it ended"""
        with support.Daemon() as ending:
            def body(rank: int) -> Any:
                module = zt.shard(models.MLP())
                optimizer = models.sgd(module)
                told: list[str] = []

                def steps(first: int, last: int) -> None:
                    for step in range(first, last):
                        models.mlp_loss(module, rank, step)
                        optimizer.step()
                        optimizer.zero_grad()

                steps(0, 3)
                os.kill(ending.process.pid, signal.SIGTERM)
                while not told:
                    try:
                        zerod.Client(ending.socket).close()
                    except zerod.ConnectionFailed as failed:
                        told.append(str(failed))
                try:
                    zt.shard(models.MLP())
                except zerod.ConnectionFailed as failed:
                    told.append(str(failed))
                steps(3, 6)
                os.kill(ending.process.pid, signal.SIGTERM)
                try:
                    steps(6, 100000)
                except zerod.ConnectionFailed as failed:
                    told.append(str(failed))
                return told

            (told,) = harness.ranks(ending.socket, 1, body)
            self.assertEqual(len(told), 3)
            for text in told[:2]:
                self.assertRegex(text, "SHUTDOWN: .*the daemon is draining")
            self.assertRegex(told[2], "SHUTDOWN: .*the daemon ended: drained by SIGTERM")

    def test_other_version(self) -> None:
        """an older daemon: ConnectionFailed with its version of the protocol and the library's, whoever refuses"""
        for answer, text in ((old_daemon.welcome, "the daemon speaks version 0, this library 1"),
                             (old_daemon.refusal, "the client speaks protocol versions 1 to 1, the daemon 0 to 0")):
            def body(rank: int) -> Any:
                try:
                    zt.shard(models.MLP())
                except zerod.ConnectionFailed as failed:
                    return failed.name, failed.text
                return "no error"

            with self.subTest(text=text), old_daemon.Listener() as listener:
                children = harness.start(listener.path, 1, body)
                listener.serve(answer)
                self.assertEqual(harness.collect(children), [("VERSION", text)])


class Mistakes(unittest.TestCase):
    def test_different_models(self) -> None:
        """ranks with different models are told, and do not hang"""
        def wider(rank: int) -> nn.Module:
            return models.MLP(width=37 + rank)

        def deeper(rank: int) -> nn.Module:
            return models.MLP(depth=3 + rank)

        def half(rank: int) -> nn.Module:
            return models.MLP().bfloat16() if rank else models.MLP()

        for make in (wider, deeper, half):
            def body(rank: int, make: Callable = make) -> Any:
                try:
                    zt.shard(make(rank))
                except zerod.ZerodError as error:
                    return type(error).__name__, error.text
                return "no error", ""

            with self.subTest(make=make.__name__):
                results = harness.ranks(daemon.socket, 2, body)
                self.assertEqual([result[0] for result in results], ["Mismatch", "Mismatch"])
                self.assertRegex(results[0][1], "ranks 0 and 1 have different models: unit [0-9]+ of rank 0 is .*")

    def test_no_room(self) -> None:
        """a model that does not fit, and gradients that do not: OutOfMemory with the sizes"""
        with support.Daemon(devices=1, arena="2M") as small:
            def body(rank: int) -> Any:
                try:
                    zt.shard(nn.Sequential(nn.Linear(1000, 1000)))
                except MemoryError as error:
                    return str(error)

            self.assertRegex(harness.ranks(small.socket, 1, body)[0], "NO_MEMORY.*[0-9]")

            def in_backward(rank: int) -> Any:
                module = zt.shard(nn.Sequential(nn.Linear(560, 560)))
                try:
                    module(torch.ones(2, 560)).sum().backward()
                except MemoryError as error:
                    return str(error), module._zerod_model.client.device(0).gathered_bytes

            text, gathered = harness.ranks(small.socket, 1, in_backward)[0]
            self.assertRegex(text, "NO_MEMORY.*[0-9]")
            self.assertEqual(gathered, 0)

    def test_other_device(self) -> None:
        """a parameter on another device than the rank's is refused by its name; the CPU and meta are not"""
        module = models.MLP()
        blocks = layout.plan(module, None, None)
        here = torch.device("cuda", 0)
        layout.check_devices(blocks, here, {})
        with torch.device("meta"):
            layout.check_devices(layout.plan(models.MLP(), None, None), here, {})
        elsewhere = types.SimpleNamespace(device=torch.device("cuda", 1))
        blocks[-1].units[0].members[0].parameter = elsewhere
        layout.check_devices(blocks, elsewhere.device, {})
        for device in (here, torch.device("cpu")):
            with self.assertRaisesRegex(ValueError, f"layers.2.0.weight is on cuda:1, .* device is {device}"):
                layout.check_devices(blocks, device, {})

    def test_old_torch(self) -> None:
        """a torch that is too old is refused by its number"""
        with mock.patch.object(torch, "__version__", "2.3.1+cpu"), self.assertRaisesRegex(ImportError, "2.4.*2.3.1"):
            environment.check_torch()

    def test_backward_counts(self) -> None:
        """ranks with different numbers of backwards: Mismatch names both, and no weight changes"""
        def body(rank: int, make: Callable[[nn.Module], Any]) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            optimizer = make(module)
            try:
                for micro in range(1 + rank):
                    models.mlp_loss(module, rank, micro)
                optimizer.step()
            except zerod.Mismatch as mismatch:
                return mismatch.text, harness.slices(module)
            return "no error", None

        unchanged = harness.ranks(daemon.socket, 2, lambda rank: harness.slices(harness.shard(harness.seeded(models.MLP))))
        for make in (models.sgd, lambda module: zt.SGD(module.parameters(), lr=0.1, momentum=0.9)):
            results = harness.ranks(daemon.socket, 2, lambda rank: body(rank, make))
            for text, _ in results:
                self.assertRegex(text, "1.*2|2.*1")
            harness.same([after for _, after in results], unchanged)

    def test_optimizer_state(self) -> None:
        """an optimizer made before shard() goes on, with the state and the gradients that it has"""
        def body(rank: int, sharded: bool = True) -> Any:
            module = harness.seeded(models.MLP).to(models.DEVICE)
            optimizer = models.adamw(module)
            for step in range(3):
                optimizer.zero_grad()
                models.mlp_loss(module, 0, step)
                if step == 1 and sharded:
                    harness.shard(module)
                harness.step_with(optimizer)
            return dict(module.state_dict())

        expected = harness.alone(lambda: body(0, False))
        for state in harness.ranks(daemon.socket, 2, body):
            harness.same(state, expected)

    def test_closure(self) -> None:
        """step(closure) runs it once, with gradients, before the update; an optimizer that calls it again is refused"""
        def steps(module: nn.Module, optimizer: Any, loss: Callable[[int], torch.Tensor]) -> Any:
            def closure(step: int) -> torch.Tensor:
                optimizer.zero_grad()
                made = loss(step)
                made.backward()
                return made

            with torch.no_grad():
                seen = [float(optimizer.step(partial(closure, step))) for step in range(3)]
            return seen, dict(module.state_dict())

        def body(make: Callable, rank: int) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            return steps(module, make(module), lambda step: module(models.numbers(rank, step, 6, 13)).square().mean())

        def one(make: Callable, rank: int) -> Any:
            module = harness.seeded(models.MLP).to(models.DEVICE)
            return steps(module, make(module), lambda step: sum(module(models.numbers(each, step, 6, 13)).square().mean()
                                                                for each in range(2)) / 2)

        def adamw(module: nn.Module, **options: Any) -> Any:
            kind = zt.AdamW if hasattr(module, "_zerod_model") else torch.optim.AdamW
            return kind(module.parameters(), lr=1e-2, eps=1e-3, **(options if kind is zt.AdamW else {}))

        for make in (models.sgd, adamw, partial(adamw, in_backward=True)):
            expected = harness.alone(partial(one, make, 0))[1]
            for result in harness.ranks(daemon.socket, 2, partial(body, make)):
                torch.testing.assert_close(result[1], expected, rtol=1e-5, atol=1e-6)
        with self.assertRaisesRegex(harness.Failed, "LBFGS calls its closure several times"):
            harness.ranks(daemon.socket, 1, partial(body, lambda module: torch.optim.LBFGS(module.parameters())))

    def test_forked(self) -> None:
        """a forked data loader works on; sharding in a forked child is refused"""
        def body(rank: int) -> Any:
            module = harness.shard(models.MLP())
            data = [models.numbers(rank, i, 13).cpu() for i in range(8)]
            loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork")
            optimizer = models.sgd(module)
            for batch in loader:
                optimizer.zero_grad()
                module(batch.to(models.DEVICE)).sum().backward()
                optimizer.step()
            pid, reader = harness.fork(lambda: zt.shard(models.MLP()))
            with self.assertRaisesRegex(harness.Failed, "forked"):
                harness.collect([(pid, reader)])
            return module._zerod_model.counts.steps

        self.assertEqual(harness.ranks(daemon.socket, 2, body), [4, 4])

    def test_ended(self) -> None:
        """rank 1 returns from main; rank 0 evaluates, and its next steps say that rank 1 ended normally"""
        program = """
import os, sys
import harness, models, torch, zerod
import zerod.torch as zt

rank = int(os.environ["RANK"])
if models.DEVICE != "cpu":
    torch.cuda.set_device(rank % torch.cuda.device_count())
modules = [zt.shard(harness.seeded(models.MLP), stage=stage) for stage in (1, 2, 3)]
optimizers = [models.sgd(module) for module in modules]
model = zt.model_of(modules[-1])
agree, steps = model.steps._agree, iter(range(3))

def slowly(fails):
    agreed = agree(fails)
    if rank == 0 and next(steps) == 2:  # rank 1 has ended when rank 0 begins its last update
        sys.stdin.read()
    return agreed

model.steps._agree = slowly
for module, optimizer in zip(modules, optimizers):
    harness.train(module, optimizer, models.mlp_loss, rank, 3)
if rank == 0:
    model.steps._agree = agree
    with torch.no_grad():
        seen = [(module(models.numbers(0, 9, 6, 13)).cpu(), dict(module.state_dict())) for module in modules]
    torch.save(seen, sys.argv[1])
    for module, optimizer in list(zip(modules, map(models.sgd, modules))) * 2:
        try:
            harness.train(module, optimizer, models.mlp_loss, rank, 1)
        except zerod.PeerLost as lost:
            print(lost)
"""
        common = {**os.environ, "PYTHONPATH": str(support.ROOT / "tests" / "torch"), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                  "ZEROD_SOCKET": daemon.socket, "ZEROD_JOB": "ended"}
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, "-c", program, folder + "/seen"], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True,
                                      env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
            ranks[1].communicate(timeout=harness.TIMEOUT_S)
            told = ranks[0].communicate(timeout=harness.TIMEOUT_S)[0].splitlines()
            self.assertEqual([rank.returncode for rank in ranks], [0, 0])
            self.assertEqual(len(told), 6)
            for line in told:
                self.assertRegex(line, r"rank 1 .*ended normally.*zt\.barrier\(model\)")
            seen = torch.load(folder + "/seen", map_location="cpu")

        def alone() -> Any:
            module = harness.seeded(models.MLP)
            weights = harness.reference(models.MLP, models.sgd, models.mlp_loss, 2, 3)[1]
            module.load_state_dict({name: weights[name].view_as(value) for name, value in module.state_dict().items()})
            return module.to(models.DEVICE)(models.numbers(0, 9, 6, 13)), dict(module.state_dict())

        harness.same(seen, [harness.alone(alone)] * 3)

    def test_forked_late(self) -> None:
        """the harness forks no ranks from a process in which torch has threads"""
        def body() -> None:
            torch.set_num_threads(2)
            torch.ones(1 << 20, device="cpu").exp()
            with self.assertRaisesRegex(harness.Failed, "ranks are forked before"):
                harness.alone(lambda: torch.ones(1 << 20).exp())

        harness.alone(body)

    def test_two_models(self) -> None:
        """two models, one optimizer for both and one for each"""
        def body(rank: int) -> Any:
            a, b = harness.shard(models.MLP()), harness.shard(models.MLP())
            for optimizers in ([torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)],
                               [models.sgd(a), models.sgd(b)]):
                for step in range(3):
                    x = models.numbers(rank, step, 6, 13)
                    (a(x) - b(x + 1)).square().mean().backward()
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
            return a._zerod_model.counts.steps, b._zerod_model.counts.steps

        self.assertEqual(harness.ranks(daemon.socket, 2, body), [(6, 6), (6, 6)])


if __name__ == "__main__":
    support.main()
