# SPDX-License-Identifier: Apache-2.0
"""Runs several cases in one group of ranks, and compares each with one process that computes the same.

A case is a function of a Program. It trains modules that Program.shard() returns, and returns the values to compare. In
the one process shard() does not shard, and backward() computes the mean loss of all ranks.
"""
from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from contextlib import suppress
from datetime import timedelta
from typing import Any, Callable, Iterable, Optional

import harness
import models
import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._pytree import tree_map

import zerod.torch as zt

DEADLINE_MS = int(os.environ.get("ZEROD_TORCH_DEADLINE_MS", "20000"))  # of the groups


class Program:
    """The program of one rank, or of the one process."""

    def __init__(self, name: str, ranks: Iterable[int], world: int, sharded: bool, **options: Any) -> None:
        self.name, self.ranks, self.world, self.sharded, self.options = name, list(ranks), world, sharded, options
        self.modules: list[nn.Module] = []

    def shard(self, make: Callable[[], nn.Module], **options: Any) -> nn.Module:
        module = harness.seeded(make)
        if not self.sharded:
            return module.to(models.DEVICE)
        name = f"{self.name}-{len(self.modules)}"
        self.modules.append(zt.shard(module, name=name, deadline_ms=DEADLINE_MS, **{**harness.OPTIONS, **self.options, **options}))
        return module

    def loss(self, of_rank: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """The mean over this program's ranks. Its gradient is the mean over all ranks, as shard() makes it."""
        return sum((of_rank(rank) for rank in self.ranks), torch.zeros((), device=models.DEVICE)) / len(self.ranks)

    def backward(self, of_rank: Callable[[int], torch.Tensor]) -> torch.Tensor:
        loss = self.loss(of_rank)
        loss.backward()
        return loss


Case = Callable[[Program], Any]
Parameters = list[nn.Parameter]
SHAPES = {"matrix": (7, 5), "row": (5,), "cube": (3, 4, 2), "one": (1,), "wide": (6, 9), "scalar": ()}


class Table(nn.Module):
    """Parameters of all shapes in one unit. Their gradients are exact if the number of ranks is a power of 2."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))

    def forward(self, number: Optional[int] = None) -> Any:
        """Returns a loss, or without a number the values of the parameters in a forward."""
        if number is None:
            return [p.detach().float().clone() for p in self.parameters()]
        generator = torch.Generator("cpu").manual_seed(number)
        factors = [torch.randint(-64, 64, shape, generator=generator, device="cpu") / 64 for shape in SHAPES.values()]
        return sum((p * f.to(p)).sum().float() for p, f in zip(self.parameters(), factors))


def whole(values: Any) -> Any:
    """Nested values with plain, whole tensors on the CPU. Every rank calls it."""
    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.whole() if hasattr(value, "whole") else value
            return value.detach().cpu().clone()
        return value

    return tree_map(one, values)


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    """The whole parameters by name. Every rank calls it."""
    return whole(dict(module.state_dict()))


def close(actual: Any, expected: Any) -> None:
    """Raises AssertionError if nested results differ by more than rounding, or in shape or dtype."""
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def check(socket: str, world: int, table: dict[str, Case], compare: Callable[[Any, Any], None] = close,
          expected: Optional[dict[str, Any]] = None, rows: int = 0, **options: Any) -> None:
    """Runs each case on `world` ranks and in one process. Raises Failed with the names of cases that differ.

    expected: the results by name, in place of the one process. rows: of a mesh; 0: there is none. options: of shard(), in all
    cases.
    """
    if rows and harness.OPTIONS.get("offload") is not None:  # a mesh of several rows has none
        return
    meeting = multiprocessing.get_context("fork").Barrier(world)

    def body(rank: int) -> Any:
        found = {}
        if rows:
            options["process_group"] = init_device_mesh("cpu", (rows, world // rows))
        for number, (name, case) in enumerate(table.items()):
            found[name] = outcome(case, Program(f"case{number}", [rank], world, True, **options))
            meeting.wait(harness.TIMEOUT_S)
        return found

    def alone() -> Any:
        return {name: outcome(case, Program(name, range(world), world, False, **options)) for name, case in table.items()}

    wanted = {name: (True, value) for name, value in expected.items()} if expected is not None else harness.alone(alone)
    results = (gloo if rows else harness.ranks)(socket, world, body)
    bad = [text for name in table for text in differences(name, [result[name] for result in results], wanted[name], compare)]
    if bad:
        raise harness.Failed(f"{len(bad)} of {len(table)} cases fail with {world} ranks, {options}:\n" + "\n".join(bad))


def outcome(case: Case, program: Program) -> tuple[bool, Any]:
    torch.manual_seed(0)
    try:
        return True, whole(case(program))
    except Exception as raised:
        for module in program.modules:  # so that other ranks do not wait in step()
            with suppress(Exception):
                zt.abandon(module)
        at = [f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in traceback.extract_tb(raised.__traceback__)]
        return False, f"{type(raised).__name__}: {str(raised)[:400]} ({' '.join(at[1:])})"


def differences(name: str, results: list[tuple[bool, Any]], wanted: tuple[bool, Any],
                compare: Callable[[Any, Any], None]) -> list[str]:
    """Returns at most one line, which names the first rank that differs. The one process itself must not raise."""
    if not wanted[0]:
        return [f"{name}: in one process: {wanted[1]}"]
    for rank, (good, value) in enumerate(results):
        if not good:
            return [f"{name}: rank {rank}: {value}"]
        try:
            compare(value, wanted[1])
        except AssertionError as differs:
            return [f"{name}: rank {rank}: " + " ".join(str(differs).split())[:400]]
    return []


def gloo(socket: str, world: int, body: Callable[[int], Any]) -> list[Any]:
    """harness.ranks(). Several ranks also form a process group of torch.distributed."""
    def run(rank: int) -> Any:
        if world > 1:
            torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world,
                                                 timeout=timedelta(seconds=30))
        result = body(rank)
        if world > 1:
            torch.distributed.destroy_process_group()
        return result

    with tempfile.TemporaryDirectory() as folder:
        return harness.ranks(socket, world, run)
