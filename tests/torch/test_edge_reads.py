#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""load_state_dict() with hooks and wrong values, and parameters that are read at any time."""
from __future__ import annotations

import os
import re
from typing import Any, Callable

import cases
import edges
import torch
from cases import Program, state
from edges import Net, case, inputs, loss_of, refused, sgd, trained
from harness import support
from torch import nn


# ---- load_state_dict() ----

READS = {
    "sum": lambda p: p.sum(),
    "norm": lambda p: p.norm(),
    "first": lambda p: p[0],
    "item": lambda p: p[0, 1].item(),
    "detached max": lambda p: p.detach().max(),
    "data": lambda p: p.data[0],
    "slice": lambda p: p.detach()[:2, 1:].sum(),
    "equal": lambda p: torch.equal(p, p.detach().clone()),
    "clone": lambda p: p.detach().clone(),
    "list": lambda p: p.tolist(),
    "numpy": lambda p: torch.from_numpy(p.detach().cpu().numpy().copy()),
    "square": lambda p: (p.detach() * 2).square().mean(),
    "finite": lambda p: torch.isfinite(p).all(),
}


def read(parameter: torch.Tensor) -> Any:
    return cases.whole({name: look(parameter) for name, look in READS.items()})


class Loads(Net):
    """Reads parameters in ways that load_state_dict() calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.how = "override"

    def _load_from_state_dict(self, *args: Any) -> None:
        if self.how == "override":
            self.seen.append(read(self.head.weight))
        super()._load_from_state_dict(*args)
        if self.how == "override":
            self.seen += [read(self.stem.weight), read(self.blocks[1].weight)]


def halved(module: nn.Module) -> dict[str, Any]:
    return {name: value.detach() * 0.5 for name, value in module.state_dict().items()}


@case("loads", how=("override", "pre hook", "post hook", "child's pre hook", "child's post hook", "state_dict hook"))
def read_in_load(program: Program, how: str) -> Any:
    module = program.shard(Loads)
    module.how = how
    owner = module.blocks[0] if "child" in how else module

    def look(*_: Any) -> None:
        module.seen += [read(module.blocks[0].weight), read(module.head.weight)]

    if "pre" in how:
        owner.register_load_state_dict_pre_hook(look)
    elif "post" in how:
        owner.register_load_state_dict_post_hook(look)
    elif "state_dict" in how:
        module.register_state_dict_post_hook(look)
    module.load_state_dict(halved(module))
    return module.seen, trained(program, module)


@case("loads", how=("plain", "assign", "swap", "swap assign", "not strict", "submodule", "submodule assign", "twice"))
def load(program: Program, how: str) -> Any:
    module = program.shard(Net)
    optimizer = sgd(module)
    program.backward(loss_of(module, 0))
    values = halved(module)
    torch.__future__.set_swap_module_params_on_conversion("swap" in how)
    try:
        if how == "not strict":
            del values["head.weight"]
            values["more"] = torch.ones(1)
            found = module.load_state_dict(values, strict=False)
            seen = [found.missing_keys == ["head.weight"], found.unexpected_keys == ["more"]]
        elif "submodule" in how:
            seen = [module.blocks[0].load_state_dict(halved(module.blocks[0]), assign="assign" in how and program.sharded)]
        else:
            seen = [module.load_state_dict(values, assign="assign" in how and program.sharded) for _ in range(1 + (how == "twice"))]
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    optimizer.step()
    return [bool(each) for each in seen], state(module), trained(program, module)


@case("loads", where=("root", "child", "pre hook", "post hook"))
def load_raises(program: Program, where: str) -> Any:
    """The first load raises, and the second one works."""
    module = program.shard(Net)
    values = halved(module)

    def fail(*_: Any) -> None:
        raise KeyError("of the program")

    owner = module.blocks[1] if where == "child" else module
    handle = (owner.register_load_state_dict_post_hook if where == "post hook" else owner.register_load_state_dict_pre_hook)(fail)
    refused(program, "of the program", lambda: module.load_state_dict(values))
    handle.remove()
    module.load_state_dict(values)
    return state(module), trained(program, module)


@case("loads", value=("none", "list", "meta", "shape", "missing"))
def load_wrong(program: Program, value: str) -> Any:
    module = program.shard(Net)
    values = halved(module)
    texts = {"none": "is .*no tensor", "list": "is .*no tensor", "meta": "is .*no values"}
    wrong = {"none": None, "list": [1.0], "meta": torch.empty(6, 6, device="meta"), "shape": torch.ones(2), "missing": None}
    bad = {**values, "blocks.1.weight": wrong[value]}
    if value == "missing":
        del bad["blocks.1.weight"]
    refused(program, f"blocks.1.weight.*{texts.get(value, '')}", lambda: module.load_state_dict(bad))
    refused(program, "(?<!blocks.1.)weight", lambda: module.blocks[1].load_state_dict(
        {key.removeprefix("blocks.1."): each for key, each in bad.items() if "blocks.1" in key}))
    module.load_state_dict(values)
    return trained(program, module)


# ---- Reads at any time ----

@case("reads")
def lag(program: Program) -> Any:
    """Before the first module: the streams of rank 0 lag, and rank 1's do not."""
    os.environ["ZEROD_LAG"] = str(int(0 in program.ranks))


