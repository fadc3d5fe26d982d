#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch and of programs on sharded parameters, compared with one process."""
from __future__ import annotations

import unittest
from functools import partial
from typing import Any, Callable, Optional

import cases
import harness
import torch
from cases import Parameters, Program, state, whole
from harness import support
from torch import optim


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").__enter__()


def tearDownModule() -> None:
    daemon.__exit__()


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
    **{f"{name}, fused": partial(of_torch, name, fused=True) for name in ("SGD", "Adam", "AdamW", "Adagrad")},
    **{f"Adafactor, foreach={foreach}": partial(of_torch, "Adafactor", foreach=foreach) for foreach in (False, True)
       if hasattr(optim, "Adafactor")},
    **({"Muon": muon} if hasattr(optim, "Muon") else {}),
    "LARS": partial(Lars, lr=0.05), "LAMB": partial(Lamb, lr=0.05),
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


if __name__ == "__main__":
    support.main()
