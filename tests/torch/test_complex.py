#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parameters of complex64, complex128 and float64, compared with one process."""
from __future__ import annotations

import tempfile
import unittest
from functools import partial
from typing import Any
from unittest import mock

import cases
import harness
import models
import torch
from cases import Program, state, whole
from harness import support
from models import numbers
from torch import nn, optim

import zerod
import zerod.torch as zt
from zerod.torch import gradients
from zerod.torch.whole import sum_of_ranks


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M", host_arena="64M").for_module()


class Waves(nn.Module):
    """Conjugated and negated views of weights are saved for the backward."""

    def __init__(self, dtype: torch.dtype = torch.complex64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 7, dtype=dtype) for _ in range(3))
        self.real = nn.Linear(7, 3, dtype=dtype.to_real())
        self.phase = nn.Parameter(torch.randn(5, 7, dtype=dtype))

    def forward(self, number: int) -> torch.Tensor:
        generator = torch.Generator("cpu").manual_seed(number)
        x = torch.randn(5, 7, dtype=self.phase.dtype, generator=generator, device="cpu").to(models.DEVICE)
        for layer in self.layers:
            x = x + layer(x) * layer.weight.conj()[:5].clone() + x * layer.bias.conj() * layer.bias.conj().imag
        x = x * torch.view_as_real(self.phase).sum() * self.phase.conj()
        return self.real(x.abs().to(self.real.weight.dtype)).to(x.dtype.to_real()).square().mean()


class Precise(models.MLP):
    """float64, with a frozen layer, and a last layer of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.double().layers[1].requires_grad_(False)
        self.last.float().register_forward_pre_hook(lambda _, args: args[0].float())


precise = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-13)


def trained(make: Any, dtype: torch.dtype, options: dict[str, Any], program: Program) -> Any:
    module = program.shard(partial(Waves, dtype), **options)
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
            for dtype, compare in ((torch.complex64, cases.close), (torch.complex128, precise)):
                with self.subTest(world=world, dtype=dtype, **options):
                    table = {str(number): partial(trained, make, dtype, options) for number, make in enumerate(makes)}
                    cases.check(daemon.socket, world, table, compare)
        cases.check(daemon.socket, 4, {"rows": partial(trained, makes[0], torch.complex128, {})}, precise, rows=2)

    def test_state(self) -> None:
        """checkpoints, with no_sync(), bfloat16 for the real parameters, and zerod's clipping"""
        def body(dtype: torch.dtype, rank: int) -> Any:
            module = harness.shard(harness.seeded(partial(Waves, dtype)), param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
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

        for dtype in (torch.complex64, torch.complex128):
            with tempfile.TemporaryDirectory() as folder:
                for norms in cases.gloo(daemon.socket, 2, partial(body, dtype)):
                    self.assertGreater(norms[0], 0.2)
                    self.assertAlmostEqual(norms[1], 0.1, 4)


class Float64(unittest.TestCase):
    def test_sums(self) -> None:
        """bit-equal: optimizers, stages, masters of float64, reduce_dtype, offload; each rank sums its backwards first"""
        masters = {"dtype": torch.bfloat16}
        table = ((1, "adamw_fused", {}), (2, "adamw_fused", {}), (4, "adamw_foreach", {"stage": 2}), (2, "sgd", {"stage": 1}),
                 (4, "sgd", {"slots": True}), (2, "sgd", {"reduce_dtype": torch.float32}), (2, "adamw", {"offload": "params"}),
                 (2, "adamw", {"offload": "all"}), (2, "adamw", masters), (2, "adamw", {"offload": "all", **masters}))
        for world, optimize, options in table:
            with self.subTest(world=world, **options):
                make = Precise if "dtype" not in options else lambda: models.MLP().double()
                harness.compare(daemon.socket, world, make, getattr(models, optimize), models.mlp_loss,
                                empty=options.get("stage") != 1, **options)
        for world in (1, 2, 4):
            harness.compare(daemon.socket, world, make, models.sgd, models.mlp_loss, accumulate=3, local=True)

    def test_windows(self) -> None:
        """gradients that are taken away or written between backwards, unused parameters, freezing, optimizer_in_backward()"""
        def edited(in_backward: bool, program: Program) -> Any:
            module = program.shard(Precise)
            optimizer = optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
            if in_backward and program.sharded:
                zt.optimizer_in_backward(module, optimizer)
            for step in range(4):
                module.layers[1].requires_grad_(step == 2)
                for micro in range(1 if in_backward else 2):
                    program.backward(lambda rank: module.layers[step % 2](module.first(numbers(rank, step, 3, 13).double())).std())
                    if not in_backward and micro == 0:
                        module.first.weight.grad = None
                        module.first.bias.grad.mul_(3)
                harness.step_with(optimizer)
                optimizer.zero_grad(set_to_none=step % 2 == 0)
            return state(module)

        for world in (1, 2, 4):
            cases.check(daemon.socket, world, {str(each): partial(edited, each) for each in (False, True)}, precise)

    def test_failures(self) -> None:
        """a rank fails before it has its sums, or afterwards; an optimizer without float64; freezing between backward and step"""
        def body(rank: int) -> None:
            def fail(unit: Any, kept: Any) -> torch.Tensor:
                made = sum_of_ranks(unit, kept) if late else None
                if not late or unit.block == "layers.2":  # the last
                    raise KeyError(rank)
                return made

            module = harness.shard(harness.seeded(Precise))
            optimizer = optim.SGD(module.parameters(), lr=0.1)
            for late, error in ((False, zerod.Mismatch), (True, zt.StepTorn)):
                models.mlp_loss(module, rank, 0)
                with mock.patch.object(gradients, "sum_of_ranks", fail if rank else sum_of_ranks), \
                        self.assertRaises(KeyError if rank else error):
                    harness.step_with(optimizer)
                optimizer.zero_grad()
                models.mlp_loss(module, rank, 1)
                harness.step_with(optimizer)
                optimizer.zero_grad()
            with self.assertRaisesRegex(NotImplementedError, "first.weight is float64.*use torch.optim.AdamW"):
                zt.AdamW(module.parameters())
            models.mlp_loss(module, rank, 2)
            module.layers[0].requires_grad_(False)
            with self.assertRaisesRegex(zerod.InvalidState, "layers.0.*call step"):
                models.mlp_loss(module, rank, 3)

        harness.ranks(daemon.socket, 2, body)


if __name__ == "__main__":
    support.main()
