#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses of autograd: unused parameters, several losses, accumulation, checkpointing, unplanned use, frozen parts."""
from __future__ import annotations

import unittest
from functools import partial
from typing import Any
from unittest import mock

import harness
import models
import torch
import torch.nn.functional as F
from harness import compare, support
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import zerod.torch as zt
from zerod.torch.steps import Steps


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


class Rotating(models.MLP):
    """Uses other layers in each step; a parameter of each layer is never used; a layer that one rank uses."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            layer.register_parameter("spare", nn.Parameter(torch.ones(3)))
        self.extra = nn.ModuleList([nn.Linear(37, 37)])
        self.never = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor, step: int = 0, extra: bool = False) -> torch.Tensor:
        x = torch.relu(self.first(x))
        for i, layer in enumerate(self.layers):
            if i != step % 3:
                x = x + torch.tanh(layer(x))
        if extra:
            x = x + self.extra[0](x)
        return self.last(x)


def rotating_loss(module: nn.Module, rank: int, micro: int) -> torch.Tensor:
    x = models.numbers(rank, micro, 6, 13).to(models.dtype_of(module))
    loss = module(x, micro, extra=rank == 1 and micro % 2 == 0).float().square().mean()
    loss.backward()
    return loss.detach()


class Unused(unittest.TestCase):
    def test_rotating(self) -> None:
        """parameters unused in rotating steps, never, and on one rank: as in one process, AdamW's decay included"""
        for world in (1, 2, 4):
            compare(daemon.socket, world, Rotating, models.adamw, rotating_loss, steps=6)
        compare(daemon.socket, 2, Rotating, models.adamw, rotating_loss, steps=6, dtype=torch.bfloat16, accumulate=2)


def two_losses(module: nn.Module, rank: int, micro: int) -> Any:
    x = models.numbers(rank, micro, 6, 13)
    y = module(x)
    first, second = y.square().mean(), y.abs().mean()
    first.backward(retain_graph=True)
    second.backward()
    return first.detach(), second.detach()


def two_forwards(module: nn.Module, rank: int, micro: int) -> Any:
    first = module(models.numbers(rank, micro, 6, 13)).square().mean()
    second = module(models.numbers(rank, micro + 100, 6, 13)).abs().mean()
    with torch.no_grad():
        module(models.numbers(rank, micro, 6, 13))
    (first + second).backward()
    return first.detach(), second.detach()


class Losses(unittest.TestCase):
    def test_two_backwards(self) -> None:
        """two losses, two backwards, retain_graph"""
        def reference_loss(module: nn.Module, rank: int, micro: int) -> Any:
            return two_losses(module, rank, micro)

        for world in (1, 2):
            with self.subTest(world=world):
                compare_two(world)

    def test_two_forwards(self) -> None:
        """two forwards, and one for evaluation, before one backward"""
        compare(daemon.socket, 2, models.MLP, models.adamw, two_forwards)

    def test_auxiliary(self) -> None:
        """an auxiliary loss on an attribute, which does not come out of any forward"""
        compare(daemon.socket, 2, Auxiliary, models.adamw, auxiliary_loss)


