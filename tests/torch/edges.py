# SPDX-License-Identifier: Apache-2.0
"""Rare uses of parameters, in tables. Each use must be right, as in one process, or raise an error that names the fault.

The error is raised on all ranks. A rank that waits for another rank instead fails after the deadline.
"""
from __future__ import annotations

import os
import re
import unittest
from typing import Any, Callable, Optional
from unittest import mock

os.environ.setdefault("ZEROD_TORCH_DEADLINE_MS", "8000")
import cases  # noqa: E402
import harness  # noqa: E402
import models  # noqa: E402
import torch  # noqa: E402
from cases import Program, state  # noqa: E402
from torch import nn  # noqa: E402

TABLES: dict[str, dict[str, cases.Case]] = {}


def case(group: str, **variants: Any) -> Callable:
    """Adds a case to a table; with variants, one for each value of the one keyword."""
    def add(function: Callable) -> Callable:
        table, name = TABLES.setdefault(group, {}), function.__name__
        for key, values in variants.items():
            for value in values:
                table[f"{name}({key}={value})"] = lambda program, key=key, value=value: function(program, **{key: value})
        if not variants:
            table[name] = function
        return function

    return add


def refused(program: Program, text: str, body: Callable[[], Any]) -> None:
    """With a sharded model body() raises an error with this text. One process does not run it."""
    if program.sharded:
        try:
            body()
        except Exception as raised:
            if not re.search(text, str(raised)):
                raise AssertionError(f"the error does not say {text!r}: {type(raised).__name__}: {raised}") from raised
        else:
            raise AssertionError(f"nothing is raised, in place of {text!r}")


class Net(nn.Module):
    """A root with parameters, and blocks. `first` makes the first block."""

    def __init__(self, first: Optional[Callable[[], nn.Module]] = None) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 6)
        self.blocks = nn.ModuleList([nn.Linear(6, 6) if first is None else first(), nn.Linear(6, 6)])
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.tanh(self.stem(x))
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)


def inputs(rank: int, number: int, width: int = 5) -> torch.Tensor:
    return models.numbers(rank, number, 4, width)


def loss_of(module: nn.Module, number: int) -> Callable[[int], torch.Tensor]:
    return lambda rank: module(inputs(rank, number)).square().mean()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def trained(program: Program, module: nn.Module, steps: int = 2, loss: Callable = loss_of) -> dict[str, torch.Tensor]:
    optimizer = sgd(module)
    for number in range(steps):
        optimizer.zero_grad()
        program.backward(loss(module, number))
        optimizer.step()
    return state(module)


class Tables(unittest.TestCase):
    """Runs tables of cases on 2 ranks, on 1 rank, and on a mesh of (2, 2). Without poison mode, 1 rank computes in its shards."""

    def check(self, name: str, **options: Any) -> None:
        failures = []
        for world, poison, rows in ((2, "1", 0), (2, "0", 0), (1, "0", 0), (4, "1", 2)):
            with mock.patch.dict(os.environ, ZEROD_POISON=poison), harness.support.Daemon(devices=4, arena="128M") as daemon:
                try:
                    cases.check(daemon.socket, world, TABLES[name], rows=rows, **options)
                except harness.Failed as failed:
                    failures.append(f"ZEROD_POISON={poison}, {rows} rows: {failed}")
        if failures:
            self.fail("\n".join(failures))


def suite(**tables: str) -> type[Tables]:
    """A test for each table, with its description."""
    def test(name: str, description: str) -> Callable[[Tables], None]:
        def run(self: Tables) -> None:
            self.check(name)

        run.__doc__ = description
        return run

    return type("Edges", (Tables,), {f"test_{name}": test(name, description) for name, description in tables.items()})
