#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Buffers that a forward keeps for its backward: all blocks where buffers are the shards (world size 1), and in stage 2."""
from __future__ import annotations

import os
import unittest
from typing import Any, Callable

import harness
import models
import torch
from harness import support

import zerod.torch as zt


def setUpModule() -> None:
    global daemon
    os.environ["ZEROD_POISON"] = "0"  # in poison mode buffers are copies
    daemon = support.Daemon(devices=2, arena="128M").for_module()


def output(module: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    return module(models.numbers(rank, step, 6, 13))


def losses(module: torch.nn.Module, rank: int, step: int) -> Any:
    return models.mlp_loss(module, rank, step)


def warm(**options: Any) -> Any:
    """(module, optimizer, model) behind a step, so that addresses are known."""
    module = harness.shard(models.MLP(), **options)
    optimizer = models.sgd(module)
    losses(module, 0, 0)
    optimizer.step()
    optimizer.zero_grad()
    return module, optimizer, module._zerod_model


def in_one_rank(body: Callable[[], Any]) -> Any:
    return harness.ranks(daemon.socket, 1, lambda rank: body())[0]


def without_backward(module: torch.nn.Module, rank: int, step: int) -> Any:
    """A forward that no backward follows, between a backward and its step."""
    loss = losses(module, rank, step)
    return loss, output(module, rank, step).detach().cpu()


class InPlace(unittest.TestCase):
    def test_requests(self) -> None:
        """a forward holds all blocks until its backward has ended, and autograd saves the leaves themselves"""
        def body() -> Any:
            module, _, model = warm()
            out = output(module, 0, 1)
            held = [block.uses for block in model.blocks]
            names = {type(saved).__name__ for saved in self._saved(out.grad_fn)}
            out.sum().backward()
            return model.context.in_place, set(held), names, {block.uses for block in model.blocks}

        self.assertEqual(in_one_rank(body), (True, {2}, {"Leaf", "Tensor"}, {0}))

    @staticmethod
    def _saved(node: Any) -> list[torch.Tensor]:
        found, todo, seen = [], [node], set()
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            found += [value for value in (getattr(node, name) for name in dir(node) if name.startswith("_saved_"))
                      if isinstance(value, torch.Tensor)]
            todo += [following for following, _ in node.next_functions]
        return found

    def test_evaluation(self) -> None:
        """without gradients nothing is kept behind the forward"""
        def body() -> Any:
            module, _, model = warm()
            with torch.no_grad():
                output(module, 0, 1)
            return {block.uses for block in model.blocks}

        self.assertEqual(in_one_rank(body), {0})

    def test_updated(self) -> None:
        """a step between a forward and its backward is an error of the backward, and training goes on"""
        def body() -> Any:
            module, optimizer, _ = warm()
            losses(module, 0, 1)
            late = output(module, 0, 2).sum()
            optimizer.step()
            optimizer.zero_grad()
            try:
                late.backward()
            except RuntimeError as error:
                text = str(error)
            try:
                losses(module, 0, 3)
                optimizer.step()
            except zt.StepAbandoned:
                pass
            optimizer.zero_grad()
            losses(module, 0, 4)
            optimizer.step()
            return text

        self.assertIn("modified by an inplace operation", in_one_rank(body))

    def test_load(self) -> None:
        """load_state_dict() behind a forward that has no backward"""
        def body() -> Any:
            module, _, _ = warm()
            state = module.state_dict()
            output(module, 0, 1)
            module.load_state_dict({name: value + 1 for name, value in state.items()})
            return all(torch.equal(module.state_dict()[name], value + 1) for name, value in state.items())

        self.assertTrue(in_one_rank(body))

    def test_no_backward(self) -> None:
        """a forward without a backward, before the step"""
        harness.compare(daemon.socket, 1, models.MLP, models.sgd, without_backward)


class StageTwo(unittest.TestCase):
    def test_no_backward(self) -> None:
        """what a forward without a backward has kept is not what the next step's forward computes with"""
        harness.compare(daemon.socket, 2, models.MLP, models.sgd, without_backward, stage=2)


if __name__ == "__main__":
    support.main()
