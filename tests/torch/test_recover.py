#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A daemon that is killed and restores its durable jobs: the ranks go on, in the same processes or in others."""
from __future__ import annotations

import os
import signal
import subprocess
import unittest
from typing import Any, Callable, Optional
from unittest import mock

import harness
import models
import torch
from harness import same, support
from test_durable import ACCUMULATE, KILLED, STEPS, Late, expected, kill_at, make_small, own_adamw, trained
from torch import nn

import zerod
import zerod.torch as zt
from zerod.torch.model import Model


ENDED = (zerod.ConnectionFailed, zerod.Aborted)  # Aborted: a wait that the daemon's end has freed


class Keeping(support.Daemon):
    """A daemon whose jobs outlive it, until the `with` has ended."""

    def __init__(self, devices: int = 2) -> None:
        super().__init__(devices, harness.ARENA, "--keep-state", "holder")

    def __exit__(self, *error: object) -> None:
        for job in ("kept", "whole"):  # the holder ends with the last one
            subprocess.run([str(support.BUILD / "bin" / "zeroctl"), "--socket", self.socket, "kill-job", job],
                           capture_output=True)
        super().__exit__(*error)


class Restarts:
    """Restarts the daemon in the parent when a rank asks for it."""

    def __init__(self, daemon: support.Daemon) -> None:
        self.daemon = daemon
        self.asked, self.answered = os.pipe(), os.pipe()

    def ask(self) -> None:
        """Called by a rank: returns when the daemon has been started again."""
        os.write(self.asked[1], b".")
        os.read(self.answered[0], 1)

    def serve(self, times: int = 1) -> None:
        for _ in range(times):
            os.read(self.asked[0], 1)
            self.daemon.restart(signal.SIGKILL)
            os.write(self.answered[1], b".")


def later_loss(module: nn.Module, rank: int, micro: int) -> torch.Tensor:
    """Its second part is used from step KILLED on."""
    module.at(2 if micro >= KILLED * ACCUMULATE else 0)
    loss = module(models.numbers(rank, micro, 3, 7)).square().mean()
    loss.backward()
    return loss.detach()


def once(call: Callable[[], None]) -> Callable[[], None]:
    """A function that calls it the first time."""
    calls = [call]
    return lambda: calls.pop()() if calls else None


def recovered(job: str, rank: int, dtype: Optional[torch.dtype], place: str, restart: Callable[[], None],
              make: Callable[[], nn.Module] = make_small, loss: harness.Loss = models.gpt_loss,
              optimize: Callable = models.adamw, **options: Any) -> Any:
    """The program of a user that goes on by recover(). Rank 0 has the daemon restarted at the place of step KILLED."""
    module = harness.shard(harness.seeded(make), param_dtype=dtype, durable=job, **options)
    optimizer = optimize(module)
    step, told, restart = 0, [], once(restart)
    while step < STEPS:
        try:
            optimizer.zero_grad()
            for micro in range(ACCUMULATE):
                if rank == 0 and step == KILLED and micro == ACCUMULATE - 1 and not told:
                    kill_at(place, module, optimizer, restart)
                loss(module, rank, step * ACCUMULATE + micro)
            optimizer.step()
            step += 1
        except ENDED as failed:
            told.append(type(failed).__name__)
            step = zt.recover(module)
            assert step in (KILLED, KILLED + 1), step
            harness._models[:] = [zt.model_of(module)]
    assert zt.committed_step(module) == STEPS
    state = zt.state_dict(module, optimizer, full=True)
    return told, dict(state["model"]), state["optimizer"]["state"]


