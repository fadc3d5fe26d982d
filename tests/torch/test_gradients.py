#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Edits and reads of single gradients between backward and step, compared with one process."""
from __future__ import annotations

import unittest
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, Sequence

import cases
import harness
import models
import torch
from cases import Program, state, whole
from harness import support
from torch import nn
from torch.nn.utils import clip_grad_norm_

import zerod.torch as zt


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M", host_arena="64M").for_module()


class Job:
    """A small MLP with two optimizers that share every unit. `seen` are values read from its gradients."""

    def __init__(self, program: Program) -> None:
        self.program, self.micro = program, 0
        self.module = program.shard(lambda: models.MLP(width=11, depth=2))
        parameters = list(self.module.parameters())
        # Not foreach, which writes to gradients, and is torch's default on GPUs alone.
        self.a = torch.optim.SGD(parameters[::2], lr=0.05, momentum=0.9, weight_decay=0.1, foreach=False)
        self.b = torch.optim.SGD(parameters[1::2], lr=0.02, momentum=0.5, nesterov=True, foreach=False)
        self.seen: list[Any] = []
        self.kept: list[Any] = []

    first = property(lambda self: self.module.first.weight)
    weight = property(lambda self: self.module.layers[0][0].weight)
    bias = property(lambda self: self.module.layers[0][0].bias)

    def loss(self) -> torch.Tensor:
        self.micro += 1
        return self.program.loss(lambda rank: self.module(models.numbers(rank, self.micro, 6, 13)).square().mean())

    def end(self) -> None:
        for optimizer in (self.a, self.b):
            optimizer.step()
            optimizer.zero_grad()


def backward(job: Job) -> None:
    job.loss().backward()


def unsynced(job: Job) -> None:
    """Runs a backward in no_sync()."""
    with zt.no_sync(job.module) if job.program.sharded else nullcontext():
        backward(job)


def clip(job: Job, most: float = 0.1) -> torch.Tensor:
    """Clips with zerod's function."""
    return zt.clip_grad_norm_(job.module, most) if job.program.sharded else clip_grad_norm_(job.module.parameters(), most)


def keep(job: Job) -> None:
    job.kept += [job.first.grad, job.bias.grad]


def over(job: Job) -> None:
    """Keeps a tensor over a gradient that has one already, and one over another gradient."""
    job.kept.append((job.bias if job.kept else job.first).grad.detach())


def own(job: Job) -> None:
    job.weight.grad = torch.arange(121.0, device=job.weight.device).view(11, 11) / 121


def zero(job: Job) -> None:
    job.bias.grad.zero_()


def scale(job: Job) -> None:
    job.weight.grad.mul_(3)


def to_none(job: Job) -> None:
    job.first.grad = None


def all_none(job: Job) -> None:
    for parameter in job.module.parameters():
        parameter.grad = None


def frozen(job: Job) -> Any:
    """Freezes two parameters between forward and backward. They receive no gradient."""
    total, parameters = job.loss(), (job.weight, job.module.last.bias)
    for parameter in parameters:
        parameter.requires_grad_(False)
    total.backward()
    found = [parameter.grad is None for parameter in (*parameters, job.first)]
    for parameter in parameters:
        parameter.requires_grad_(True)
    return found


def taken(job: Job) -> Any:
    gradient = job.first.grad.detach()
    return gradient, job.weight.grad.data, job.bias.grad.type(torch.float64), job.bias.grad + 0, gradient.norm()


def drop(job: Job) -> None:
    """Drops the gradients of one optimizer, which are a part of each unit."""
    job.a.zero_grad()


def drop_to_zero(job: Job) -> None:
    job.a.zero_grad(set_to_none=False)


def drop_module(job: Job) -> None:
    job.module.layers[1].zero_grad()


