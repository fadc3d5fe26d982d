#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole and sharded state, checkpoints over other numbers of ranks, clipping, loss scaling, schedulers."""
from __future__ import annotations

import tempfile
import unittest
from typing import Any
from unittest import mock

import harness
import models
import torch
import torch.distributed
from harness import compare, same, support
from torch import nn

import zerod
import zerod.torch as zt
from zerod.torch.sharded import boxes
from zerod.torch.state import checkpointable


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


def trained(rank: int, steps: int, dtype: Any = None, module: Any = None) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = module or harness.shard(harness.seeded(models.GPT), param_dtype=dtype)
    optimizer = models.adamw(module)
    harness.train(module, optimizer, models.gpt_loss, rank, steps)
    return module, optimizer


class States(unittest.TestCase):
    def test_boxes(self) -> None:
        """flat ranges as boxes: in order, without gaps, for every range of some shapes"""
        for shape in ((), (7,), (3, 5), (2, 3, 4), (1, 4, 1), (2, 2, 2, 2)):
            whole = torch.arange(torch.Size(shape).numel()).view(shape)
            for begin in range(whole.numel() + 1):
                for end in range(begin, whole.numel() + 1):
                    parts = [whole[tuple(slice(o, o + n) for o, n in zip(offsets, sizes))].flatten()
                             for offsets, sizes in boxes(shape, begin, end)]
                    self.assertEqual(torch.cat(parts).tolist() if parts else [], list(range(begin, end)))
                    self.assertLessEqual(len(parts), max(2 * len(shape) - 1, 1))

    def test_full(self) -> None:
        """state_dict() is what one process has; load_state_dict() brings it to another number of ranks"""
        for dtype in (None, torch.bfloat16):
            def body(rank: int) -> Any:
                module, optimizer = trained(rank, 3, dtype)
                return module.state_dict(), module.blocks[0].state_dict(), zt.state_dict(module, optimizer, full=True)

            states = harness.ranks(daemon.socket, 2, body)
            same(states[0], states[1], "rank ")
            state, part, everything = states[0]

            def reference() -> Any:
                return harness.reference(models.GPT, models.adamw, models.gpt_loss, 2, 3, dtype=dtype)[1]

            expected = harness.alone(reference)
            same({name: value.flatten() for name, value in state.items() if name != "head.weight"}, expected)
            same(state["head.weight"], state["tokens.weight"])
            same(part, {name[9:]: value for name, value in state.items() if name.startswith("blocks.0.")})

            def again(rank: int) -> Any:
                module = harness.shard(models.GPT(), param_dtype=dtype)
                optimizer = models.adamw(module)
                zt.load_state_dict(module, everything, optimizer)
                with self.assertRaisesRegex(RuntimeError, "size mismatch for norm.weight"):
                    module.load_state_dict({**state, "norm.weight": torch.ones(3)})
                return zt.state_dict(module, optimizer, full=True)

            same(harness.ranks(daemon.socket, 3, again)[0], everything)

    def test_one_rank(self) -> None:
        """without masters one rank alone may ask for state_dict()"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(models.GPT))
            return module.state_dict() if rank == 1 else None

        expected = harness.seeded(models.GPT).state_dict()
        same(dict(harness.ranks(daemon.socket, 2, body)[1]), dict(expected))

    def test_safetensors(self) -> None:
        """safetensors takes state_dict()"""
        try:
            from safetensors.torch import load_file, save_file
        except ImportError:
            self.skipTest("safetensors is not installed")
        with tempfile.TemporaryDirectory() as folder:
            def body(rank: int) -> None:
                state = harness.shard(harness.seeded(models.MLP)).state_dict()
                if rank == 0:
                    save_file(state, folder + "/model.safetensors")

            harness.ranks(daemon.socket, 2, body)
            same(load_file(folder + "/model.safetensors"), dict(harness.seeded(models.MLP).state_dict()))

    def test_full_parameters(self) -> None:
        """full_parameters(): to look at, and to write, masters and graph included"""
        for dtype in (None, torch.bfloat16):
            def body(rank: int) -> Any:
                module = harness.shard(harness.seeded(models.MLP), param_dtype=dtype)
                with zt.full_parameters(module):
                    seen = module.first.weight.shape, module.last.weight.detach().clone()
                with zt.full_parameters(module, write=True), torch.no_grad():
                    module.last.weight.mul_(2 if rank == 0 else 3)
                    nn.init.ones_(module.first.bias)
                models.mlp_loss(module, rank, 0)
                state = module.state_dict()
                return seen, state["last.weight"], state["first.bias"]

            plain = harness.seeded(models.MLP)
            expected = (plain.first.weight.shape, plain.last.weight.detach()), 2 * plain.last.weight.detach(), torch.ones(37)
            for result in harness.ranks(daemon.socket, 2, body):
                same(result, expected)


def with_gloo(folder: str, rank: int, world: int) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world)


@unittest.skipUnless(checkpointable(), "this torch's checkpoints do not ask a tensor for its parts")
class Checkpoints(unittest.TestCase):
    def test_plain(self) -> None:
        """a plain program reads a checkpoint of three ranks"""
        with tempfile.TemporaryDirectory() as folder:
            def body(rank: int) -> None:
                with_gloo(folder, rank, 3)
                zt.save(folder + "/save", harness.shard(harness.seeded(models.GPT)))
                torch.distributed.destroy_process_group()

            harness.ranks(daemon.socket, 3, body)
            import torch.distributed.checkpoint as dcp

            state = {"model": {name: torch.zeros_like(value) for name, value in models.GPT().state_dict().items()
                               if name != "head.weight"}}
            dcp.load(state, checkpoint_id=folder + "/save")
            expected = dict(harness.seeded(models.GPT).state_dict())
            del expected["head.weight"]
            same(state["model"], expected)


class Groups(unittest.TestCase):
    def test_process_groups(self) -> None:
        """a model sharded over each of two process groups, and one over all ranks"""
        with tempfile.TemporaryDirectory() as folder:
            def body(rank: int) -> Any:
                with_gloo(folder, rank, 4)
                pairs = [torch.distributed.new_group([0, 2]), torch.distributed.new_group([1, 3])]
                part = harness.shard(harness.seeded(models.MLP), process_group=pairs[rank % 2])
                everywhere = harness.shard(harness.seeded(models.MLP))
                for module, number in ((part, rank // 2), (everywhere, rank)):
                    harness.train(module, models.sgd(module), models.mlp_loss, number, 3)
                torch.distributed.destroy_process_group()
                return harness.slices(part), harness.slices(everywhere)

            results = harness.ranks(daemon.socket, 4, body)
        for parts, world in (([results[0][0], results[2][0]], 2), ([results[1][0], results[3][0]], 2),
                             ([result[1] for result in results], 4)):
            expected = harness.alone(lambda: harness.reference(models.MLP, models.sgd, models.mlp_loss, world, 3)[1])
            same(harness.whole(parts), expected)


class Gradients(unittest.TestCase):
    def test_clip(self) -> None:
        """clipping: norm and parameters within 1e-6 of one process; other norms; gradients that the program has edited"""
        for norm_type in (2.0, "inf", -float("inf"), 3.0):
            for scale, edit in ((0.05, 1.0), (1e6, 1.0), (0.001, 1 / 64)):
                def clip(module: nn.Module, optimizer: Any) -> Any:
                    for parameter in module.parameters() if edit != 1 else ():
                        parameter.grad.mul_(edit)  # type: ignore[union-attr]
                    if edit != 1:
                        nn.utils.clip_grad_value_(module.parameters(), 0.002)
                    if hasattr(module, "_zerod_model"):
                        norms.append(zt.clip_grad_norm_(module, scale, norm_type))
                    else:
                        norms.append(nn.utils.clip_grad_norm_(module.parameters(), scale, norm_type))

                norms: list[torch.Tensor] = []

                def body(rank: int) -> Any:
                    module = harness.shard(harness.seeded(models.MLP))
                    harness.train(module, models.sgd(module), models.mlp_loss, rank, 3, before_step=clip)
                    return norms, harness.slices(module)

                def alone() -> Any:
                    return norms, harness.reference(models.MLP, models.sgd, models.mlp_loss, 2, 3, before_step=clip)[1]

                results = harness.ranks(daemon.socket, 2, body)
                expected_norms, expected = harness.alone(alone)
                for norm, other, reference in zip(results[0][0], results[1][0], expected_norms):
                    self.assertEqual(norm, other)
                    torch.testing.assert_close(norm, reference, rtol=1e-6, atol=0)
                torch.testing.assert_close(harness.whole([result[1] for result in results]), expected, rtol=1e-5, atol=1e-6)

    def test_agreements(self) -> None:
        """clipping by torch's function: the ranks agree once for all gradients"""
        def body(rank: int) -> int:
            module = harness.shard(nn.Sequential(*[nn.Linear(3, 3) for _ in range(150)]), policy=[])
            module(torch.ones(1, 3)).sum().backward()
            module[0].weight.grad.read_local()
            with mock.patch.object(zerod.Group, "agree", autospec=True, side_effect=zerod.Group.agree) as calls:
                nn.utils.clip_grad_norm_(module.parameters(), 1.0, foreach=True)
            return calls.call_count

        self.assertEqual(harness.ranks(daemon.socket, 2, body), [1, 1])

    def test_no_norm(self) -> None:
        """norm_type 0 is refused"""
        def body(rank: int) -> None:
            module = harness.shard(models.MLP())
            with self.assertRaisesRegex(ValueError, "norm_type is 0.0"):
                zt.clip_grad_norm_(module, 1.0, 0)

        harness.ranks(daemon.socket, 1, body)

    def test_scheduler(self) -> None:
        """a scheduler, parameter groups, two optimizers for one model"""
        def optimize(module: nn.Module) -> Any:
            weights = [p for n, p in module.named_parameters() if n.endswith("weight")]
            others = [p for n, p in module.named_parameters() if not n.endswith("weight")]
            return Both(torch.optim.AdamW(weights, lr=1e-2), torch.optim.SGD(others, lr=1e-1))

        compare(daemon.socket, 2, models.MLP, optimize, models.mlp_loss)


class Both:
    """Two optimizers and a scheduler, as one."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers
        self.scheduler = torch.optim.lr_scheduler.StepLR(optimizers[0], 1, 0.5)

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
        self.scheduler.step()


if __name__ == "__main__":
    support.main()
