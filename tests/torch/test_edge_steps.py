#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps without a backward, gradients that are refused, and parameters that are frozen at any time."""
from __future__ import annotations

from typing import Any, Callable

import cases
import edges
import torch
from cases import Program, state
from edges import Net, case, loss_of, refused, sgd, trained
from harness import support
from torch import nn

import zerod.torch as zt


# ---- Steps ----

@case("steps")
def no_backward_here(program: Program) -> Any:
    """Rank 0 steps without a backward: rank 1 is told at once."""
    module = program.shard(Net)
    optimizer = sgd(module)
    for number in range(3):
        optimizer.zero_grad()
        if program.sharded and number == 1 and program.world > 1:
            if program.ranks == [0]:
                optimizer.step()
            else:
                program.backward(loss_of(module, number))
                refused(program, "rank 0 .*step\\(\\) without a backward", optimizer.step)
        elif number != 1:
            program.backward(loss_of(module, number))
            optimizer.step()
    return state(module)


@case("steps")
def no_backward_anywhere(program: Program) -> Any:
    module = program.shard(Net)
    optimizer = sgd(module)
    optimizer.step()
    program.backward(loss_of(module, 0))
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    optimizer.step()
    return state(module), trained(program, module)


class Faulty(nn.Linear):
    """Does something that is refused, in a forward or backward."""

    how = ""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.table = nn.Embedding(2, 6, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "write":
            with torch.no_grad():
                self.weight.add_(1)
        y = super().forward(x)
        if self.how == "backward":
            y.sum().backward(retain_graph=True)
        return y + self.table(torch.zeros(1, dtype=torch.long)) if self.how == "sparse" else y


FAULTS = {"write": "written", "backward": "inside of the model's forward", "sparse": "parse", "graph": "create_graph=True"}


@case("steps", how=FAULTS)
def fault_of_one_rank(program: Program, how: str) -> Any:
    """The other rank is told in its step, which no rank takes."""
    module = program.shard(lambda: Net(Faulty))
    optimizer = sgd(module)
    if 0 in program.ranks:
        module.blocks[0].how = how
        refused(program, FAULTS[how], lambda: loss_of(module, 0)(0).backward(create_graph=how == "graph"))
        module.blocks[0].how = ""
    elif program.sharded:
        program.backward(loss_of(module, 0))
        refused(program, "rank 0 has abandoned", optimizer.step)
    return trained(program, module) if how != "write" or program.world > 1 else None


# ---- Without zero_grad() ----

HEALS: dict[str, Callable[[nn.Module], Any]] = {
    "zero_grad": lambda module: module.zero_grad(), "zeros": lambda module: module.zero_grad(set_to_none=False),
    "zero_": lambda module: [p.grad.zero_() for p in module.parameters()],
    "del": lambda module: [delattr(p, "grad") for p in module.parameters()],
}
USES: list[Callable[[nn.Module], Any]] = [
    lambda module: [p.grad.sum() for p in module.parameters()], lambda module: [p.grad[0] for p in module.parameters()],
    lambda module: [p.grad.mul_(2) for p in module.parameters()], lambda module: zt.clip_grad_norm_(module, 1.0),
    lambda module: nn.utils.clip_grad_norm_(module.parameters(), 1.0), lambda module: sgd(module).step(),
]


@case("zeroing", heal=HEALS)
def spent(program: Program, heal: str) -> Any:
    """A backward adds to gradients that have gone with a step: each use raises, until they are set to None or to zeros."""
    module = program.shard(Net)
    for again in (1, 2):
        program.backward(loss_of(module, 0))
        sgd(module).step()
        for _ in range(again):
            program.backward(loss_of(module, 3))
        for use in USES:
            refused(program, r"(weight|bias).*zero_grad\(\)", lambda: use(module))
        HEALS[heal](module)
    return trained(program, module)


@case("zeroing", heal=HEALS)
def of_another(program: Program, heal: str) -> Any:
    """As in a GAN, the backward of one optimizer gives gradients that the other one drops."""
    module = program.shard(Net)
    a, b = (torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9) for part in (module.blocks, module.head))
    for number in range(4):
        program.backward(loss_of(module, number))
        if number % 2:
            HEALS[heal](module.head)
            program.backward(loss_of(module, number + 4))
        a.step()
        HEALS[heal](module.head)
        program.backward(loss_of(module, number + 8))
        b.step()
        HEALS[heal](module.blocks)
    return state(module)