EDITS: dict[str, Sequence[Callable[[Job], Any]]] = {
    "two backwards, without an edit": [backward, backward],
    "None before the step": [backward, to_none],
    "None between backwards": [backward, to_none, backward],
    "deleted before the step": [backward, lambda job: delattr(job.first, "grad")],
    "zero_grad() of a submodule before the step": [backward, drop_module],
    "zero_grad() of a submodule between backwards": [backward, drop_module, backward],
    "zero_grad() of one optimizer before the step": [backward, drop],
    "zero_grad() of one optimizer between backwards": [backward, drop, backward],
    "zero_() of one before the step": [backward, zero],
    "zero_() of one between backwards": [backward, zero, backward],
    "a part to zero between backwards": [backward, drop_to_zero, backward],
    "torch's clipping between backwards": [backward, lambda job: clip_grad_norm_(job.module.parameters(), 0.1), backward],
    "zerod's clipping between backwards": [backward, clip, backward],
    "clipped twice, and one scaled": [backward, clip, lambda job: clip(job, 0.05), scale],
    "clipped, and one of two optimizers steps": [backward, clip, lambda job: job.a.step(), drop, backward],
    "clipped, and kept across the step": [backward, keep, clip, Job.end, backward, lambda job: job.kept],
    "clipped between tensors over gradients": [backward, over, clip, over, lambda job: (job.kept, job.first.grad)],
    "clipped, and zeroed through a tensor over it": [backward, clip, lambda job: job.first.grad.data.zero_()],
    "clipped, and zeroed beside a tensor over it": [backward, clip, over, lambda job: job.first.grad.zero_(), lambda job: job.kept],
    "zeroed through a tensor over it": [backward, lambda job: job.first.grad.data.zero_()],
    "zeroed beside a tensor over it": [backward, over, lambda job: job.first.grad.zero_(), lambda job: job.kept],
    "one of two optimizers steps and zeroes": [backward, lambda job: job.a.step(), drop_to_zero, backward],
    "one scaled between backwards": [backward, scale, backward],
    "one scaled before the step": [backward, backward, scale],
    "one of two optimizers steps twice": [backward, lambda job: job.a.step(), drop, backward],
    "kept by the program": [backward, keep, to_none, backward, lambda job: (job.kept, job.first.grad, job.bias.grad)],
    "all dropped, and some kept": [backward, keep, over, all_none, backward, lambda job: (job.kept, job.first.grad)],
    "kept across the step": [backward, keep, Job.end, backward, lambda job: job.kept],
    "an own tensor before the step": [backward, own],
    "an own tensor between backwards": [backward, own, backward],
    "an own tensor before the backward": [own, backward],
    "all to None between backwards": [backward, all_none, backward],
    "no_sync() dropped by zero_grad()": [unsynced, lambda job: job.module.zero_grad(), unsynced, backward],
    "no_sync() dropped in part": [unsynced, drop, backward],
    "no_sync() behind a backward, an own tensor before the step": [backward, unsynced, own],
    "no_sync() and None before the step": [unsynced, to_none],
    "no_sync() zeroed in part": [unsynced, drop_to_zero, unsynced, backward],
    "read before the step": [backward, taken, backward, taken],
    "frozen between forward and backward": [backward, frozen, backward],
}


def edited(edits: Sequence[Callable[[Job], Any]], program: Program) -> Any:
    """Trains two steps with the edits."""
    job = Job(program)
    for step in range(2):
        for edit in edits:
            seen = edit(job)
            job.seen += [] if seen is None else [whole(seen)]
        job.end()
    return job.seen, state(job.module)


class Vector(nn.Module):
    """The gradient of `weight` is the input, rounded to the dtype of the computation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.ones(5))

    def forward(self, x: float, other: bool = True) -> torch.Tensor:
        return (self.weight * x).sum().float() + (self.other.square().sum().float() if other else 0)


def rounded(sync: bool, program: Program) -> Any:
    """Sums several backwards in float32. In bfloat16 256 + 1 is 256."""
    module = program.shard(Vector, **({"param_dtype": torch.bfloat16} if program.sharded else {}))
    for i, x in enumerate((256.0, 1.0, -256.0)):
        with nullcontext() if sync or i == 2 or not program.sharded else zt.no_sync(module):
            program.backward(lambda rank: module(x, other=False))
    seen = whole(module.weight.grad)
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    return seen, state(module)


def unused(order: str, program: Program) -> Any:
    """No rank uses a parameter. If its gradient is zeros, momentum and weight decay still apply."""
    module = program.shard(Vector)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for step in range(4):
        if order == "zeroed before the backward":
            optimizer.zero_grad(set_to_none=False)
        program.backward(lambda rank: module(rank + 1.0, other=step == 0 or order == "zeroed between backwards"))
        if order == "zeroed between backwards":
            optimizer.zero_grad(set_to_none=False)
            program.backward(lambda rank: module(rank + 2.0, other=False))
        optimizer.step()
        if order == "None":
            optimizer.zero_grad()
    return state(module)


def many(program: Program) -> Any:
    """More backwards than bfloat16 counts, whatever is sent."""
    module = program.shard(Vector, **({"reduce_dtype": torch.bfloat16} if program.sharded else {}))
    for _ in range(300):
        program.backward(lambda rank: module(1.0, other=False))
    return whole(module.weight.grad)


class Product(torch.autograd.Function):
    """Returns saved weights as gradients."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return (a * b).sum()

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return b, a


class Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.arange(1.0, 9.0)), nn.Parameter(torch.ones(8))

    def forward(self) -> torch.Tensor:
        return Product.apply(self.a, self.b)


TABLES: dict[str, dict[str, cases.Case]] = {
    "edits": {name: partial(edited, edits) for name, edits in EDITS.items()},
    "sums": {**{f"in float32, {'each' if sync else 'the last'} synced": partial(rounded, sync) for sync in (False, True)},
             **{f"unused, {order}": partial(unused, order)
                for order in ("None", "zeroed between backwards", "zeroed before the backward")},
             "many": many},
}


class Gradients(unittest.TestCase):
    def check(self, table: str, *worlds: int) -> None:
        for world in worlds:
            with self.subTest(world=world):
                cases.check(daemon.socket, world, TABLES[table])

    def test_edits(self) -> None:
        """edits of single gradients between backward and step"""
        self.check("edits", 1, 2, 4)

    def test_options(self) -> None:
        """the same with slots, stage 2, persistent units, and in host memory"""
        for options in ({"slots": True}, {"stage": 2}, {"persist_below": 1000}, {"offload": "optimizer"}, {"offload": "all"}):
            with self.subTest(**options):
                cases.check(daemon.socket, 2, TABLES["edits"], **options)  # type: ignore[arg-type]

    def test_mesh(self) -> None:
        """on a mesh of (2, 2)"""
        for table in TABLES.values():
            cases.check(daemon.socket, 4, table, rows=2)

    def test_sums(self) -> None:
        """sums in float32, and gradients of parameters that no rank uses"""
        self.check("sums", 1, 2)

    def test_returned(self) -> None:
        """a function that returns weights as gradients, which are added up, with no_sync() and without"""
        def body(sharded: bool, sync: bool = True) -> Any:
            module = harness.shard(Factors()) if sharded else Factors()
            optimizer = torch.optim.SGD(module.parameters(), lr=0.125)
            for _ in range(2):
                with nullcontext() if sync else zt.no_sync(module):
                    for _ in range(3):
                        module().backward()
                optimizer.step()
                optimizer.zero_grad()
            return module().item()

        expected = harness.alone(lambda: body(sharded=False))
        for world in (1, 2):
            for sync in (False, True):
                self.assertEqual(harness.ranks(daemon.socket, world, lambda rank: body(True, sync)), [expected] * world)

    def test_frozen(self) -> None:
        """a unit that is frozen between a backward and its step is refused; without the gradients it is not"""
        def body(rank: int) -> None:
            module = harness.shard(models.MLP(width=11, depth=2))
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            models.mlp_loss(module, rank, 0)
            module.layers[0].requires_grad_(False)
            with self.assertRaisesRegex(RuntimeError, "between .*backward"):
                models.mlp_loss(module, rank, 1)
            optimizer.zero_grad()
            if module._zerod_model.context.world == 1:
                models.mlp_loss(module, rank, 2)
                optimizer.step()

        for world in (1, 2):
            harness.ranks(daemon.socket, world, body)

    def test_held(self) -> None:
        """a backward that would add to a tensor of the program's is refused; without that gradient training goes on"""
        def losses(module: Any, rank: int, micro: int) -> torch.Tensor:
            weight = next(module.parameters())
            flat = torch.ones(weight.numel() + 1, device=weight.device)
            for held in (flat[1:].view(weight.shape), torch.ones(weight.shape, device=weight.device)):
                if zt.is_sharded(module):
                    weight.grad = held
                    with self.assertRaisesRegex(RuntimeError, "first.weight.grad was assigned a tensor that the program has"):
                        models.mlp_loss(module, rank, micro)
                    module.zero_grad()
            if zt.is_sharded(module):
                weight.grad = torch.zeros(weight.shape, device=weight.device)
            return models.mlp_loss(module, rank, micro)

        for world in (1, 2, 4):
            harness.compare(daemon.socket, world, models.MLP, models.sgd, losses)

    def test_dropped(self) -> None:
        """a gradient that stays from step to step forgets tensors over its values that the program has dropped"""
        def body(rank: int) -> int:
            module = harness.shard(Vector())
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            for _ in range(8):
                optimizer.zero_grad(set_to_none=False)
                module(1.0, other=True).backward()
                module.weight.grad.detach().norm()
                optimizer.step()
            return len(module.weight.grad.aliases)

        self.assertLessEqual(harness.ranks(daemon.socket, 1, body)[0], 2)


if __name__ == "__main__":
    support.main()
