#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parameters of complex64, compared with one process."""
from __future__ import annotations

import tempfile
import unittest
from functools import partial
from typing import Any

import cases
import harness
import models
import torch
from cases import Program, state, whole
from harness import support
from torch import nn, optim

import zerod.torch as zt


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M", host_arena="64M").for_module()


class Waves(nn.Module):
    """Conjugated and negated views of weights are saved for the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 7, dtype=torch.complex64) for _ in range(3))
        self.real = nn.Linear(7, 3)
        self.phase = nn.Parameter(torch.randn(5, 7, dtype=torch.complex64))

    def forward(self, number: int) -> torch.Tensor:
        generator = torch.Generator("cpu").manual_seed(number)
        x = torch.randn(5, 7, dtype=torch.complex64, generator=generator, device="cpu").to(models.DEVICE)
        for layer in self.layers:
            x = x + layer(x) * layer.weight.conj()[:5].clone() + x * layer.bias.conj() * layer.bias.conj().imag
        x = x * torch.view_as_real(self.phase).sum() * self.phase.conj()
        return self.real(x.abs().to(self.real.weight.dtype)).float().square().mean()


def trained(make: Any, options: dict[str, Any], program: Program) -> Any:
    module = program.shard(Waves, **options)
    optimizer = make(module.parameters())
    norms = []
    for step in range(3):
        program.backward(lambda rank: module(10 * step + rank))
        grads = [parameter.grad for parameter in module.parameters() if parameter.is_complex()]
        norms.append([grads[0].norm(), grads[1].abs().sum(), torch.linalg.vector_norm(grads[2]), whole(grads[3]).sum()])
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        harness.step_with(optimizer)
        optimizer.zero_grad()
    with torch.no_grad():
        module.phase.mul_(1j)
    return state(module), norms, whole([dict(optimizer.state[parameter]) for parameter in module.parameters()])


class Complex(unittest.TestCase):
    def test_training(self) -> None:
        """gradients, norms, optimizers and their state; offload, slots, param_dtype of the others"""
        makes = [partial(optim.AdamW, lr=0.02, eps=1e-3), partial(optim.SGD, lr=0.02, momentum=0.9)]
        for world, options in ((1, {}), (2, {"slots": True}), (4, {"stage": 2}), (2, {"offload": "params"}), (2, {"offload": "optimizer"}),
                               (2, {"stage": 1})):
            with self.subTest(world=world, **options):
                cases.check(daemon.socket, world, {str(number): partial(trained, make, options) for number, make in enumerate(makes)})

    def test_state(self) -> None:
        """checkpoints, with no_sync(), bfloat16 for the real parameters, and zerod's clipping"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(Waves), param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
            optimizer = optim.AdamW(module.parameters(), lr=0.02)
            with zt.no_sync(module):
                module(0).backward()
            module(1).backward()
            norms = [float(zt.clip_grad_norm_(module, 0.1)), float(zt.clip_grad_norm_(module, 1.0))]
            optimizer.step()
            before = whole(zt.state_dict(module, optimizer, full=True))
            zt.save(folder, module, optimizer)
            optimizer.zero_grad()
            module(2).backward()
            optimizer.step()
            zt.load(folder, module, optimizer)
            harness.same(whole(zt.state_dict(module, optimizer, full=True)), before)
            return norms

        with tempfile.TemporaryDirectory() as folder:
            for norms in cases.gloo(daemon.socket, 2, body):
                self.assertGreater(norms[0], 0.2)
                self.assertAlmostEqual(norms[1], 0.1, 4)


if __name__ == "__main__":
    support.main()