@case("zeroing", alias=(False, True))
def held(program: Program, alias: bool) -> Any:
    """A backward adds to gradients that the program holds."""
    module = program.shard(Net)
    program.backward(loss_of(module, 0))
    kept = [p.grad.detach() if alias else p.grad for p in module.parameters()]
    seen = cases.whole(kept)
    if not alias:
        sgd(module).step()
    program.backward(loss_of(module, 1))
    seen += cases.whole(kept)
    sgd(module).step()
    return seen, state(module)


# ---- Gradients and writes of other kinds ----

class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Embedding(7, 6, sparse=True), nn.Linear(6, 6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[1](self.blocks[0](torch.tensor([1, 3, 3])) + x[:, :1].mean())


@case("kinds", accumulate=(False, True))
def sparse(program: Program, accumulate: bool) -> Any:
    module = program.shard(Sparse)

    def run() -> None:
        if accumulate:
            with zt.no_sync(module):
                loss_of(module, 0)(program.ranks[0]).backward()
        loss_of(module, int(accumulate))(program.ranks[0]).backward()

    refused(program, "parse.*blocks.0|blocks.0.*parse", run)
    module.blocks[0].sparse = False
    return trained(program, module)


no_grad = torch.no_grad()
REFUSED: dict[str, tuple[Callable[[nn.Parameter], Any], str]] = {
    "grad": (lambda p: setattr(p, "grad", torch.ones(2, 2)), "grad.* size"),
    "dtype": (lambda p: setattr(p, "grad", torch.ones(3, 6, dtype=torch.float64)), "grad.* d?type"),
    "resize_": (no_grad(lambda p: p.resize_(2, 2)), "cannot resize"),
    "data": (lambda p: setattr(p, "data", torch.ones(2, 2)), "head.weight"),
    "set_": (no_grad(lambda p: p.set_(torch.ones(3, 6))), "head.weight"),
    "storage": (no_grad(lambda p: p.set_(torch.ones(3, 6).untyped_storage(), 0, (3, 6), (6, 1))), "head.weight"),
    "data.set_": (no_grad(lambda p: p.data.set_(torch.ones(3, 6))), "head.weight"),
    "t_": (no_grad(lambda p: p.t_()), "head.weight"),
    "hook": (lambda p: p.register_hook(lambda gradient: gradient), "head.weight"),
    "accumulate hook": (lambda p: p.register_post_accumulate_grad_hook(lambda parameter: None), "head.weight"),
}


@case("kinds", write=REFUSED)
def refused_write(program: Program, write: str) -> Any:
    module = program.shard(Net)
    call, text = REFUSED[write]
    refused(program, text, lambda: call(module.head.weight))
    return trained(program, module)


# ---- Frozen and unfrozen ----

MOMENTS = ("before forward", "before backward", "before step", "before zero_grad")


@case("frozen", moment=MOMENTS)
def freeze(program: Program, moment: str) -> Any:
    return toggled(program, moment, (False, True, False, True))


@case("frozen", moment=MOMENTS)
def unfreeze(program: Program, moment: str) -> Any:
    return toggled(program, moment, (True, False, True))


@case("frozen", moment=MOMENTS)
def freeze_all(program: Program, moment: str) -> Any:
    return toggled(program, moment, (False, True, False, True), ("stem.weight", "stem.bias", "blocks.0.weight", "blocks.0.bias"))


def toggled(program: Program, moment: str, values: tuple, names: tuple = ("stem.weight", "blocks.0.weight")) -> Any:
    module = program.shard(Net)
    parameters = dict(module.named_parameters())
    for name in names:
        parameters[name].requires_grad_(not values[0])
    optimizer = sgd(module)
    seen = []
    for number, value in enumerate(values):
        def toggle(now: str) -> None:
            if now == moment:
                for name in names:
                    parameters[name].requires_grad_(value)

        toggle("before forward")
        losses = [loss_of(module, number)(rank) for rank in program.ranks]
        toggle("before backward")
        (sum(losses) / len(losses)).backward()
        toggle("before step")
        float(module.head.bias.grad.norm())  # gradients are summed: unused ones are None
        seen.append([None if p.grad is None else p.grad.norm() for p in parameters.values()])
        optimizer.step()
        toggle("before zero_grad")
        optimizer.zero_grad()
    return seen, state(module)


Edges = edges.suite(
    steps="step() without a backward, and faults of one rank alone",
    zeroing="gradients that a step has used, without zero_grad()",
    kinds="sparse gradients, other shapes, other memory",
    frozen="requires_grad_() at any time")

if __name__ == "__main__":
    support.main()