@case("reads", name=("stem.weight", "blocks.0.weight", "head.weight"))
def reads(program: Program, name: str) -> Any:
    module = program.shard(Net)
    parameter = dict(module.named_parameters())[name]
    optimizer = sgd(module)
    seen = []
    for number in range(2):
        optimizer.zero_grad()
        seen.append(read(parameter))
        for micro in range(2):
            loss = program.loss(loss_of(module, 2 * number + micro))
            seen.append(read(parameter))
            loss.backward()
            seen += [read(parameter), read(parameter.grad), cases.whole(sum(p.grad.square().sum() for p in module.parameters()))]
        optimizer.step()
        seen.append(read(parameter))
    return seen, state(module)


@case("reads")
def reads_in_forward(program: Program) -> Any:
    class Reader(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(read(self.weight))
            with torch.no_grad():
                seen.append(read(module.head.weight))
            return super().forward(x)

    seen: list[Any] = []
    module = program.shard(lambda: Net(lambda: Reader(6, 6)))
    module(inputs(0, 0))
    return seen[:2], trained(program, module)


@case("reads")
def reads_in_backward(program: Program) -> Any:
    module = program.shard(Net)
    seen = []

    def look(gradient: torch.Tensor) -> None:
        with torch.no_grad():
            seen.append([module.head.weight[0].clone(), module.blocks[0].weight.detach().sum()])

    x = inputs(0, 0).requires_grad_()
    y = torch.tanh(x)
    y.register_hook(look)
    module(y).sum().backward()
    return seen, trained(program, module)


# ---- Views that outlive their values ----

TAKEN = {"slice": lambda p: p[:2], "flat": lambda p: p.view(-1), "rows": lambda p: list(p.data)[1],
         "view of a view": lambda p: p.t()[1], "the same": lambda p: p.contiguous()}
WRITTEN: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "mul_": lambda module, p: p.mul_(2), "data": lambda module, p: p.data.mul_(2), "item": lambda module, p: p.__setitem__(0, 1),
    "foreach": lambda module, p: torch._foreach_mul_([p], 2), "init": lambda module, p: nn.init.constant_(p, 3),
    "load": lambda module, p: module.load_state_dict(halved(module)), "zero_": lambda module, p: p.zero_(),
}


def now(view: torch.Tensor, again: Callable[[], torch.Tensor], look: Callable = lambda view: view * 1) -> torch.Tensor:
    """Returns the values of a view. If the read raises the error of an old view, the view is taken again."""
    try:
        return look(view)
    except RuntimeError as raised:
        assert re.search("view of stem.weight.*again", str(raised)), raised
        return look(again())


@case("views", take=TAKEN)
def of_weight(program: Program, take: str) -> Any:
    """Each view shows the values of now, or raises. Writes to another parameter do not matter."""
    module = program.shard(Net)
    weight, optimizer = module.stem.weight, sgd(module)
    seen: list[Any] = []
    for grad in (False, True):
        for write in [*WRITTEN.values(), lambda *_: optimizer.step()]:
            optimizer.zero_grad()
            program.backward(loss_of(module, 0))
            with torch.set_grad_enabled(grad):
                view = TAKEN[take](weight)
            with torch.no_grad():
                module.head.weight.mul_(1.5)
                seen.append(view.clone())
                write(module, weight)
                seen += [now(view, lambda: TAKEN[take](weight), look) for look in (lambda v: v[..., :2] * 1, lambda v: v.tolist())]
    return seen, state(module)


@case("views", take=TAKEN)
def of_gradient(program: Program, take: str) -> Any:
    module = program.shard(Net)
    weight, optimizer = module.stem.weight, sgd(module)
    seen, kept = [], []
    for how, write in {**WRITTEN, "clip": lambda *_: nn.utils.clip_grad_norm_(module.parameters(), 0.01), "step": None,
                       "backward": lambda *_: program.backward(loss_of(module, 1)), "alias": lambda _, g: g.detach().mul_(3),
                       "zeros": lambda *_: optimizer.zero_grad(set_to_none=False), "unscale":
                       lambda _, g: torch._amp_foreach_non_finite_check_and_unscale_([g], torch.zeros(1), torch.ones(1) / 2)}.items():
        optimizer.zero_grad()
        program.backward(loss_of(module, 0))
        view = TAKEN[take](weight.grad.detach() if how == "mul_" else weight.grad)
        module.head.weight.grad.mul_(1.5)
        seen.append(view.clone())
        if write is None:
            kept.append(view)  # a step leaves a gradient as it is
        elif how != "load":
            write(module, weight.grad)
            seen.append(now(view, lambda: TAKEN[take](weight.grad)))
        optimizer.step()
        seen += [each.clone() for each in kept]
    return seen, state(module)


@case("views")
def after_write(program: Program) -> Any:
    """A parameter that was written is used outside of a forward, and gets its gradient."""
    module = program.shard(Net)
    with torch.no_grad():
        module.stem.weight.mul_(2)
    penalty = module.stem.weight[:2].square().sum()
    program.backward(lambda rank: penalty + loss_of(module, 0)(rank))
    sgd(module).step()
    return state(module)


Edges = edges.suite(
    loads="load_state_dict() with hooks, overrides, wrong values and torch's switches",
    reads="parameters and gradients are read at any time, and the streams of one rank lag",
    views="views of weights and gradients that outlive their values")

if __name__ == "__main__":
    support.main()
