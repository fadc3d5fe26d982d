#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed inside a step, and go on from their last checkpoint with as many ranks or with others."""
from __future__ import annotations

import copy
import os
import signal
import tempfile
import unittest
from typing import Any, Callable, Optional

import harness
import models
import torch
import torch.distributed
from harness import same, support
from torch import nn

import zerod
import zerod.torch as zt
from zerod.torch import hooks
from zerod.torch.state import checkpointable

SAVED, KILLED, STEPS = 3, 4, 7  # steps before the checkpoint, before the one in which ranks are killed, and in all


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


def shifted(first: int) -> harness.Loss:
    """The losses of a loop that begins with step `first`."""
    return lambda module, rank, micro: models.gpt_loss(module, rank, first + micro)


def run(folder: str, rank: int, world: int, dtype: Optional[torch.dtype], first: int, last: int) -> Any:
    """Steps first to last; from the checkpoint, where first is not 0. It is saved before step SAVED."""
    if world > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store{world}from{first}", rank=rank,
                                             world_size=world)
    module = harness.shard(harness.seeded(models.GPT) if first == 0 else models.GPT(), param_dtype=dtype)
    optimizer = models.adamw(module)
    if first:
        assert zt.load(folder + "/save", module, optimizer, step=0) == {"step": first}
    else:
        harness.train(module, optimizer, models.gpt_loss, rank, SAVED)
        zt.save(folder + "/save", module, optimizer, step=SAVED)
        first = SAVED
    harness.train(module, optimizer, shifted(first), rank, last - first)
    return module, optimizer


