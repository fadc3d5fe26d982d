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


def tie(module: nn.Module) -> None:
    module.blocks[1].weight = module.blocks[0].weight


def swap_bias(module: nn.Module) -> None:
    module.blocks[0].bias = nn.Parameter(torch.ones(6))


def add_parameter(module: nn.Module) -> None:
    module.blocks[0].scale = nn.Parameter(torch.ones(6))


def add_module(module: nn.Module) -> None:
    module.extra = nn.Linear(6, 6)


def append_block(module: nn.Module) -> None:
    module.blocks.append(nn.Linear(6, 6))


def wrap(module: nn.Module) -> None:
    module.blocks[0] = Lora(module.blocks[0])


def delete_bias(module: nn.Module) -> None:
    del module.blocks[0].bias
    module.blocks[0].bias = None


def no_bias(module: nn.Module) -> None:
    module.blocks[0].bias = None


def root_no_bias(module: nn.Module) -> None:
    module.head.bias = None


def swap_root(module: nn.Module) -> None:
    module.head.weight = nn.Parameter(torch.ones(3, 6))


def by_dict(module: nn.Module) -> None:
    module.blocks[0]._parameters["bias"] = nn.Parameter(torch.ones(6))


def new_linear(module: nn.Module) -> None:
    module.blocks[0] = nn.Linear(6, 6)


def parametrized(module: nn.Module) -> None:
    nn.utils.parametrize.register_parametrization(module.blocks[0], "weight", nn.Identity())


def weight_norm(module: nn.Module) -> None:
    nn.utils.parametrizations.weight_norm(module.blocks[0])


def old_weight_norm(module: nn.Module) -> None:
    nn.utils.weight_norm(module.blocks[0])


def functional(module: nn.Module) -> None:
    torch.func.functional_call(module, {"blocks.0.bias": torch.ones(6)}, (inputs(0, 0),))


CHANGES = {
    swap_bias: "Linear.bias was added", add_parameter: "Linear.scale was added", add_module: "extra.weight was added",
    append_block: "ModuleList.2.weight was added", wrap: "0.low was added", delete_bias: "blocks.0.bias", no_bias: "blocks.0.bias",
    root_no_bias: "head.bias", swap_root: "Linear.weight was added", by_dict: "blocks.0.bias", new_linear: "0.weight was added",
    parametrized: "weight", weight_norm: "Parameter from an instance of type ShardedParameter", old_weight_norm: "weight",
    functional: "blocks.0.bias",
}


@case("changes", change=CHANGES)
def changed(program: Program, change: Callable) -> Any:
    module = program.shard(Net)

    def change_and_run() -> None:
        change(module)
        loss_of(module, 0)(program.ranks[0]).backward()

    refused(program, CHANGES[change], change_and_run)


@case("changes")
def functional_then_right(program: Program) -> Any:
    module = program.shard(Net)
    refused(program, "blocks.0.bias", lambda: functional(module))
    return trained(program, module)


@case("changes")
def tied(program: Program) -> Any:
    module = program.shard(Net)
    tie(module)
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

@torch.no_grad()
def edit(module: nn.Module, how: str) -> None:
    layer = module.blocks[0]
    if how == "add_":
        layer.weight.add_(1)
    elif how == "copy_":
        layer.weight.copy_(torch.ones(6, 6))
    elif how == "data":
        layer.weight.data.add_(1)
    elif how == "item":
        layer.weight[0, 0] = 4
    elif how == "replaced":
        layer.weight = nn.Parameter(torch.ones(6, 6))
    elif how == "data =":
        layer.weight.data = torch.ones(6, 6)
    elif how == "init":
        nn.init.constant_(layer.weight, 2)
    elif how == "swapped values":
        layer.weight.data = layer.weight.data.flip(0)
    elif how == "numpy":
        layer.weight.numpy()[:] = 3


EDITS = ("add_", "copy_", "data", "item", "replaced", "data =", "init", "swapped values") + (("numpy",) if models.DEVICE == "cpu" else ())


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

class Writer(nn.Linear):
    how = "clamp"

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.table = nn.Embedding(4, 6, max_norm=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if self.how == "clamp":
                self.weight.clamp_(-0.1, 0.1)
            elif self.how == "data":
                self.weight.data.clamp_(-0.1, 0.1)
            elif self.how == "data copy":
                self.weight.data.copy_(torch.zeros(6, 6))
            elif self.how == "detached":
                self.weight.detach().mul_(0.5)
            elif self.how == "data =":
                self.weight.data = torch.zeros(6, 6)
            elif self.how == "item":
                self.weight[0] = 0
            elif self.how == "data item":
                self.weight.data[0] = 0
        y = super().forward(x)
        return y + self.table.weight.sum() if self.how != "max_norm" else y + self.table(torch.arange(4))


@case("writes", how=("clamp", "data", "data copy", "detached", "data =", "item", "data item", "max_norm"))
def in_forward(program: Program, how: str) -> Any:
    module = program.shard(lambda: Net(Writer))
    module.blocks[0].how = how
    refused(program, "written", lambda: module(inputs(0, 0)))
    module.blocks[0].how = "nothing"
    return trained(program, module) if program.world > 1 else None  # in place the write has reached the shard


@case("writes", how=("clamp", "data", "data copy"))
def in_evaluation(program: Program, how: str) -> Any:
    module = program.shard(lambda: Net(Writer))
    module.blocks[0].how = how
    with torch.no_grad():
        refused(program, "written", lambda: module(inputs(0, 0)))
    module.blocks[0].how = "nothing"
    return trained(program, module) if program.world > 1 else None


Edges = edges.suite(
    changes="parameters and modules that change behind shard()",
    buffers="buffers on the meta device",
    full="edits inside of full_parameters()",
    writes="weights that are written in a forward")

if __name__ == "__main__":
    support.main()