def compare_two(world: int) -> None:
    """Each backward is reduced on its own: two micro-batches of one forward."""
    def accumulate_as(module: nn.Module, optimizer: Any, losses: Any, rank: int, steps: int, *_: Any) -> Any:
        seen = []
        for step in range(steps):
            optimizer.zero_grad()
            first, second = two_losses(module, rank, step)
            seen += [first, second]
            optimizer.step()
        return seen

    def one(module: nn.Module, rank: int, micro: int) -> Any:
        y = module(models.numbers(rank, micro // 2, 6, 13))
        loss = y.square().mean() if micro % 2 == 0 else y.abs().mean()
        loss.backward()
        return loss.detach()

    compare(daemon.socket, world, models.MLP, models.adamw, one, accumulate=2, train_with=accumulate_as)


class Auxiliary(models.MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        self.auxiliary = 0
        for layer in self.layers:
            y = layer(x)
            self.auxiliary = self.auxiliary + (y @ layer[0].weight).square().mean()
            x = x + torch.tanh(y)
        return self.last(x)


def auxiliary_loss(module: nn.Module, rank: int, micro: int) -> Any:
    y = module(models.numbers(rank, micro, 6, 13))
    (y.square().mean() + module.auxiliary).backward()
    return y.detach()


def with_no_sync(module: nn.Module, optimizer: Any, losses: Any, rank: int, steps: int, accumulate: int, *_: Any) -> Any:
    """In every other step no backward is outside of no_sync()."""
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(accumulate):
            if micro < accumulate - 1 or step % 2:
                with zt.no_sync(module):
                    seen.append(losses(module, rank, step * accumulate + micro))
            else:
                seen.append(losses(module, rank, step * accumulate + micro))
        optimizer.step()
    return seen


class Accumulate(unittest.TestCase):
    def test_no_sync(self) -> None:
        """accumulation with no_sync: each rank sums first; also where no backward follows"""
        for dtype in (None, torch.bfloat16):
            compare(daemon.socket, 2, Rotating, models.adamw, rotating_loss, accumulate=3, train_with=with_no_sync,
                    local=True, dtype=dtype)

    def test_stage_1(self) -> None:
        """stage 1: accumulation with no_sync, and none; weights stay gathered from step to step"""
        for dtype in (None, torch.bfloat16):
            compare(daemon.socket, 2, models.GPT, models.adamw, models.gpt_loss, stage=1, dtype=dtype, empty=False)
            compare(daemon.socket, 3, Rotating, models.adamw, rotating_loss, accumulate=3, train_with=with_no_sync,
                    local=True, dtype=dtype, stage=1, empty=False)

        def body(rank: int) -> Any:
            module = harness.shard(models.GPT(), stage=1)
            model = module._zerod_model
            harness.train(module, models.sgd(module), models.gpt_loss, rank, 2)
            model.group.barrier()
            gathered = model.client.device(model.device_index).gathered_bytes
            model.group.barrier()
            return gathered, sum(unit.shard.padded_numel * unit.dtype.itemsize for unit in model.units)

        for gathered, everything in harness.ranks(daemon.socket, 2, body):
            self.assertGreaterEqual(gathered, everything // 2)  # of a unit in place, the other rank's half
            self.assertLessEqual(gathered, everything)

    def test_stage_1_twice(self) -> None:
        """stage 1: a second backward outside of no_sync is refused on all ranks, and the next step is taken"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(models.MLP), stage=1)
            optimizer = models.sgd(module)
            models.mlp_loss(module, rank, 0)
            with self.assertRaisesRegex(RuntimeError, "no_sync"):
                models.mlp_loss(module, rank, 0)
            harness.train(module, optimizer, models.mlp_loss, rank, 2)
            return harness.slices(module)

        expected = harness.alone(lambda: harness.reference(models.MLP, models.sgd, models.mlp_loss, 2, 2)[1])
        harness.same(harness.whole(harness.ranks(daemon.socket, 2, body)), expected)


def checkpointed(kind: str) -> models.GPT:
    module = models.GPT()
    if kind == "selective":
        keeps = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
        module.wrap = lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=keeps)
    elif kind == "around":
        module.wrap = lambda block, x: checkpoint(block, x, use_reentrant=False)
    else:
        for block in module.blocks:
            forward = block.forward
            block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=kind == "inside reentrant")
    return module


class Checkpoint(unittest.TestCase):
    def test_kinds(self) -> None:
        """activation checkpointing in blocks, reentrant and not, and of some operations; test_nested.py has it around blocks"""
        for kind in ("selective", "inside", "inside reentrant"):
            for world in (1, 2):
                with self.subTest(kind=kind, world=world):
                    compare(daemon.socket, world, lambda: checkpointed(kind), models.adamw, models.gpt_loss, steps=3)

    def test_frozen(self) -> None:
        """checkpointed blocks of which only a bias is trained"""
        def make() -> nn.Module:
            module = checkpointed("around")
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name.endswith("bias"))
            return module

        compare(daemon.socket, 2, make, trained, models.gpt_loss, steps=3)

    def test_sequential(self) -> None:
        """checkpoint_sequential, and the whole model in a checkpoint"""
        def make() -> nn.Module:
            torch.manual_seed(0)
            return nn.Sequential(*[nn.Sequential(nn.Linear(13, 13), nn.Tanh()) for _ in range(4)])

        def sequential(module: nn.Module, rank: int, micro: int) -> Any:
            x = models.numbers(rank, micro, 6, 13).requires_grad_()
            loss = checkpoint_sequential(module, 2, x, use_reentrant=False).square().mean()
            loss.backward()
            return loss.detach()

        def outside(module: nn.Module, rank: int, micro: int) -> Any:
            x = models.numbers(rank, micro, 6, 13).requires_grad_()
            loss = checkpoint(module, x, use_reentrant=micro % 2 == 0).square().mean()
            loss.backward()
            return loss.detach(), x.grad

        for losses in (sequential, outside):
            compare(daemon.socket, 2, make, models.adamw, losses)

    def test_save_on_cpu(self) -> None:
        """other hooks inside a block and around the model; each still gets its tensors"""
        class Offloaded(models.MLP):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = torch.relu(self.first(x))
                for layer in self.layers:
                    with torch.autograd.graph.save_on_cpu():
                        x = x + torch.tanh(layer(x))
                return self.last(x)

        def around(module: nn.Module, rank: int, micro: int) -> Any:
            packed = []

            def pack(tensor: torch.Tensor) -> torch.Tensor:
                packed.append(tensor)
                return tensor.clone()

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = module(models.numbers(rank, micro, 6, 13)).square().mean()
            loss.backward()
            assert packed
            return loss.detach()

        compare(daemon.socket, 2, Offloaded, models.adamw, models.mlp_loss)
        compare(daemon.socket, 2, models.MLP, models.adamw, around)


class Sharing(models.MLP):
    """Blocks use each other's weights, in and outside of their own forwards, by a list and by attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [self.layers[0][0].weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        x = F.linear(x, self.layers[1][0].weight.t(), self.layers[2][0].bias)
        x = x @ self.kept[0] + torch.stack([self.layers[0][1].weight, self.layers[1][1].bias]).sum(0)
        return self.last(x)


def sharing_loss(module: nn.Module, rank: int, micro: int) -> Any:
    loss = module(models.numbers(rank, micro, 6, 13)).square().mean()
    loss = loss + 0.01 * module.layers[2][0].weight.norm() + 0.01 * (module.last.bias * 2).sum()
    loss.backward()
    return loss.detach()


class Unplanned(unittest.TestCase):
    def test_sharing(self) -> None:
        """weights used by other modules, from a list, and outside of any forward"""
        for world in (1, 2):
            counts = compare(daemon.socket, world, Sharing, models.adamw, sharing_loss)
            self.assertGreater(counts[0]["unplanned"], 0)

    def test_lstm(self) -> None:
        """an LSTM, which keeps its weights in a list"""
        class Recurrent(models.MLP):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList([nn.LSTM(37, 37, 2, batch_first=True)])

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.last(self.layers[0](torch.relu(self.first(x))[None])[0][0])

        def flatten(module: nn.LSTM) -> None:
            """As on a GPU with cuDNN: the weights' data is memory of the module's from now on."""
            for weight in module._flat_weights:
                weight.data = weight.detach().clone()

        with mock.patch.object(nn.LSTM, "flatten_parameters", flatten):
            for world in (1, 2):
                compare(daemon.socket, world, Recurrent, models.adamw, models.mlp_loss)

    def test_writes(self) -> None:
        """writing a weight in a forward, also by max_norm: an error that names it on that rank, and no rank takes the step"""
        class Writes(models.MLP):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                with torch.no_grad():
                    self.first.weight.clamp_(-1, 1) if self.how else F.embedding(x.long() % 2, self.last.weight, max_norm=0.1)
                return super().forward(x)

        def body(rank: int) -> None:
            module = harness.shard(Writes(), policy=[])
            for module.how, name in ((True, "first.weight"), (False, "last.weight")):
                with self.assertRaisesRegex(zt.ShardedWrite, f"{name} was written in a forward"):
                    models.mlp_loss(module, rank, 0)
            with self.assertRaisesRegex(ValueError, "sharded already"):
                zt.shard(module)

        harness.ranks(daemon.socket, 2, body)


def trained(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-2)


class Lora(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(4, base.in_features) / 6)
        self.b = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


class Frozen(unittest.TestCase):
    def test_lora(self) -> None:
        """LoRA: frozen weights beside trained ones in each block"""
        def make() -> nn.Module:
            module = models.GPT().requires_grad_(False)
            for block in module.blocks:
                block.qkv = Lora(block.qkv)
                block.down = Lora(block.down)
            return module

        for dtype in (None, torch.bfloat16):
            compare(daemon.socket, 2, make, trained, models.gpt_loss, dtype=dtype)

    def test_encoder(self) -> None:
        """a frozen encoder before a trained head, and frozen blocks behind trained ones"""
        def make(frozen: slice) -> nn.Module:
            module = models.MLP()
            for layer in module.layers[frozen]:
                layer.requires_grad_(False)
            return module

        for frozen in (slice(0, 2), slice(1, 3)):
            compare(daemon.socket, 2, lambda: make(frozen), trained, models.mlp_loss)


class Unfreezing(unittest.TestCase):
    def test_mid_run(self) -> None:
        """layers are frozen and unfrozen between steps, whole ones and single parameters"""
        def make() -> nn.Module:
            module = models.MLP()
            for layer in module.layers:
                layer.requires_grad_(False)
            return module

        def before(module: nn.Module, optimizer: Any) -> None:
            before.step += 1
            if before.step == 1:
                module.layers[1].requires_grad_(True)
            elif before.step == 2:
                module.layers[2][0].weight.requires_grad = True
                module.first.requires_grad_(False)
            elif before.step == 4:
                module.layers[1].requires_grad_(False)

        def losses(module: nn.Module, rank: int, micro: int) -> Any:
            if rank == 0 or hasattr(module, "_zerod_model"):
                before.step = micro
                before(module, None)
            return models.mlp_loss(module, rank, micro)

        before.step = 0
        for dtype in (None, torch.bfloat16):
            compare(daemon.socket, 2, make, models.adamw, losses, steps=6, dtype=dtype)


class Expert(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class MoE(nn.Module):
    def __init__(self, width: int = 37, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = torch.softmax(self.router(x), -1).max(-1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = chosen == i
            if rows.any():
                y = y.index_put((rows.nonzero()[:, 0],), expert(x[rows]))
        return y * weight[:, None]


class Experts(unittest.TestCase):
    def test_nested(self) -> None:
        """experts as blocks in blocks, chosen by each rank on its own"""
        def make() -> nn.Module:
            module = models.MLP()
            for layer in module.layers:
                layer.append(MoE())
            return module

        for policy in (None, [Expert, "Sequential"]):
            for world in (2, 4):
                compare(daemon.socket, world, make, models.adamw, few_rows, steps=6, policy=policy)


    def test_small_buckets(self) -> None:
        """buckets with room for one expert: ranks that wait for each other's skips still come to the same sums"""
        def make() -> nn.Module:
            Steps.bucket_bytes = 24 << 10
            module = models.MLP()
            for layer in module.layers:
                layer.append(MoE())
            return module

        for world in (2, 4):
            compare(daemon.socket, world, make, models.adamw, few_rows, steps=6, policy=[Expert, "Sequential"])


def few_rows(module: nn.Module, rank: int, micro: int) -> Any:
    loss = module(models.numbers(rank, micro, 2, 13)).square().mean()
    loss.backward()
    return loss.detach()


if __name__ == "__main__":
    support.main()
