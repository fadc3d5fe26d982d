#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Durable jobs: ranks that are killed anywhere in a step are started again, and the end is bit-equal to no kill."""
from __future__ import annotations

import copy
import os
import signal
import subprocess
import unittest
from typing import Any, Callable, Optional

import harness
import models
import torch
from harness import same, support
from test_halves import Reference
from torch import nn

import zerod
import zerod.torch as zt

KILLED, STEPS = 2, 5  # the step in which ranks are killed, counted from 0, and all
ACCUMULATE = 2
PLACES = ("forward", "backward", "optimizer", "update", "publish", "commit", "after")


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=2, arena="128M", host_arena="64M").for_module()


def end_job(job: str) -> None:
    """Frees what the job holds."""
    subprocess.run([str(support.BUILD / "bin" / "zeroctl"), "--socket", daemon.socket, "end-job", job], check=True,
                   capture_output=True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(place: str, module: nn.Module, optimizer: torch.optim.Optimizer, kill: Callable[[], None] = die) -> None:
    """This process is killed at the place of the step that begins; or what kill() does is done there."""
    kept = zt.model_of(module).durable
    assert kept is not None

    def killed(*_: Any, **__: Any) -> None:
        kill()

    def wrap(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = block(x)
        if block is module.blocks[1]:
            if place == "forward":
                kill()
            else:
                y.register_hook(killed)
        return y

    if place in ("forward", "backward"):
        module.wrap = wrap
    elif place == "optimizer":  # its own hook runs behind the global one: in the update
        optimizer.register_step_pre_hook(killed)
    elif place == "update":  # some parameters are written
        group = optimizer.param_groups[0]
        optimizer.param_groups[:] = [{**group, "params": group["params"][:9]},
                                     {**group, "params": group["params"][9:], "weight_decay": _Killing()}]
    elif place == "kernel":  # some units are written
        optimizer.open = lambda unit: kill() if unit is optimizer.param_groups[0]["params"][9].part.place[0] else type(
            optimizer).open(optimizer, unit)
    elif place == "publish":
        zt.model_of(module).updates.publish = killed
    elif place == "commit":  # all is published
        kept.commit = killed
    else:
        before = kept.commit

        def commit() -> None:
            before()
            kill()

        kept.commit = commit


class _Killing:
    """A number; any use of it kills the process."""

    def _die(self, *_: Any) -> Any:
        die()

    __mul__ = __rmul__ = __ne__ = __eq__ = __bool__ = __float__ = _die  # type: ignore[assignment]


def own_adamw(module: nn.Module) -> torch.optim.Optimizer:
    if hasattr(module, "_zerod_model"):
        return zt.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1)
    reference = Reference(module.parameters(), "AdamW", lr=1e-2, weight_decay=0.1)
    reference.rounded = lambda masters: masters  # type: ignore[method-assign, assignment]  # publishes round, as with torch's optimizers
    return reference


def make_small() -> nn.Module:
    return models.GPT(depth=2)


def trained(job: str, rank: int, make: Callable[[], nn.Module], optimize: Callable, dtype: Optional[torch.dtype],
            kill: Optional[str], killed_step: int = KILLED, **options: Any) -> Any:
    """The program of a user, and a kill."""
    module = harness.shard(harness.seeded(make), param_dtype=dtype, durable=job, **options)
    optimizer = optimize(module)
    began = zt.committed_step(module)
    for step in range(began, STEPS):
        optimizer.zero_grad()
        for micro in range(ACCUMULATE):
            if kill is not None and step == killed_step and micro == ACCUMULATE - 1:
                kill_at(kill, module, optimizer)
            models.gpt_loss(module, rank, step * ACCUMULATE + micro)
        optimizer.step()
    assert zt.committed_step(module) == STEPS
    state = zt.state_dict(module, optimizer, full=True)
    return began, dict(state["model"]), state["optimizer"]["state"]


def expected(make: Callable[[], nn.Module], optimize: Callable, dtype: Optional[torch.dtype],
             loss: harness.Loss = models.gpt_loss) -> Any:
    kept: list[Any] = []

    def keep(masters: nn.Module) -> torch.optim.Optimizer:
        kept.append((masters, optimize(masters)))
        return kept[0][1]

    harness.reference(make, keep, loss, 2, STEPS, ACCUMULATE, dtype=dtype)
    masters, optimizer = kept[0]
    return dict(masters.state_dict()), {name: optimizer.state[each] for name, each in masters.named_parameters()}


class Killed(unittest.TestCase):
    def run_killed(self, job: str, place: str, killed: tuple[int, ...], optimize: Callable,
                   dtype: Optional[torch.dtype] = None, killed_step: int = KILLED, **options: Any) -> list[Any]:
        """One run that is killed, and one that goes on; what the latter's ranks have at the end."""
        def first(rank: int) -> Any:
            try:
                return trained(job, rank, make_small, optimize, dtype, place if rank in killed else None, killed_step,
                               **options)
            except zerod.PeerLost as lost:
                harness._models.clear()
                return lost.text

        told = [str(each) for _, each in harness.outcomes(harness.start(daemon.socket, 2, first))]
        self.assertTrue(any("ended with status 9" in told[rank] for rank in killed), told)
        for rank in range(2):  # where both are killed, one may be told of the other's end before its own
            expected = "ended with status 9" if killed == (rank,) else f"rank {1 - rank} "
            self.assertRegex(told[rank], f"ended with status 9|{expected}" if len(killed) == 2 else expected)

        def second(rank: int) -> Any:
            return trained(job, rank, make_small, optimize, dtype, None, **options)

        results = harness.ranks(daemon.socket, 2, second)
        began = [result[0] for result in results]
        same(began, [began[0]] * 2, "first step ")
        if place == "after":
            self.assertIn(began[0], (killed_step, killed_step + 1))
        else:
            self.assertEqual(began[0], killed_step)
        return [result[1:] for result in results]

    def check(self, optimize: Callable, dtype: Optional[torch.dtype], places: tuple[str, ...],
              killed: tuple[tuple[int, ...], ...], killed_step: int = KILLED, **options: Any) -> None:
        wanted = harness.alone(lambda: expected(make_small, optimize, dtype))
        for place, ranks in harness.combined(places, killed):
            with self.subTest(place=place, killed=ranks):
                job = f"{optimize.__name__}-{dtype}-{place}-{ranks}-{killed_step}-{'-'.join(options)}"
                for result in self.run_killed(job, place, ranks, optimize, dtype, killed_step, **options):
                    same(result[0], wanted[0], "parameter ")
                    same(result[1], wanted[1], "optimizer ")
                end_job(job)

    def test_adamw(self) -> None:
        """float32, AdamW: killed in each part of a step, one rank or all"""
        self.check(models.adamw, None, PLACES, ((0,), (1,), (0, 1)))

    def test_masters(self) -> None:
        """bfloat16 with float32 masters, AdamW: killed in each part of a step, one rank or all"""
        self.check(models.adamw, torch.bfloat16, PLACES, ((1,), (0, 1)))

    def test_sgd(self) -> None:
        """bfloat16, SGD with momentum: killed in the update"""
        self.check(models.sgd, torch.bfloat16, ("update",), ((0, 1),))

    def test_first_step(self) -> None:
        """killed in the first step, in which the optimizer's state appears: nothing of it is found"""
        self.check(models.adamw, None, PLACES, ((0,), (1,), (0, 1)), killed_step=0)

    def test_options(self) -> None:
        """killed inside of the optimizer's step, with slots, with stage 2, with persistent units"""
        for options in ({"slots": True}, {"stage": 2}, {"persist_below": 1000}):
            self.check(models.adamw, torch.bfloat16, ("update",), ((1,),), **options)

    def test_own_adamw(self) -> None:
        """zerod.torch.AdamW, float32 and with masters, offload too: killed inside of its step and before its first commit"""
        for dtype in (None, torch.bfloat16):
            wanted = harness.alone(lambda: expected(make_small, own_adamw, dtype)[0])
            for offload, (place, step) in harness.combined((None, "all", "optimizer"), (("kernel", KILLED), ("commit", 0))):
                options = {} if offload is None else {"offload": offload}
                with self.subTest(dtype=dtype, offload=offload, place=place):
                    for result in self.run_killed(f"own-{dtype}-{offload}", place, (1,), own_adamw, dtype, step, **options):
                        same(result[0], wanted)
                    end_job(f"own-{dtype}-{offload}")

    def test_other_optimizer(self) -> None:
        """killed before AdamW's first commit, started again with SGD: AdamW's state is not in the way"""
        wanted = harness.alone(lambda: expected(make_small, models.sgd, None))

        def first(rank: int) -> Any:
            return trained("adamw-sgd", rank, make_small, models.adamw, None, "commit", 0)

        harness.outcomes(harness.start(daemon.socket, 2, first))
        for result in harness.ranks(daemon.socket, 2,
                                    lambda rank: trained("adamw-sgd", rank, make_small, models.sgd, None, None)):
            same(result, (0, *wanted))
        end_job("adamw-sgd")


class Late(nn.Module):
    """Its second part is used from step 2 on."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(7, 7) for _ in range(2))
        self.count = 0  # of steps before

    def at(self, step: int) -> None:
        """Called before a step."""
        self.count = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.parts[0](x).tanh()
        return self.parts[1](x) if self.count >= 2 else x


class Unfrozen(Late):
    """Its second part is frozen before step 2."""

    def __init__(self) -> None:
        super().__init__()
        self.at(0)

    def at(self, step: int) -> None:
        super().at(2)
        for parameter in self.parts[1].parameters():
            parameter.requires_grad_(step >= 2)


def late_loss(module: nn.Module, rank: int, micro: int) -> torch.Tensor:
    module.at(micro)
    loss = module(models.numbers(rank, micro, 3, 7).to(models.dtype_of(module))).float().square().mean()
    loss.backward()
    return loss.detach()


class Continued(unittest.TestCase):
    def run_late(self, make: Any, dtype: Any, rank: int, last: int, kill: Optional[str] = None) -> Any:
        module = harness.shard(harness.seeded(make), param_dtype=dtype, durable="late")
        optimizer = models.adamw(module)
        began = zt.committed_step(module)
        for step in range(began, last):
            if kill is not None and step == last - 1:
                kill_at(kill, module, optimizer)
            optimizer.zero_grad()
            late_loss(module, rank, step)
            optimizer.step()
        state = zt.state_dict(module, optimizer, full=True)
        return began, dict(state["model"]), state["optimizer"]["state"]

    def test_late(self) -> None:
        """parameters that are unused or frozen before step 2: their state appears later, a kill there undoes it"""
        for make in (Late, Unfrozen):
            for dtype in (None, torch.bfloat16):
                with self.subTest(make=make, dtype=dtype):
                    self.check_late(make, dtype)

    def check_late(self, make: Any, dtype: Any) -> None:
        kept: list[Any] = []

        def reference() -> Any:
            def keep(masters: nn.Module) -> torch.optim.Optimizer:
                kept.append((masters, models.adamw(masters)))
                return kept[0][1]

            harness.reference(make, keep, late_loss, 2, 5, dtype=dtype)
            return dict(kept[0][0].state_dict()), {name: kept[0][1].state[each]
                                                   for name, each in kept[0][0].named_parameters()}

        wanted = harness.alone(reference)
        for last, kill, began in ((2, "after", 0), (3, "commit", None), (4, "publish", 2), (5, None, 3)):
            results = harness.outcomes(harness.start(daemon.socket, 2, lambda rank: self.run_late(make, dtype, rank, last,
                                                                                                           kill)))
            if kill is None:
                for good, result in results:
                    self.assertTrue(good, result)
                    same(result, (began, *wanted))
        end_job("late")

    def test_load(self) -> None:
        """a state of other weights and of another optimizer's steps is loaded into a job that goes on, and committed"""
        for dtype in (None, torch.bfloat16):
            with self.subTest(dtype=dtype):
                self.check_load(f"load-{dtype}", dtype)

    def check_load(self, job: str, dtype: Optional[torch.dtype]) -> None:
        def run(rank: int, steps: int, load: Any = None) -> Any:
            module = harness.shard(harness.seeded(make_small), param_dtype=dtype, durable=job)
            optimizer = models.adamw(module)
            if load is not None:
                zt.load_state_dict(module, load, optimizer)
            began = zt.committed_step(module)
            for step in range(began, began + steps):
                optimizer.zero_grad()
                models.gpt_loss(module, rank, 0)
                optimizer.step()
            state = zt.state_dict(module, optimizer, full=True)
            return began, {"model": dict(state["model"]), "optimizer": state["optimizer"]}

        one = harness.ranks(daemon.socket, 2, lambda rank: run(rank, 1))[0]
        two = harness.ranks(daemon.socket, 2, lambda rank: run(rank, 1))[0]
        self.assertEqual((one[0], two[0]), (0, 1))
        again = harness.ranks(daemon.socket, 2, lambda rank: run(rank, 1, one[1]))[0]
        same(again[1], two[1])
        same(harness.ranks(daemon.socket, 2, lambda rank: run(rank, 0))[0], (3, two[1]))
        end_job(job)

    def test_skipped(self) -> None:
        """a step that GradScaler skips is counted, and a restart has the weights before it"""
        def run(rank: int, last: int) -> Any:
            module = harness.shard(harness.seeded(make_small), durable="skipped")
            optimizer = models.adamw(module)
            for step in range(zt.committed_step(module), last):
                scaler = torch.amp.GradScaler(models.DEVICE, init_scale=1024.0)
                batch = models.tokens(module, rank, 0)
                loss = torch.nn.functional.cross_entropy(module(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
                scaler.scale(loss * (float("inf") if step == 1 and rank == 0 else 1.0)).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            return zt.committed_step(module), dict(module.state_dict())

        one = harness.ranks(daemon.socket, 2, lambda rank: run(rank, 1))[0]
        two = harness.ranks(daemon.socket, 2, lambda rank: run(rank, 2))[0]
        again = harness.ranks(daemon.socket, 2, lambda rank: run(rank, 2))[0]
        self.assertEqual((one[0], two[0], again[0]), (1, 2, 2))
        same([two[1], again[1]], [one[1], one[1]])
        end_job("skipped")

    def test_torn(self) -> None:
        """an optimizer that raises on one rank: nothing is committed, and a restart has the step before"""
        def run(rank: int, raises: bool) -> Any:
            module = harness.shard(harness.seeded(make_small), durable="torn")
            optimizer = models.adamw(module)
            if zt.committed_step(module) == 0:
                models.gpt_loss(module, rank, 0)
                optimizer.step()
            before = copy.deepcopy(zt.state_dict(module, optimizer, full=True))  # step counts are the optimizer's own
            if raises:
                optimizer.zero_grad()
                models.gpt_loss(module, rank, 1)
                if rank == 1:
                    optimizer.register_step_pre_hook(lambda *_: 1 / 0)
                try:
                    optimizer.step()
                except (zt.StepTorn, ZeroDivisionError) as raised:
                    if rank == 1:
                        model = zt.model_of(module)
                        model.settle()
                    assert zt.committed_step(module) == 1, raised
                else:
                    raise AssertionError("no error")
            return dict(before["model"]), before["optimizer"]["state"]

        first = harness.ranks(daemon.socket, 2, lambda rank: run(rank, True))
        same(harness.ranks(daemon.socket, 2, lambda rank: run(rank, False)), first)
        end_job("torn")

    def test_one(self) -> None:
        """one rank; two optimizers of one model, with other forms of state: they go on as if not ended"""
        def run(rank: int, last: int) -> Any:
            module = harness.shard(harness.seeded(make_small), durable="one")
            parameters = list(module.parameters())
            optimizers = [torch.optim.NAdam(parameters[:7], lr=1e-2), torch.optim.Adagrad(parameters[7:], lr=1e-2)]
            for step in range(zt.committed_step(module), last):
                models.gpt_loss(module, rank, step)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            zt.state_dict(module, optimizers[0]), zt.state_dict(module, optimizers[1])
            state = [{key: value.clone() for key, value in optimizer.state[parameter].items()}
                     for optimizer in optimizers for parameter in optimizer.param_groups[0]["params"]]
            return zt.committed_step(module), dict(module.state_dict()), state

        whole = harness.ranks(daemon.socket, 1, lambda rank: run(rank, 4))
        end_job("one")
        harness.ranks(daemon.socket, 1, lambda rank: run(rank, 2))
        same(harness.ranks(daemon.socket, 1, lambda rank: run(rank, 4)), whole)
        end_job("one")


class Refused(unittest.TestCase):
    def test_different(self) -> None:
        """another model, another world size: Mismatch that says what the job holds"""
        def run(make: Callable[[], nn.Module], **options: Any) -> Callable[[int], Any]:
            def body(rank: int) -> Any:
                try:
                    harness.shard(harness.seeded(make), durable="held", **options)
                except zerod.Mismatch as mismatch:
                    return mismatch.text
                return "no error"

            return body

        harness.ranks(daemon.socket, 2, run(make_small))
        for make, options, text in (
                (lambda: models.GPT(depth=2, length=17), {}, r"positions.weight \[16, 24\] of float32.*this model has "
                                                             r"positions.weight \[17, 24\]"),
                (lambda: models.GPT(depth=3), {}, r"is norm.*nothing|this model has blocks.2"),
                (lambda: models.GPT(depth=1), {}, r"blocks.1"),
                (make_small, {"param_dtype": torch.bfloat16}, "gathered as float32.*gathered as bfloat16")):
            for told in harness.ranks(daemon.socket, 2, run(make, **options)):
                self.assertRegex(told, "durable job 'held'.*holds a different model: its parameter.*" + text)
                self.assertIn("zeroctl end-job held", told)
        for told in harness.ranks(daemon.socket, 1, run(make_small)):
            self.assertRegex(told, "has world_size 2; rank 0 says 1; durable job 'held'")
        self.assertEqual(harness.ranks(daemon.socket, 2, run(make_small)), ["no error"] * 2)
        end_job("held")

    def test_options(self) -> None:
        """arguments that a durable job cannot have"""
        def body(rank: int) -> None:
            for options, text in (({"process_group": object()}, "not supported"), ({"job": "other"}, "both name the job"),
                                  ({"durable": ""}, "name of the job")):
                with self.assertRaisesRegex(ValueError, text):
                    zt.shard(make_small(), **{"durable": "options", **options})
            module = harness.shard(make_small(), durable="options")
            assert zt.committed_step(module) == 0
            with self.assertRaisesRegex(ValueError, "another name="):
                zt.shard(make_small(), durable="options")
            assert zt.committed_step(harness.shard(make_small(), durable="options", name="second")) == 0
            assert zt.committed_step(harness.shard(make_small(), name="plain")) == 0

        harness.ranks(daemon.socket, 1, body)
        end_job("options")


if __name__ == "__main__":
    support.main()
