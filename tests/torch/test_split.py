#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Backwards of inputs first and of weights later, and the dtype of gradients."""
from __future__ import annotations

import unittest
from functools import partial
from typing import Any

import cases
import harness
import models
import torch
from cases import Program, state
from harness import support

import zerod.torch as zt


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M", host_arena="64M").for_module()


def split(program: Program, some: bool) -> Any:
    """The inputs' gradients first, and the weights' by backward(inputs=), perhaps of some weights alone."""
    module = program.shard(models.MLP)
    optimizer, seen = models.sgd(module), []
    weights = list(module.parameters())[some::1 + some]
    for step in range(3):
        optimizer.zero_grad()
        inputs = {rank: models.numbers(rank, step, 6, 13).requires_grad_() for rank in program.ranks}
        loss = program.loss(lambda rank: module(inputs[rank]).square().mean())
        for _ in range(2):
            torch.autograd.grad(loss, list(inputs.values()), retain_graph=True)
        loss.backward(inputs=weights)
        seen += [weights[0].grad.norm(), [p.grad is None for p in module.parameters()]]
        optimizer.step()
    return seen, state(module)


class Split(unittest.TestCase):
    def test_inputs_first(self) -> None:
        """of all weights, and of every other one; on 1, 2 and 4 ranks"""
        for world in (1, 2, 4):
            for options in ({}, {"slots": True}, {"stage": 1}, {"offload": "all"}):
                with self.subTest(world=world, **options):
                    cases.check(daemon.socket, world, {f"some={some}": partial(split, some=some) for some in (False, True)}, **options)

    def test_pipelining(self) -> None:
        """torch's functions for zero-bubble pipelines are refused by name before they begin, and training goes on"""
        from torch.distributed.pipelining._backward import stage_backward, stage_backward_input

        def losses(module: Any, rank: int, micro: int) -> Any:
            inputs = [models.numbers(rank, micro, 6, 13).requires_grad_()]
            loss = module(inputs[0]).square().mean()
            if hasattr(module, "_zerod_model"):
                with self.assertRaisesRegex(NotImplementedError, r"first.weight.*inputs and then of weights"):
                    stage_backward_input([loss], None, inputs, module.parameters())
                with self.assertRaisesRegex(NotImplementedError, r"first.weight.*get_gradient_edge"):
                    torch.autograd.graph.get_gradient_edge(module.first.weight)
            stage_backward(loss, None, inputs)
            return loss.detach().cpu()

        harness.compare(daemon.socket, 2, models.MLP, models.sgd, losses)

    def test_grad_dtype(self) -> None:
        """another one than the parameter's is refused, before shard() and after it"""
        def body(rank: int) -> None:
            module = models.MLP()
            module.last.bias.grad_dtype = torch.bfloat16
            with self.assertRaisesRegex(ValueError, "last.bias.grad_dtype is torch.bfloat16"):
                zt.shard(module)
            module.last.bias.grad_dtype = torch.float32
            weight = harness.shard(module, param_dtype=torch.bfloat16).first.weight
            weight.grad_dtype = torch.float32
            self.assertEqual(weight.grad_dtype, torch.float32)
            with self.assertRaisesRegex(NotImplementedError, "first.weight.grad_dtype = torch.bfloat16"):
                weight.grad_dtype = torch.bfloat16

        if hasattr(torch.Tensor, "grad_dtype"):
            harness.ranks(daemon.socket, 2, body)


if __name__ == "__main__":
    support.main()
