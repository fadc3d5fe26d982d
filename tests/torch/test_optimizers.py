#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch and of programs on sharded parameters, compared with one process."""
from __future__ import annotations

import copy
import unittest
import weakref
from contextlib import nullcontext
from functools import partial
from operator import is_
from typing import Any, Callable, Optional

import cases
import harness
import models
import torch
from cases import Parameters, Program, state, whole
from harness import support
from torch import optim


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


class Lars(optim.Optimizer):
    """Uses norms of parameters and of gradients."""

    def __init__(self, parameters: Parameters, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Optional[Callable] = None) -> None:
        for p in self.param_groups[0]["params"]:
            trust = p.norm() / p.grad.norm().clamp(min=1e-6) if p.dim() > 1 else 1.0
            p.add_(p.grad * trust, alpha=-self.param_groups[0]["lr"])


class Lamb(Lars):
    """Uses norms of the update, moments in `state`, and writes to `data`."""

    @torch.no_grad()
    def step(self, closure: Optional[Callable] = None) -> None:
        for p in self.param_groups[0]["params"]:
            moments = self.state[p]
            if not moments:
                moments["first"], moments["second"] = torch.zeros_like(p), torch.zeros_like(p.data)
            moments["first"].mul_(0.9).add_(p.grad, alpha=0.1)
            moments["second"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
            update = moments["first"] / moments["second"].sqrt().add(1e-3)
            ratio = p.data.pow(2).sum().sqrt() / update.pow(2).sum().sqrt()
            p.data.add_(update, alpha=-self.param_groups[0]["lr"] * float(ratio))


Make = Callable[[Parameters], optim.Optimizer]
KINDS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, "Adam": {"amsgrad": True}, "AdamW": {},
    "Adagrad": {}, "NAdam": {}, "RAdam": {}, "RMSprop": {"momentum": 0.5, "centered": True}, "Adadelta": {}, "Adamax": {},
    "ASGD": {}, "Rprop": {}}


def of_torch(name: str, parameters: Parameters, **options: Any) -> optim.Optimizer:
    return getattr(optim, name)(parameters, **{"lr": 0.05, **KINDS.get(name, {}), **options})


def decayed(parameters: Parameters) -> optim.Optimizer:
    groups = [{"params": [p for p in parameters if (p.dim() >= 2) == matrix], "weight_decay": 0.5 * matrix}
              for matrix in (True, False)]
    return optim.AdamW(groups, lr=0.05)


def muon(parameters: Parameters) -> optim.Optimizer:
    return optim.Muon([p for p in parameters if p.dim() == 2], lr=0.05)


EQUAL: dict[str, Make] = {
    **{f"{name}, foreach={foreach}": partial(of_torch, name, foreach=foreach) for name in KINDS for foreach in (False, True)},
    "AdamW, as torch chooses": partial(of_torch, "AdamW"),
    "AdamW, a tensor as rate": lambda parameters: optim.AdamW(parameters, lr=torch.tensor(0.05, device="cpu")),
    "AdamW, decay of matrices": decayed,
}
CLOSE: dict[str, Make] = {  # fused CPU kernels round the last elements of a tensor differently
    **{f"{name}, fused": partial(of_torch, name, fused=True) for name in ("SGD", "Adam", "AdamW", "Adagrad")
       if name != "Adagrad" or models.DEVICE == "cpu"},  # torch has none for GPUs
    **{f"Adafactor, foreach={foreach}": partial(of_torch, "Adafactor", foreach=foreach) for foreach in (False, True)
       if hasattr(optim, "Adafactor")},
    **({"Muon": muon} if hasattr(optim, "Muon") else {}),
    "LARS": partial(Lars, lr=0.05), "LAMB": partial(Lamb, lr=0.05), "without no_grad()": lambda parameters: Outdated(parameters, lr=0.05),
    "plain tensors beside sharded ones": lambda parameters: Mixed(parameters, lr=0.05),
}


def stepped(make: Make, program: Program) -> Any:
    module = program.shard(cases.Table)
    parameters = list(module.parameters())
    optimizer = make(parameters)
    for step in range(4):
        program.backward(lambda rank: module(10 * step + rank))
        harness.step_with(optimizer)
        optimizer.zero_grad()
    return state(module), [whole(dict(optimizer.state[p])) for p in parameters if p in optimizer.state]


class Outdated(Lars):
    """Records its step, as optimizers did before torch.no_grad(), and uses whole matrices."""

    def step(self, closure: Optional[Callable] = None) -> None:
        for p in self.param_groups[0]["params"]:
            change = p.grad.data + (p @ p.t() @ p if p.dim() == 2 else p * p.norm())
            p.data.add_(change.detach(), alpha=-self.param_groups[0]["lr"])