class Kept(unittest.TestCase):
    """The next daemon has the job."""

    def check(self, place: str, dtype: Optional[torch.dtype], told: str = "ConnectionFailed",
              make: Callable[[], nn.Module] = make_small, loss: harness.Loss = models.gpt_loss,
              optimize: Callable = models.adamw, **options: Any) -> None:
        wanted = harness.alone(lambda: expected(make, optimize, dtype, loss))
        with Keeping() as daemon:
            restarts = Restarts(daemon)
            children = harness.start(daemon.socket, 2, lambda rank: recovered("kept", rank, dtype, place, restarts.ask,
                                                                              make, loss, optimize, **options))
            restarts.serve()
            for (name,), *result in harness.collect(children):
                self.assertIn(name, (told, "Aborted"))
                compared = 1 if optimize is own_adamw else 2  # its reference has a state of its own
                same(result[:compared], list(wanted[:compared]), f"{place} ")

    def test_places(self) -> None:
        """float32, AdamW: the daemon is killed in each part of a step"""
        for place in ("forward", "backward", "optimizer", "publish", "commit", "after"):
            with self.subTest(place=place):
                self.check(place, None)

    def test_masters(self) -> None:
        """bfloat16 with float32 masters; zerod.torch.AdamW"""
        self.check("optimizer", torch.bfloat16)
        self.check("commit", torch.bfloat16, optimize=own_adamw)

    def test_late(self) -> None:
        """parameters whose state of the optimizer appears in the step that is lost"""
        self.check("publish", None, make=Late, loss=later_loss)

    def test_options(self) -> None:
        """with slots, stage 2, persistent units, and calls that say RESTARTED"""
        for options in ({"slots": True}, {"stage": 2}, {"persist_below": 1000}):
            with self.subTest(**options):
                self.check("backward", torch.bfloat16, **options)
        with mock.patch.dict(os.environ, ZEROD_RECONNECT_MS="60000"):
            self.check("backward", None, "Restarted")

    def test_one(self) -> None:
        """one rank, whose gathered buffers are its shards"""
        with mock.patch.dict(os.environ, ZEROD_POISON="0"), Keeping(1) as daemon:
            (_, *wanted), = harness.ranks(daemon.socket, 1, lambda rank: recovered("whole", rank, None, "backward",
                                                                                   lambda: None))
            restarts = Restarts(daemon)
            children = harness.start(daemon.socket, 1, lambda rank: recovered("kept", rank, None, "backward", restarts.ask))
            restarts.serve()
            same(harness.collect(children)[0][1:], tuple(wanted))

    def test_again(self) -> None:
        """two daemons end one after the other, the second one while the ranks recover from the first one's end"""
        wanted = harness.alone(lambda: expected(make_small, models.adamw, None))
        with Keeping() as daemon:
            restarts = Restarts(daemon)

            def body(rank: int) -> Any:
                made = Model.__init__

                def interrupted(model: Model, *args: Any) -> None:
                    made(model, *args)
                    if rank == 0 and model.durable.step == KILLED and not told:  # type: ignore[union-attr]
                        told.append(1)
                        restarts.ask()

                told: list[int] = []
                with mock.patch.object(Model, "__init__", interrupted):
                    return recovered("kept", rank, None, "optimizer", restarts.ask)

            children = harness.start(daemon.socket, 2, body)
            restarts.serve(2)
            for result in harness.collect(children):
                same(result[1:], wanted)

    def test_frozen(self) -> None:
        """what the program has frozen behind shard() is frozen afterwards, and options of the optimizer stay"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(make_small), durable="kept")
            optimizer = models.adamw(module)
            module.head.weight.requires_grad_(False)
            for step in range(4):
                models.gpt_loss(module, rank, step)
                if step == 2:
                    optimizer.param_groups[0]["lr"] = 0.5
                    before = dict(module.state_dict())
                    zt.barrier(module)
                    if rank == 0:
                        restarts.ask()
                    try:
                        zt.barrier(module, deadline_ms=60000)
                    except ENDED:
                        assert zt.recover(module) == 2
                    harness._models[:] = [zt.model_of(module)]
                    same(dict(module.state_dict()), before)
                    same([parameter.requires_grad for parameter in module.parameters()],
                         [name != "tokens.weight" for name, _ in module.named_parameters()])
                    models.gpt_loss(module, rank, step)
                optimizer.step()
                optimizer.zero_grad()
            return optimizer.param_groups[0]["lr"], zt.committed_step(module)

        with Keeping() as daemon:
            restarts = Restarts(daemon)
            children = harness.start(daemon.socket, 2, body)
            restarts.serve()
            same(harness.collect(children), [(0.5, 4)] * 2)

    def test_new_module(self) -> None:
        """a program that shards another module of the job in place of the first one"""
        def body(rank: int) -> Any:
            while True:  # also until a daemon runs
                try:
                    return trained("kept", rank, make_small, models.adamw, None, None)
                except ENDED:
                    harness._models.clear()

        def restarting(rank: int) -> Any:
            loss = models.gpt_loss

            def stop(module: nn.Module, rank: int, micro: int) -> Any:
                if rank == 0 and micro == KILLED * ACCUMULATE + 1:
                    ask()
                return loss(module, rank, micro)

            ask = once(restarts.ask)
            with mock.patch.object(models, "gpt_loss", stop):
                return body(rank)

        wanted = harness.alone(lambda: expected(make_small, models.adamw, None))
        with Keeping() as daemon:
            restarts = Restarts(daemon)
            children = harness.start(daemon.socket, 2, restarting)
            restarts.serve()
            for result in harness.collect(children):
                same(result, (KILLED, *wanted))

    def test_new_processes(self) -> None:
        """ranks that end with the error and are started again by their launcher go on from the last commit"""
        wanted = harness.alone(lambda: expected(make_small, models.adamw, None))
        with Keeping() as daemon:
            restarts = Restarts(daemon)

            def first(rank: int) -> None:
                module = harness.shard(harness.seeded(make_small), durable="kept")
                optimizer = models.adamw(module)
                for step in range(STEPS):
                    optimizer.zero_grad()
                    for micro in range(ACCUMULATE):
                        if rank == 0 and step == KILLED:
                            kill_at("backward", module, optimizer, once(restarts.ask))
                        models.gpt_loss(module, rank, step * ACCUMULATE + micro)
                    optimizer.step()

            children = harness.start(daemon.socket, 2, first)
            restarts.serve()
            for good, text in harness.outcomes(children):
                self.assertFalse(good)
                self.assertRegex(text, "zerod.errors.(ConnectionFailed|Aborted)")
            for result in harness.ranks(daemon.socket, 2,
                                        lambda rank: trained("kept", rank, make_small, models.adamw, None, None)):
                same(result, (KILLED, *wanted))


class Refused(unittest.TestCase):
    def test_mistakes(self) -> None:
        """a module that is not durable, and a daemon that has not ended"""
        def body(rank: int) -> None:
            plain, kept = harness.shard(make_small()), harness.shard(make_small(), durable="kept")
            with self.assertRaisesRegex(ValueError, "GPT was not sharded with durable="):
                zt.recover(plain)
            with self.assertRaisesRegex(RuntimeError, "the daemon has not ended"):
                zt.recover(kept)

        with support.Daemon(1, harness.ARENA) as daemon:
            harness.ranks(daemon.socket, 1, body)

    def test_not_kept(self) -> None:
        """a daemon without the job's state: NotFound, and a new module begins anew"""
        def body(rank: int) -> Any:
            module = harness.shard(make_small(), durable="kept")
            optimizer = models.adamw(module)
            models.gpt_loss(module, rank, 0)
            optimizer.step()
            restarts.ask()
            with self.assertRaises(ENDED):
                models.gpt_loss(module, rank, 1)
            harness._models.clear()
            for _ in range(2):
                with self.assertRaisesRegex(zerod.NotFound, "has no committed step of them: shard a new module"):
                    zt.recover(module)
            with self.assertRaisesRegex(ValueError, "is not sharded"):
                zt.committed_step(module)
            return zt.committed_step(harness.shard(make_small(), durable="kept"))

        with support.Daemon(1, harness.ARENA) as daemon:
            restarts = Restarts(daemon)
            children = harness.start(daemon.socket, 1, body)
            restarts.serve()
            same(harness.collect(children), [0])


if __name__ == "__main__":
    support.main()
