#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Operations that a plain model allows and that a sharded model must support or reject."""
from __future__ import annotations

import io
import os
import pickle
import tempfile
import unittest
from typing import Any
from unittest import mock

import harness
import models
import torch
from harness import support
from torch import nn

import zerod.torch as zt
from zerod.torch.environment import members


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=2, arena="128M").for_module()


class Unused(models.MLP):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(7))
        self.register_buffer("scale", torch.ones(3))


class Mistakes(unittest.TestCase):
    def test_conversion(self) -> None:
        """to(), float(), cpu() or cuda() that change nothing are allowed; others and swap_tensors() are refused, and training goes on"""
        def convert(module: nn.Module, *_: Any) -> None:
            for same in (lambda: module.to(models.DEVICE), module.float, getattr(module.layers[0], models.DEVICE),
                         lambda: module.layers[0].to_empty(device=models.DEVICE)):
                same()
            for other in (module.half, lambda: module.to(torch.float64), lambda: module.layers[0].to("meta")):
                with self.assertRaisesRegex(RuntimeError, "a sharded model keeps its dtype and device"):
                    other()
            with self.assertRaisesRegex(RuntimeError, r"parameters keep their values in _apply\(\)"):
                module._apply(lambda values: values * 2)
            first, second, *_ = module.parameters()
            for other, message in ((second, "of the sharded parameters .* and .*: the daemon"),
                                   (nn.Parameter(torch.ones(3, device=models.DEVICE)), "different slots")):
                for pair in ((first, other), (other, first)):
                    with self.assertRaisesRegex(RuntimeError, message):
                        torch.utils.swap_tensors(*pair)

        harness.compare(daemon.socket, 2, Unused, models.sgd, models.mlp_loss, before_step=lambda module, _: (
            convert(module) if hasattr(module, "_zerod_model") else None))

    def test_arguments(self) -> None:
        """arguments of shard() that make no sense are refused by name, and so are parameters that cannot be gathered"""
        def body(rank: int) -> None:
            for wrong in ({"param_dtype": "bf16"}, {"param_dtype": torch.float64}, {"reduce_dtype": torch.int32}, {"op": "avg"},
                          {"stage": 4}, {"prefetch": -1}, {"persist_below": 0.5}, {"deadline_ms": None}):
                with self.assertRaisesRegex(ValueError, f"^{list(wrong)[0]} is "):
                    zt.shard(models.MLP(), **wrong)
            with self.assertRaisesRegex(ValueError, "^0: parameters of torch.uint32 cannot be sharded"):
                zt.shard(nn.ParameterList([nn.Parameter(torch.ones(2, dtype=torch.uint32), requires_grad=False)]))
            for dtype in (torch.complex64, torch.float64):
                with self.assertRaisesRegex(ValueError, f"weight is {dtype}, which durable= does not support: convert it"):
                    zt.shard(nn.Linear(2, 2, dtype=dtype), durable="complex")

        harness.ranks(daemon.socket, 1, body)

    def test_shared_memory(self) -> None:
        """a parameter over the memory of another tensor, which would no longer follow it; parts of one memory may be parameters"""
        def module_of(one: torch.Tensor, other: torch.Tensor) -> nn.Module:
            made = nn.Module()
            made.one, made.other = nn.Parameter(one), other
            return made

        def body(rank: int) -> None:
            whole = torch.ones(4, 6, device=models.DEVICE)
            for other in (whole, whole.t(), whole[:, 1:3], whole.view(torch.bfloat16)):
                for registered in (nn.Parameter(other), nn.Buffer(other)):
                    with self.assertRaisesRegex(ValueError, "^one shares memory with other"):
                        zt.shard(module_of(whole, registered))
            for apart in (nn.Parameter(whole[:, 2:]), nn.Buffer(whole[:, 2:].view(torch.bfloat16)), nn.Buffer(whole.to_sparse())):
                module = harness.shard(module_of(whole[:, :2], apart))
                self.assertEqual(module.one.whole().sum().item(), 8)

        harness.ranks(daemon.socket, 1, body)

    def test_former_values(self) -> None:
        """a view of a parameter behind a step, and a parameter whose .data was assigned from what is written later"""
        def body(rank: int) -> None:
            module = harness.shard(models.MLP())
            weight, bias = module.first.weight, module.first.bias
            optimizer = zt.AdamW(module.parameters(), lr=0.1)
            for _ in range(2):
                models.mlp_loss(module, rank, 0)
                rows = [weight.detach()[0], *(each["exp_avg"][0] for each in optimizer.state.values() if each["exp_avg"].dim() == 2)]
                optimizer.step()
                optimizer.zero_grad()
            for row in rows:
                with self.assertRaisesRegex(RuntimeError, "weight.*before .*weight was written or stepped"):
                    row + 1
            for given in (torch.zeros(bias.shape, device=models.DEVICE), bias.detach() * 2, module.layers[0][0].bias.data):
                bias.data = given
                models.mlp_loss(module, rank, 0)
                with torch.no_grad():
                    given.add_(1)
                with self.assertRaisesRegex(zt.ShardedWrite, "first.bias.data = x"):
                    models.mlp_loss(module, rank, 0)
            bias.data = torch.ones(bias.shape, device=models.DEVICE)
            models.mlp_loss(module, rank, 0)

        harness.ranks(daemon.socket, 2, body)

    def test_inference_mode(self) -> None:
        """reads in inference mode, of tensors that were made outside of it"""
        def body(rank: int) -> None:
            module = harness.shard(harness.seeded(models.MLP))
            weight = module.first.weight
            with torch.inference_mode():
                for read in (weight.detach(), weight.data, weight[:], module.state_dict()["first.weight"], weight * 1):
                    found = read.whole() if hasattr(read, "whole") else read + 0
                    self.assertTrue(torch.equal(found, weight.whole()))

        harness.ranks(daemon.socket, 2, body)

    def test_failed_use(self) -> None:
        """an error of torch's where a gathered weight is put into its place: its gather is given back, and training goes on"""
        def body(rank: int) -> None:
            module = harness.shard(models.MLP())
            optimizer = models.sgd(module)
            x = torch.ones(2, 13, device=models.DEVICE)
            with self.assertRaises((RuntimeError, NotImplementedError)):
                torch.func.jvp(module, (x,), (x,))
            for step in range(2):
                models.mlp_loss(module, rank, step)
                optimizer.step()
                optimizer.zero_grad()

        harness.ranks(daemon.socket, 2, body)

    def test_not_in_group(self) -> None:
        """a process group without this rank, which torch numbers -1"""
        with mock.patch("torch.distributed.get_rank", side_effect=lambda group=None: 3 if group is None else -1), \
                self.assertRaisesRegex(ValueError, "rank 3 is not in the process group"):
            members(object())

    def test_copies(self) -> None:
        """pickling of a sharded model and of its blocks is refused, and so is a checkpoint that is not there"""
        def body(rank: int) -> None:
            module = harness.shard(models.MLP())
            for part in (module, module.layers[0]):
                for copies in (pickle.dumps, lambda part: torch.save(part, io.BytesIO())):
                    with self.assertRaisesRegex(TypeError, "a sharded (MLP|Sequential) .*state_dict"):
                        copies(part)
            with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(FileNotFoundError, folder):
                zt.load(folder, module)
            models.mlp_loss(module, rank, 0)

        harness.ranks(daemon.socket, 2, body)

    def test_hooks(self) -> None:
        """gradient hooks of parameters, which would never run, are refused before shard() and behind it"""
        def body(rank: int) -> None:
            hooked = models.MLP()
            hooked.first.weight.register_hook(lambda gradient: gradient * 2)
            with self.assertRaisesRegex(ValueError, "first.weight has a gradient hook"):
                zt.shard(hooked)
            module = harness.shard(models.MLP())
            for register in (module.first.weight.register_hook, module.first.weight.register_post_accumulate_grad_hook):
                with self.assertRaisesRegex(NotImplementedError, "first.weight.*never run"):
                    register(lambda _: None)

        harness.ranks(daemon.socket, 1, body)

    def test_ddp(self) -> None:
        """DistributedDataParallel around a sharded model, or around one that contains it, is refused"""
        def body(rank: int) -> None:
            module = harness.shard(models.MLP())
            for outer in (module, nn.Sequential(nn.Linear(13, 13), module)):
                with self.assertRaisesRegex(RuntimeError, "sharded parameter .*first.weight"):
                    nn.parallel.DistributedDataParallel(outer)
            with self.assertRaisesRegex((ValueError, RuntimeError), "process group"):
                nn.parallel.DistributedDataParallel(nn.Linear(2, 2))

        harness.ranks(daemon.socket, 1, body)

    def test_unused_gradient(self) -> None:
        """the gradient of an unused parameter, taken before the step has begun, is zero"""
        def body(rank: int) -> Any:
            module = harness.shard(Unused())
            optimizer = models.sgd(module)
            models.mlp_loss(module, rank, 0)
            taken = [p.grad for p in module.parameters() if p.grad is not None]
            nn.utils.clip_grad_value_(module.parameters(), 0.01)
            most = max(float(gradient.abs().max()) for gradient in taken if gradient.numel())
            optimizer.step()
            return most <= 0.01, float(module.unused.sum())

        self.assertEqual(harness.ranks(daemon.socket, 2, body), [(True, 7.0)] * 2)

    def test_unused_state(self) -> None:
        """a checkpoint in which a parameter has no optimizer state is read by a new optimizer, which has none either"""
        def body(rank: int, path: str) -> Any:
            module = harness.shard(Unused())
            optimizer = models.adamw(module)
            models.mlp_loss(module, rank, 0)
            optimizer.step()
            zt.save(path, module, optimizer)
            full = zt.state_dict(module, optimizer, full=True)
            seen = []
            for read in (lambda o: zt.load(path, module, o), lambda o: zt.load_state_dict(module, full, o)):
                again = models.adamw(module)
                read(again)
                seen.append([again.state.get(p, {}).keys() == optimizer.state.get(p, {}).keys()
                             for p in module.parameters()])
            return all(map(all, seen))

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "saved")
            self.assertEqual(harness.ranks(daemon.socket, 1, lambda rank: body(rank, path)), [True])


if __name__ == "__main__":
    support.main()
