#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights that a forward returns or keeps, and derivatives of all kinds."""
from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

import edges
import torch
import torch.nn.functional as F
from cases import Program, state
from edges import Net, case, inputs, loss_of, refused, sgd, trained
from harness import support
from torch import nn


# ---- Outputs that are weights ----

@dataclasses.dataclass
class Output:
    weight: torch.Tensor
    bias: torch.Tensor


class ModelOutput(OrderedDict):
    """As transformers': a dictionary with attributes."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.__dict__.update(values)


class Gives(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.weight, self.bias = nn.Parameter(torch.randn(6, 6) / 3), nn.Parameter(torch.randn(6) / 3)

    def forward(self) -> Any:
        w, b = self.weight, self.bias
        return {"tuple": lambda: (w, b), "list": lambda: [w, b], "dict": lambda: {"weight": w, "bias": b},
                "view": lambda: (w[:6], b.view(6)), "transposed": lambda: (w.t(), b), "output": lambda: Output(w, b),
                "model": lambda: ModelOutput(weight=w, bias=b), "parameter": lambda: w}[self.how]()


def values_of(given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given]
    return list(given if isinstance(given, (tuple, list)) else given.values() if isinstance(given, dict) else vars(given).values())


class Takes(nn.Module):
    """Computes with weights that its block returns."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Gives(how), nn.Linear(6, 6)])
        self.stem = nn.Linear(5, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.blocks[0]()
        x = torch.tanh(self.stem(x))
        w, b = (given, given[0]) if isinstance(given, torch.Tensor) else values_of(given)
        return self.blocks[1](F.linear(x, w, b)) + w.square().sum() + b.sum()


HOWS = ("tuple", "list", "dict", "view", "transposed", "output", "model", "parameter")


@case("outputs", how=HOWS)
def block_returns(program: Program, how: str) -> Any:
    return trained(program, program.shard(lambda: Takes(how)))


@case("outputs", how=HOWS)
def block_returns_slots(program: Program, how: str) -> Any:
    return trained(program, program.shard(lambda: Takes(how), slots=True))


@case("outputs", how=HOWS)
def model_returns(program: Program, how: str) -> Any:
    def loss(module: nn.Module, number: int) -> Any:
        def of_rank(rank: int) -> torch.Tensor:
            return sum(value.square().sum() * (rank + 1) for value in values_of(module()))
        return of_rank

    return trained(program, program.shard(lambda: Gives(how)), loss=loss)


# ---- Weights that are kept ----

class KeepsContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.x, ctx.weight, ctx.view = x.detach(), weight, weight.t()
        return x @ ctx.view

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return (gradient @ ctx.view.t() + gradient @ ctx.weight) / 2, gradient.t() @ ctx.x


class Keeper(nn.Linear):
    """Keeps a weight, or a view of it, in a way."""

    def __init__(self, how: str = "context") -> None:
        super().__init__(6, 6)
        self.how = how
        self.kept: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "context":
            return KeepsContext.apply(x, self.weight) + self.bias
        self.kept = {"view": lambda: self.weight[:2], "detached": lambda: self.weight.detach()[:2],
                     "list": lambda: [self.weight.t()]}[self.how]()
        return F.linear(x, self.weight, self.bias)


@case("kept", slots=(False, True))
def context_keeps(program: Program, slots: bool) -> Any:
    return trained(program, program.shard(lambda: Net(Keeper), slots=slots), 3)


@case("kept", how=("view", "detached", "list"))
def module_keeps(program: Program, how: str) -> Any:
    """A view lasts through the backward. A step with it raises; once it is gone, steps go on."""
    module = program.shard(lambda: Net(lambda: Keeper(how)))
    optimizer = sgd(module)
    seen = []
    for number in range(3):
        optimizer.zero_grad()
        program.backward(loss_of(module, number))
        kept = module.blocks[0].kept
        seen.append((kept[0] if how == "list" else kept).detach().clone())
        if number == 1 and program.sharded and program.world > 1:
            refused(program, "keeps a view of weights.*blocks.0.weight", optimizer.step)
        del kept
        module.blocks[0].kept = None
        if number != 1 or program.world == 1:
            optimizer.step()
        elif not program.sharded:
            optimizer.zero_grad()
    return seen, state(module)


@case("kept")
def view_outside(program: Program) -> Any:
    module = program.shard(Net)
    optimizer = sgd(module)
    for number in range(2):
        optimizer.zero_grad()
        view = module.stem.weight[:2]
        program.backward(lambda rank: loss_of(module, number)(rank) + view.square().sum() * (rank + 1))
        optimizer.step()
    return view.shape, state(module)


WRITES = {
    "view": lambda w: w[:2].add_(1),
    "transposed": lambda w: w.t().add_(1),
    "data": lambda w: w.data[:2].add_(1),
    "detached": lambda w: w.detach()[0].zero_(),
    "flat": lambda w: w.view(-1).zero_(),
    "out": lambda w: torch.add(w, 1, out=w[:]),
    "chunk": lambda w: torch.chunk(w, 2)[0].zero_(),
    "unbind": lambda w: list(w)[0].zero_(),
}


@case("kept", mode=("frozen", "trainable", "no_grad"))
def view_written_outside(program: Program, mode: str) -> Any:
    """The write would be lost."""
    module = program.shard(Net)
    if mode == "frozen":
        module.stem.weight.requires_grad_(False)
    lost = []
    for name, write in WRITES.items():
        with torch.set_grad_enabled(mode != "no_grad"):
            try:
                refused(program, "stem.weight|is a view|view of a leaf|out=", lambda: write(module.stem.weight))
            except AssertionError:
                lost.append(name)
    assert not lost, f"writes that are lost: {lost}"
    return trained(program, module)


# ---- Derivatives ----

class Energy(nn.Module):
    """Returns an energy and forces, with a graph."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.net, self.inside = Net(), inside

    def forward(self, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            energy = self.net(x).square().sum(-1)
            return (energy, forces(energy, x)) if self.inside else energy


def forces(energy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return -torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


@case("derivatives")
def force_field(program: Program) -> Any:
    def loss(module: nn.Module, number: int) -> Any:
        def of_rank(rank: int) -> torch.Tensor:
            energy, force = module(inputs(rank, number).requires_grad_())
            return energy.mean() + force.square().mean()
        return of_rank

    return trained(program, program.shard(lambda: Energy(inside=True)), loss=loss)


@case("derivatives")
def force_field_outside(program: Program) -> Any:
    module = program.shard(lambda: Energy(inside=False))
    x = inputs(0, 0).requires_grad_()
    refused(program, "create_graph=True", lambda: forces(module(x), x))
    return trained(program, module)


@case("derivatives")
def for_inputs(program: Program) -> Any:
    module = program.shard(Net)
    seen = []
    for number in range(2):
        x = inputs(0, number).requires_grad_()
        seen += torch.autograd.grad(module(x).square().sum(), x)
    return seen, trained(program, module)


@case("derivatives")
def for_parameters(program: Program) -> Any:
    module = program.shard(Net)
    for unused in (False, True):
        loss = loss_of(module, 0)(program.ranks[0])
        refused(program, r"grad\(\).*stem.weight", lambda: torch.autograd.grad(loss, list(module.parameters()), allow_unused=unused))
    return trained(program, module)


Edges = edges.suite(
    outputs="weights that a block or the model returns, in any container",
    kept="weights that a function's context or a module keeps",
    derivatives="autograd.grad() and backward() inside and outside of the forward")

if __name__ == "__main__":
    support.main()