def ended(module: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """The whole parameters and the optimizer's state, by names."""
    state = zt.state_dict(module, optimizer, full=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return dict(state["model"]), state["optimizer"]["state"]


def killing(module: nn.Module, rank: int, meet: Optional[Callable[[int], None]]) -> None:
    """One backward of the step in which this rank is killed, inside of it, when the ranks have met."""
    def kill(_: torch.Tensor) -> None:
        if meet is not None:
            meet(rank)
        os.kill(os.getpid(), signal.SIGKILL)

    def wrap(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = block(x)
        if block is module.blocks[1]:
            y.register_hook(kill)
        return y

    module.wrap = wrap
    models.gpt_loss(module, rank, KILLED)


def rendezvous(world: int) -> Callable[[int], None]:
    """A function that returns in each of the processes when all have called it with their rank."""
    pipes = [os.pipe() for _ in range(world)]

    def meet(rank: int) -> None:
        for _, writer in pipes:
            os.write(writer, b".")
        for _ in range(world):
            os.read(pipes[rank][0], 1)

    return meet


def reference(world: int, dtype: Optional[torch.dtype]) -> Any:
    """One process that sums in rank order as two ranks do, and from the checkpoint on as `world` ranks."""
    kept: list[Any] = []

    def optimize(masters: nn.Module) -> torch.optim.Optimizer:
        kept.append((masters, models.adamw(masters)))
        if len(kept) == 2:
            kept[1][1].load_state_dict(kept[0][1].state_dict())
        return kept[-1][1]

    harness.reference(models.GPT, optimize, models.gpt_loss, 2, SAVED, dtype=dtype)
    harness.reference(lambda: copy.deepcopy(kept[0][0]), optimize, shifted(SAVED), world, STEPS - SAVED, dtype=dtype)
    masters, optimizer = kept[1]
    state = {name: optimizer.state[parameter] for name, parameter in masters.named_parameters()}
    return dict(masters.state_dict()), state


@unittest.skipUnless(checkpointable(), "this torch's checkpoints do not ask a tensor for its parts")
class Resume(unittest.TestCase):
    def check(self, killed: tuple[int, ...], dtype: Optional[torch.dtype], worlds: tuple[int, ...]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            meet = rendezvous(2) if len(killed) == 2 else None

            def body(rank: int) -> Any:
                module, optimizer = run(folder, rank, 2, dtype, 0, KILLED)
                optimizer.zero_grad()
                try:
                    if rank in killed:
                        killing(module, rank, meet)
                    models.gpt_loss(module, rank, KILLED)
                    optimizer.step()
                except zerod.PeerLost as lost:
                    harness._models.clear()  # there is nobody to wait for
                    return lost.text
                return "no error"

            # The job's name stays: a new run of it takes the place of what is left of the one before.
            job = f"resumed{killed[0]}{len(killed)}{dtype}"
            for rank, (_, told) in enumerate(harness.outcomes(harness.start(daemon.socket, 2, body, job))):
                self.assertRegex(told, "the process ended with status 9" if rank in killed else f"rank {killed[0]}")
            for world in worlds:
                def resumed(rank: int) -> Any:
                    return ended(*run(folder, rank, world, dtype, SAVED, STEPS))

                results = harness.collect(harness.start(daemon.socket, world, resumed, job))
                same(results, [results[0]] * world, "rank ")
                expected = harness.alone(lambda: reference(world, dtype))
                for actual, wanted, what in zip(results[0], expected, ("parameter ", "optimizer ")):
                    same(actual, wanted, f"{world} ranks, {what}")

            def uninterrupted(rank: int) -> Any:
                return ended(*run(folder + "/whole", rank, 2, dtype, 0, STEPS))

            os.mkdir(folder + "/whole")
            same(harness.ranks(daemon.socket, 2, uninterrupted)[0], harness.alone(lambda: reference(2, dtype)), "run ")

    def test_both(self) -> None:
        """both ranks are killed inside a backward: 2, 1 and 4 ranks go on, equal to the bit"""
        for dtype in (None, torch.bfloat16):
            with self.subTest(dtype=dtype):
                self.check((0, 1), dtype, (2, 1, 4))

    def test_one(self) -> None:
        """one rank is killed inside a backward, the other one is told: 2, 1 and 4 ranks go on, equal to the bit"""
        for killed in (0, 1):
            with self.subTest(killed=killed):
                self.check((killed,), None, (2, 1, 4))


@unittest.skipUnless(checkpointable(), "this torch's checkpoints do not ask a tensor for its parts")
class Restarted(unittest.TestCase):
    def check(self, place: str) -> None:
        """The daemon is started again before a step or in it: the ranks are told, shard again, and go on."""
        with support.Daemon() as own, tempfile.TemporaryDirectory() as folder:
            asked, answered = os.pipe(), [os.pipe(), os.pipe()]

            def restart(rank: int) -> None:
                os.write(asked[1], b".")
                os.read(answered[rank][0], 1)

            def body(rank: int) -> Any:
                module, optimizer = run(folder, rank, 2, None, 0, KILLED)
                told = None
                try:
                    if place == "between":
                        restart(rank)
                        module(models.tokens(module, rank, KILLED))
                    else:
                        stopping(module, place, lambda: restart(rank))
                        models.gpt_loss(module, rank, KILLED)
                        optimizer.step()
                except zerod.ConnectionFailed as failed:
                    told = failed.name, failed.text
                harness._models.clear()
                installed = hooks._top(True)
                return told, installed, ended(*again(folder, rank))

            def again(folder: str, rank: int) -> Any:
                module = harness.shard(models.GPT())
                optimizer = models.adamw(module)
                zt.load(folder + "/save", module, optimizer, step=0)
                harness.train(module, optimizer, shifted(SAVED), rank, STEPS - SAVED)
                return module, optimizer

            children = harness.start(own.socket, 2, body)
            os.close(asked[1])
            if all(os.read(asked[0], 1) for _ in range(2)):  # both ranks have come to the place
                own.restart(signal.SIGKILL)
            for _, writer in answered:
                os.write(writer, b".")
            expected = harness.alone(lambda: reference(2, None))
            for told, installed, result in harness.collect(children):
                self.assertEqual(told, ("DISCONNECTED", "the daemon has ended, or has closed the connection"))
                self.assertIsNone(installed, "hooks on tensors that autograd saves")
                same(result, expected, "resumed ")

    def test_killed(self) -> None:
        """the daemon is killed and started again between steps, in forward and in backward: ranks shard again"""
        for place in ("between", "forward", "backward"):
            with self.subTest(place=place):
                self.check(place)


def stopping(module: nn.Module, place: str, stop: Callable[[], None]) -> None:
    """Calls stop() in the middle of the module's next forward or backward."""
    def wrap(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = block(x)
        if block is module.blocks[1]:
            if place == "forward":
                stop()
            else:
                y.register_hook(lambda _: stop())
        return y

    module.wrap = wrap


if __name__ == "__main__":
    support.main()
