#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes of a model behind shard(), buffers on the meta device, and writes to weights."""
from __future__ import annotations

from typing import Any, Callable

import edges
import models
import torch
import torch.nn.functional as F
from cases import Program
from edges import Net, case, inputs, loss_of, refused, trained
from harness import support
from torch import nn

import zerod.torch as zt


# ---- Changes behind shard() ----

class Lora(nn.Module):
    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.low, self.high = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + x @ self.low.t() @ self.high.t()


def ones(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(*shape))


def functional(module: nn.Module) -> None:
    torch.func.functional_call(module, {"blocks.0.bias": torch.ones(6)}, (inputs(0, 0),))


# A change of the module, and the error that the change or the next step raises.
CHANGES: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "bias": (lambda m: setattr(m.blocks[0], "bias", ones(6)), "Linear.bias was added"),
    "parameter": (lambda m: setattr(m.blocks[0], "scale", ones(6)), "Linear.scale was added"),
    "module": (lambda m: setattr(m, "extra", nn.Linear(6, 6)), "extra.weight was added"),
    "block": (lambda m: m.blocks.append(nn.Linear(6, 6)), "ModuleList.2.weight was added"),
    "wrapped": (lambda m: setattr(m.blocks, "0", Lora(m.blocks[0])), "0.low was added"),
    "deleted": (lambda m: (delattr(m.blocks[0], "bias"), setattr(m.blocks[0], "bias", None)), "blocks.0.bias"),
    "no bias": (lambda m: setattr(m.blocks[0], "bias", None), "blocks.0.bias"),
    "no bias of the root's": (lambda m: setattr(m.head, "bias", None), "head.bias"),
    "weight of the root's": (lambda m: setattr(m.head, "weight", ones(3, 6)), "Linear.weight was added"),
    "by dict": (lambda m: m.blocks[0]._parameters.__setitem__("bias", ones(6)), "blocks.0.bias"),
    "new linear": (lambda m: setattr(m.blocks, "0", nn.Linear(6, 6)), "0.weight was added"),
    "parametrized": (lambda m: nn.utils.parametrize.register_parametrization(m.blocks[0], "weight", nn.Identity()), "weight"),
    "weight_norm": (lambda m: nn.utils.parametrizations.weight_norm(m.blocks[0]),
                    "Parameter from an instance of type ShardedParameter"),
    "old weight_norm": (lambda m: nn.utils.weight_norm(m.blocks[0]), "weight"),
    "functional": (functional, "blocks.0.bias"),
}


@case("changes", name=CHANGES)
def changed(program: Program, name: str) -> Any:
    module = program.shard(Net)
    change, text = CHANGES[name]

    def change_and_run() -> None:
        change(module)
        loss_of(module, 0)(program.ranks[0]).backward()

    refused(program, text, change_and_run)


@case("changes")
def functional_then_right(program: Program) -> Any:
    module = program.shard(Net)
    refused(program, "blocks.0.bias", lambda: functional(module))
    return trained(program, module)


@case("changes")
def tied(program: Program) -> Any:
    module = program.shard(Net)
    module.blocks[1].weight = module.blocks[0].weight
    return trained(program, module)


@case("changes")
def tied_by_new_name(program: Program) -> Any:
    module = program.shard(lambda: Net(Tied))
    module.blocks[0].other = module.blocks[1].weight
    return trained(program, module)


class Tied(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.linear(x, self.other) if hasattr(self, "other") else x)


# ---- Buffers ----

class Buffers(nn.Module):
    def __init__(self, persistent: bool, meta: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.register_buffer("table", torch.full((3,), 2.0, device="meta" if meta else None), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.table


@case("buffers", persistent=(False, True))
def meta_elsewhere(program: Program, persistent: bool) -> Any:
    module = program.shard(lambda: Buffers(persistent, program.sharded and program.ranks != [0]))
    return module.table, trained(program, module)


@case("buffers", persistent=(False, True))
def meta_everywhere(program: Program, persistent: bool) -> Any:
    if not persistent:
        return refused(program, "table", lambda: program.shard(lambda: Buffers(False, True)))
    module = program.shard(lambda: Buffers(True, program.sharded))
    module.load_state_dict({**module.state_dict(), "table": torch.full((3,), 2.0)})
    return module.table, trained(program, module)


# ---- full_parameters() ----

EDITS: dict[str, Callable[[nn.Linear], Any]] = {
    "add_": lambda layer: layer.weight.add_(1), "copy_": lambda layer: layer.weight.copy_(torch.ones(6, 6)),
    "data": lambda layer: layer.weight.data.add_(1), "item": lambda layer: layer.weight.__setitem__((0, 0), 4),
    "replaced": lambda layer: setattr(layer, "weight", ones(6, 6)), "init": lambda layer: nn.init.constant_(layer.weight, 2),
    "data =": lambda layer: setattr(layer.weight, "data", torch.ones(6, 6)),
    "swapped values": lambda layer: setattr(layer.weight, "data", layer.weight.data.flip(0)),
    **({"numpy": lambda layer: layer.weight.numpy().fill(3)} if models.DEVICE == "cpu" else {}),
}


@torch.no_grad()
def edit(module: nn.Module, how: str) -> None:
    EDITS[how](module.blocks[0])


@case("full", how=EDITS)
def full_read_only(program: Program, how: str) -> Any:
    module = program.shard(Net)

    def body() -> None:
        with zt.full_parameters(module):
            edit(module, how)

    refused(program, "blocks.0.weight was written", body)
    return trained(program, module)


@case("full", how=EDITS)
def full_write(program: Program, how: str) -> Any:
    module = program.shard(Net)
    if program.sharded:
        with zt.full_parameters(module, write=True):
            edit(module, how)
    else:
        edit(module, how)
    return trained(program, module)


# ---- Writes in a forward ----

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "clamp": lambda w: w.clamp_(-0.1, 0.1), "data": lambda w: w.data.clamp_(-0.1, 0.1),
    "data copy": lambda w: w.data.copy_(torch.zeros(6, 6)), "detached": lambda w: w.detach().mul_(0.5),
    "data =": lambda w: setattr(w, "data", torch.zeros(6, 6)), "item": lambda w: w.__setitem__(0, 0),
    "data item": lambda w: w.data.__setitem__(0, 0), "max_norm": lambda w: None, "nothing": lambda w: None,
}


class Writer(nn.Linear):
    how = "nothing"

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.table = nn.Embedding(4, 6, max_norm=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            WRITES[self.how](self.weight)
        y = super().forward(x)
        return y + self.table.weight.sum() if self.how != "max_norm" else y + self.table(torch.arange(4))


@case("writes", how=[how for how in WRITES if how != "nothing"])
def in_forward(program: Program, how: str, grad: bool = True) -> Any:
    module = program.shard(lambda: Net(Writer))
    module.blocks[0].how = how
    with torch.set_grad_enabled(grad):
        refused(program, "written", lambda: module(inputs(0, 0)))
    module.blocks[0].how = "nothing"
    return trained(program, module) if program.world > 1 else None  # in place the write has reached the shard


@case("writes", how=("clamp", "data", "data copy"))
def in_evaluation(program: Program, how: str) -> Any:
    return in_forward(program, how, grad=False)


Edges = edges.suite(
    changes="parameters and modules that change behind shard()",
    buffers="buffers on the meta device",
    full="edits inside of full_parameters()",
    writes="weights that are written in a forward")

if __name__ == "__main__":
    support.main()