class Mixed(Lars):
    """Averages whose first one is a plain tensor, beside sharded ones, are written by one operation."""

    def step(self, closure: Optional[Callable] = None) -> None:
        parameters = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        for i, p in enumerate(parameters):
            if not self.state[p]:
                self.state[p]["average"] = torch.zeros(p.shape, device=p.device) if i == 0 else torch.zeros_like(p)
        with torch.no_grad():
            averages = [self.state[p]["average"] for p in parameters]
            torch._foreach_lerp_(averages, [p.grad for p in parameters], 0.5)
            torch._foreach_add_(parameters, averages, alpha=-self.param_groups[0]["lr"])


# ---- Programs that use an optimizer between its steps ----

def train(program: Program, module: torch.nn.Module, optimizer: optim.Optimizer, *numbers: int) -> None:
    for number in numbers:
        optimizer.zero_grad()
        program.backward(lambda rank: module(10 * number + rank))
        optimizer.step()


def replaced(foreach: bool, program: Program) -> Any:
    """Tensors and dicts of the state are read, replaced and dropped between steps."""
    module = program.shard(cases.Table)
    optimizer = of_torch("Adam", list(module.parameters()), foreach=foreach)
    state_of = {name: optimizer.state[getattr(module, name)] for name in ("matrix", "wide", "cube")}
    train(program, module, optimizer, 0, 1)
    state_of["matrix"]["exp_avg"] = state_of["matrix"]["exp_avg"] * 0.5
    seen = [whole(state_of[name]["exp_avg"][0]) for name in ("wide", "matrix")]
    state_of["cube"]["exp_avg_sq"] = whole(state_of["cube"]["exp_avg_sq"]).to(models.DEVICE)
    optimizer.state[module.wide] = dict(optimizer.state[module.wide])
    optimizer.state.pop(module.row)
    with unittest.TestCase().assertRaises(RuntimeError) if program.sharded else nullcontext():
        state_of["matrix"]["exp_avg"].add_(1 if program.sharded else 0)  # its view was read
    state_of["matrix"]["exp_avg"] = state_of["matrix"]["exp_avg"].clone()
    train(program, module, optimizer, 2)
    for number in (5, 6):
        view = state_of["cube"]["exp_avg"][0]
        train(program, module, optimizer, number)
        with unittest.TestCase().assertRaisesRegex(RuntimeError, "take it again") if program.sharded else nullcontext():
            view.sum()
    former = optimizer.state[module.one]["exp_avg"]
    gone = weakref.ref(former.read_local() if program.sharded else former)
    del former
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert gone() is None
    train(program, module, optimizer, 3, 4)
    return seen, state(module), [whole(dict(optimizer.state[p])) for p in module.parameters()]


def raising(foreach: bool, program: Program) -> Any:
    """A step raises on all ranks before it has written anything."""
    module = program.shard(cases.Table)
    optimizer = of_torch("AdamW", list(module.parameters()), foreach=foreach)
    for number in (0, 1):
        optimizer.zero_grad()
        program.backward(lambda rank: module(10 * number + rank))
        betas, optimizer.param_groups[0]["betas"] = optimizer.param_groups[0]["betas"], None
        with unittest.TestCase().assertRaises(TypeError):
            optimizer.step()
        optimizer.param_groups[0]["betas"] = betas
        same_objects(optimizer, list(module.parameters()))
        train(program, module, optimizer, number + 2)
    return state(module), [whole(dict(optimizer.state[p])) for p in module.parameters()]


def same_objects(optimizer: optim.Optimizer, parameters: Parameters) -> None:
    assert all(map(is_, optimizer.param_groups[0]["params"], parameters))
    assert all(map(is_, optimizer.state, parameters))


def kept(program: Program) -> Any:
    """Objects that a program holds are those of the next steps, also if a parameter has its first gradient later."""
    module = program.shard(cases.Table)
    parameters = list(module.parameters())
    optimizer = of_torch("Adam", parameters)
    program.backward(lambda rank: module(rank))
    parameters[-1].grad = None
    optimizer.step()
    held = [value for p in parameters[:-1] for value in optimizer.state[p].values()]
    group, listed = optimizer.param_groups[0], optimizer.param_groups[0]["params"]
    train(program, module, optimizer, 1, 2)
    assert all(map(is_, held, (value for p in parameters[:-1] for value in optimizer.state[p].values())))
    assert optimizer.param_groups[0] is group and group["params"] is listed
    same_objects(optimizer, parameters)
    return whole(held)


def mixed(foreach: bool, program: Program) -> Any:
    """Two models, plain parameters, a frozen one, and one without a gradient in one optimizer, in turn with an own class."""
    modules, plain = [program.shard(cases.Table), program.shard(cases.Table)], harness.seeded(cases.Table).to(models.DEVICE)
    modules[0].row.requires_grad_(False)
    parameters = [p for pair in zip(*(module.parameters() for module in (*modules, plain))) for p in pair]
    unused = torch.nn.Parameter(torch.ones(3, device=models.DEVICE))
    kinds = (optim.Adam, type("Adam", (optim.Adam,), {}))
    optimizers = [kind(some, lr=0.05, foreach=foreach) for kind, some in zip(kinds, ([*parameters[::2], unused], parameters[1::2]))]
    for number in range(3):
        program.backward(lambda rank: sum(module(10 * number + rank) for module in modules) + plain(number))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return [state(module) for module in modules], whole([*plain.parameters(), unused]), \
        [whole(optimizer.state[p]) for optimizer in optimizers for p in optimizer.state]


def hooked(program: Program) -> Any:
    """Hooks of the optimizer see whole tensors, and the step uses what they change."""
    module = program.shard(cases.Table)
    optimizer = of_torch("SGD", list(module.parameters()))
    seen: list[Any] = []

    def before(_: optim.Optimizer, *__: Any) -> None:
        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)
        module.row.grad = torch.ones(5, device=models.DEVICE)
        module.scalar.grad = torch.ones((), device=models.DEVICE)
        optimizer.param_groups[0]["lr"] *= 0.5

    def after(_: optim.Optimizer, *__: Any) -> None:
        seen.append(whole([optimizer.state[p]["momentum_buffer"] for p in optimizer.param_groups[0]["params"]]))

    optimizer.register_step_post_hook(after)
    train(program, module, optimizer, 0)
    optimizer.register_step_pre_hook(before)
    train(program, module, optimizer, 1, 2)
    return seen, state(module)


def hook_alone(program: Program) -> Any:
    """A hook makes the gradients, without a backward."""
    module = program.shard(cases.Table)
    optimizer = of_torch("SGD", list(module.parameters()))

    def before(_: optim.Optimizer, *__: Any) -> None:
        for p in module.parameters():
            p.grad = torch.ones(p.shape, device=models.DEVICE)

    optimizer.register_step_pre_hook(before)
    seen = []
    for _ in range(2):
        optimizer.step()
        seen.append(module())
    return seen


def own_dtype(program: Program) -> Any:
    """An optimizer computes with the masters, not with what a forward computes with."""
    module = program.shard(cases.Table, **({"param_dtype": torch.bfloat16} if program.sharded else {}))

    class Reads(Lars):
        @torch.no_grad()
        def step(self, closure: Optional[Callable] = None) -> None:
            seen.append(whole(module.matrix @ torch.eye(5, device=models.DEVICE)))

    seen: list[Any] = []
    train(program, module, Reads(module.parameters(), lr=0.1), 0)
    return seen


USES: dict[str, cases.Case] = {
    **{f"{case.__name__}, foreach={foreach}": partial(case, foreach) for case in (replaced, raising, mixed) for foreach in (False, True)},
    **{case.__name__: case for case in (kept, hooked, hook_alone, own_dtype)},
}


class Optimizers(unittest.TestCase):
    def check(self, world: int, table: dict[str, Make], compare: Callable[[Any, Any], None]) -> None:
        cases.check(daemon.socket, world, {name: partial(stepped, make) for name, make in table.items()}, compare)

    def test_equal(self) -> None:
        """elementwise optimizers are bit-equal, including their state"""
        self.check(2, EQUAL, harness.same)

    def test_close(self) -> None:
        """fused optimizers, and optimizers that need norms or whole matrices"""
        self.check(2, CLOSE, cases.close)

    def test_four_ranks(self) -> None:
        """several optimizers on four ranks, with parameters that some ranks have no part of"""
        self.check(4, {name: EQUAL[name] for name in ("SGD, foreach=False", "AdamW, foreach=True")}, harness.same)
        self.check(4, {name: make for name, make in CLOSE.items() if "fused" not in name}, cases.close)

    def test_uses(self) -> None:
        """what programs do with an optimizer between its steps, and in its hooks"""
        for world in (1, 2, 4):
            with self.subTest(world=world):
                cases.check(daemon.socket, world, USES)


if __name__ == "__main__":
    support.main()
