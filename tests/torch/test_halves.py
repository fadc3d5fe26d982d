#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""zerod.torch's optimizers, with masters in two halves: beside the same arithmetic in one process, and torch's optimizers."""
from __future__ import annotations

import copy
import os
import tempfile
import threading
import unittest
from contextlib import nullcontext
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any, Optional
from unittest import mock

import harness
import models
import torch
from harness import compare, same, support
from torch import nn

import zerod
import zerod.torch as zt
import zerod.torch.optimizers
from zerod.torch.overlap import OnDevice


STAGE_1: Any = () if harness.OPTIONS.get("offload") else ({"stage": 1, "empty": False},)


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena=harness.ARENA, host_arena="64M").for_module()


class Reference(torch.optim.Optimizer):
    """docs/optimizer.md, by operations of torch that round one by one."""

    def __init__(self, params: Any, rule: str, **numbers: Any) -> None:
        self.rule = rule
        super().__init__(params, {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "maximize": False, "momentum": 0.9,
                                  "dampening": 0.0, "nesterov": False, **numbers})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["step"] = state.get("step", 0) + 1
                    (self.sgd if self.rule == "SGD" else self.adam)(p, -p.grad if group["maximize"] else p.grad, state, group)

    def adam(self, p: torch.Tensor, g: torch.Tensor, state: Any, group: Any) -> None:
        (beta1, beta2), lr, decay = group["betas"], float(group["lr"]), group["weight_decay"]
        m, v = state.setdefault("m", torch.zeros_like(p)), state.setdefault("v", torch.zeros_like(p))
        apart = self.rule == "AdamW"
        g = g + p * (0.0 if apart else decay)
        m.copy_(m * beta1 + g * (1 - beta1))
        v.copy_(v * beta2 + (g * g) * (1 - beta2))
        # In double, as torch's own square root of a float32 is off by a bit at times. torch multiplies by 1 / a number.
        root = v.double().sqrt().float() / torch.full_like(v, (1 - beta2 ** state["step"]) ** 0.5) + group["eps"]
        p.copy_(p * (1 - lr * decay if apart else 1) - (m / root) * (lr / (1 - beta1 ** state["step"])))

    def sgd(self, p: torch.Tensor, g: torch.Tensor, state: Any, group: Any) -> None:
        g = g + p * group["weight_decay"]
        m = state["m"] * group["momentum"] + g * (1 - group["dampening"]) if "m" in state else g.clone()
        state["m"] = m
        p.copy_(p - (g + m * group["momentum"] if group["nesterov"] else m) * float(group["lr"]))

    @staticmethod
    def rounded(masters: torch.Tensor) -> torch.Tensor:
        """To the nearest bfloat16, halfway cases away from zero."""
        bits = masters.detach().view(torch.int32)
        return ((bits + 0x8000) & ~0xffff).view(torch.float32)


def optimizer(rule: str, module: nn.Module, in_backward: bool = False, **numbers: Any) -> torch.optim.Optimizer:
    """The sharded module's, or the one process's."""
    groups = [{"params": [p for p in module.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in module.parameters() if p.dim() <= 1], "lr": 3e-3, "weight_decay": 0.0}]
    if hasattr(module, "_zerod_model"):
        return getattr(zt, rule)(groups, in_backward=in_backward, **numbers)
    return Reference(groups, rule, **numbers)


class Halves(unittest.TestCase):
    def test_adamw(self) -> None:
        """AdamW equals one process bit by bit, float32 and bfloat16, on 1, 2 and 4 ranks, with slots, stages, persistent units"""
        each: Any = ({}, {"slots": True}, {"stage": 2}, {"persist_below": 1000}, {"accumulate": 2}, *STAGE_1)
        for world, dtype, options in harness.combined((1, 2, 4), (None, torch.bfloat16), each):
            with self.subTest(world=world, dtype=dtype, **options):
                compare(daemon.socket, world, models.GPT, partial(optimizer, "AdamW", lr=1e-2), models.gpt_loss, dtype=dtype, **options)

    def test_written_behind_the_step(self) -> None:
        """a hook of the optimizer's that writes weights, whose units are published by then"""
        def clamp(made: Any, *_: Any) -> None:
            with torch.no_grad():
                for group in made.param_groups:
                    for p in group["params"]:
                        p.clamp_(-0.01, 0.01)

        def make(module: nn.Module, in_backward: bool = False) -> Any:
            made = optimizer("AdamW", module, in_backward=in_backward, lr=1e-2)
            made.register_step_post_hook(clamp)
            return made

        for in_backward in (False, True):
            for dtype in (None, torch.bfloat16):
                with self.subTest(in_backward=in_backward, dtype=dtype):
                    compare(daemon.socket, 2, models.GPT, partial(make, in_backward=in_backward), models.gpt_loss, dtype=dtype)

    def test_rules(self) -> None:
        """Adam, and SGD with momentum"""
        for rule, numbers in (("Adam", {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-3, "maximize": True}),
                              ("SGD", {"lr": 1e-2, "momentum": 0.9, "nesterov": True}),
                              ("SGD", {"lr": 1e-2, "momentum": 0.5, "dampening": 0.25, "maximize": True})):
            for dtype in (None, torch.bfloat16):
                with self.subTest(rule=rule, dtype=dtype, **numbers):
                    compare(daemon.socket, 2, models.MLP, partial(optimizer, rule, **numbers), models.mlp_loss, dtype=dtype)

    def test_in_backward(self) -> None:
        """the same bits where it runs in the backward"""
        every: Any = ({}, {"slots": True}, {"stage": 2}, {"persist_below": 1000}, *STAGE_1)
        for world, options in ((1, {}), (4, {}), *((2, each) for each in every)):
            for dtype in (None, torch.bfloat16):
                with self.subTest(world=world, dtype=dtype, **options), \
                        mock.patch("zerod.torch.gradients._BUCKET_BYTES", 256):  # slots of the largest unit
                    compare(daemon.socket, world, models.GPT, partial(optimizer, "AdamW", lr=1e-2, in_backward=True),
                            models.gpt_loss, dtype=dtype, **options)

    def test_held(self) -> None:
        """the same bits where a block holds each second unit whose terms are there: its sum is made, and its update waits"""
        begin, calls = OnDevice._begin, count()

        def busy(overlap: Any, unit: Any, written: Any, waits: bool = True) -> None:
            if not waits and next(calls) % 2:
                raise zerod.InvalidState(zerod.structs.Status.BUSY, "held")
            begin(overlap, unit, written, waits)

        for dtype in (None, torch.bfloat16):
            with self.subTest(dtype=dtype), mock.patch.object(OnDevice, "_begin", busy), \
                    mock.patch("zerod.torch.gradients._BUCKET_BYTES", 256):
                compare(daemon.socket, 2, models.GPT, partial(optimizer, "AdamW", lr=1e-2, in_backward=True), models.gpt_loss, dtype=dtype)

    def test_room(self) -> None:
        """slots of one unit: a rank that leaves out a layer, no_sync(), weights of the root. The weights are those of an update from sums"""
        class Layers(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
                self.scale = nn.Parameter(torch.ones(64, 64))

            def forward(self, x: torch.Tensor, layers: int) -> torch.Tensor:
                for layer in self.layers[:layers]:
                    x = torch.tanh(layer(x))
                return x @ self.scale

        def body(rank: int, case: str, terms: bool) -> list[torch.Tensor]:
            lends = OnDevice.lends if terms else lambda *_: False
            with mock.patch("zerod.torch.gradients._BUCKET_BYTES", 256), mock.patch.object(OnDevice, "lends", lends):
                module = harness.shard(harness.seeded(Layers), param_dtype=torch.bfloat16)
                made = zt.AdamW(module.parameters(), lr=1e-2, in_backward=True)
                for _ in range(3):
                    with zt.no_sync(module) if case == "no_sync" else nullcontext():
                        layers = 8 - rank if case == "layers" else 8
                        module(torch.ones(4, 64, requires_grad=True), layers).square().mean().backward()
                    made.step()
                    made.zero_grad()
                with zt.full_parameters(module):
                    return [parameter.detach().clone() for parameter in module.parameters()]

        for case in ("layers", "no_sync", "root"):
            with self.subTest(case=case), mock.patch.dict(os.environ, ZEROD_POISON="0"):  # shards in the gathered buffers
                terms, sums = (harness.ranks(daemon.socket, 2, partial(body, case=case, terms=terms)) for terms in (True, False))
                same(terms, sums)

    def test_offload(self) -> None:
        """the same bits in host memory, by threads of the CPU, in step() and in the backward"""
        each: Any = ({"offload": "params"}, {"offload": "optimizer"}, {"offload": "all", "device_budget": 3000})
        worlds = ((1, False), (1, True), (2, False), (2, True), (4, False))
        for (world, in_backward), options, dtype in harness.combined(worlds, each, (None, torch.bfloat16)):
            with self.subTest(world=world, in_backward=in_backward, dtype=dtype, **options), \
                    mock.patch.multiple(zerod.torch.optimizers, _PIECE=64, _thread_count=lambda: 3), \
                    mock.patch("zerod.torch.updates.PORTION_BYTES", 1):
                compare(daemon.socket, world, models.GPT, partial(optimizer, "AdamW", lr=1e-2, in_backward=in_backward),
                        models.gpt_loss, dtype=dtype, **options)

    def test_interrupted(self) -> None:
        """a signal handler that raises while other threads of the CPU update: the step raises when they have ended"""
        class Queue:
            """The handler raises in the first wait, and the threads continue with the second one."""

            def __init__(self) -> None:
                self.queue: "SimpleQueue[Any]" = SimpleQueue()
                self.put, self.waits = self.queue.put, count()

            def get(self) -> Any:
                if not next(self.waits):
                    raise KeyboardInterrupt
                released.set()
                return self.queue.get()

        def body(_: int) -> Any:
            def update(*args: Any) -> None:
                is_main = threading.current_thread() is threading.main_thread()
                if not is_main:
                    started.append(None)
                    released.wait(60)
                optimizer_update(*args)
                if not is_main:
                    ended.append(None)

            module = harness.shard(models.MLP(), offload="all", param_dtype=torch.bfloat16)
            adamw, group = optimizer("AdamW", module), zt.model_of(module).group
            harness.train(module, adamw, models.mlp_loss, 0, 1)
            optimizer_update, group.optimizer_update = group.optimizer_update, update
            adamw.zero_grad()
            models.mlp_loss(module, 0, 1)
            with mock.patch.multiple(zerod.torch.optimizers, _PIECE=1 << 20, _thread_count=lambda: 3, SimpleQueue=Queue):
                try:
                    adamw.step()
                except KeyboardInterrupt:
                    found = 0 < len(started) == len(ended)
            released.set()
            return found

        released = threading.Event()
        started: list[None] = []
        ended: list[None] = []
        self.assertEqual(harness.ranks(daemon.socket, 1, body), [True])

    def test_unfrozen(self) -> None:
        """a block that is frozen at first joins the optimizer in the backward, on the device and in host memory"""
        for offload in (None, "params", "optimizer"):
            with self.subTest(offload=offload):
                compare(daemon.socket, 2, models.partly_frozen, partial(optimizer, "AdamW", lr=1e-2, in_backward=True),
                        models.freezing_loss, steps=6, dtype=torch.bfloat16, offload=offload)

    def test_many(self) -> None:
        """more runs of elements than one call takes, by one thread of the CPU; a state that the program has cleared"""
        class Many(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.each = nn.ParameterList(torch.ones((2, 1) if number % 2 else 2) for number in range(2200))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * torch.stack([each.flatten() for each in self.each]).square().sum(0)

        def losses(module: nn.Module, rank: int, micro: int) -> torch.Tensor:
            loss = module(models.numbers(rank, micro, 4, 2)).square().mean()
            loss.backward()
            return loss.detach()

        compare(daemon.socket, 1, Many, partial(optimizer, "AdamW", lr=1e-2), losses, steps=3,
                before_step=lambda module, made: made.state.clear(), offload="params")

    def test_no_sums(self) -> None:
        """behind a backward with its optimizer no sum is there"""
        def body(rank: int, kept: "Optional[list[tuple[int, int]]]" = None) -> tuple[int, int]:
            in_backward = kept is not None
            module = harness.shard(harness.seeded(models.MLP), param_dtype=torch.bfloat16, offload=None)
            model = zt.model_of(module)
            optimizer("AdamW", module, in_backward)
            models.mlp_loss(module, rank, 0)
            model.gradients.fetcher.drain()
            model.gradients.complete_end()  # buckets have gone
            model.group.barrier()
            if in_backward:
                units = zt.summary(module).units
                self.assertEqual(units, zt.plan(models.MLP(), 2, param_dtype=torch.bfloat16, halves=True, in_backward=True).units)
                self.assertEqual(sum(unit.device for unit in units), 12 * sum(unit.weights for unit in units) // 2)
                with_sums, sums = kept[rank]
                support.until(lambda: model.client.device(model.device_index).allocated_bytes <= with_sums - sums)
            return model.client.device(model.device_index).allocated_bytes, 4 * sum(unit.shard.true_numel for unit in model.units)

        kept = harness.ranks(daemon.socket, 2, body)
        harness.ranks(daemon.socket, 2, partial(body, kept=kept))

    def test_torch(self) -> None:
        """50 steps are those of torch.optim.AdamW, but for roundings; checkpoints go from one to the other"""
        def body(rank: int, kinds: Any) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            saved, seen = None, []
            for kind in kinds:
                made = kind(module.parameters(), lr=1e-3, eps=1e-4)
                if saved is not None:
                    for state in saved["state"].values():
                        state["step"] = int(state["step"])  # as torch before 1.12
                    made.load_state_dict(saved)
                for step in range(25):
                    made.zero_grad()
                    models.mlp_loss(module, rank, step)
                    made.step()
                saved = copy.deepcopy(made.state_dict())
                seen.append({key: value.whole() if hasattr(value, "whole") else value for key, value in module.state_dict().items()})
            return seen

        ours, theirs = zt.AdamW, torch.optim.AdamW
        expected = harness.ranks(daemon.socket, 2, lambda rank: body(rank, (theirs, theirs)))[0]
        for kinds in ((ours, ours), (ours, theirs), (theirs, ours)):
            found = harness.ranks(daemon.socket, 2, lambda rank: body(rank, kinds))[0]
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)

    def train(self, between: Any, steps: int = 3, before: Any = lambda module: None) -> Any:
        """Masters after steps of a bfloat16 MLP, on all of two ranks, with something between two steps."""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(models.MLP), param_dtype=torch.bfloat16)
            made = zt.AdamW(module.parameters(), lr=1e-2)
            before(module)
            masters = [unit.master.untyped_storage() for unit in module._zerod_model.units]
            alone, uses = torch.empty(1).untyped_storage(), torch._C._storage_Use_Count
            seen = []
            for step in range(steps):
                made.zero_grad()
                models.mlp_loss(module, rank, step)
                made.step()
                assert all(uses(each._cdata) == uses(alone._cdata) for each in masters), "masters in float32 have memory"
                seen.append(between(module, made, step))
            module._zerod_model.settle()
            assert all(unit.master is None for unit in module._zerod_model.units), "masters in float32 stay"
            return seen, harness.slices(module)

        results = harness.ranks(daemon.socket, 2, body)
        return results[0][0], harness.whole([result[1] for result in results])

    def test_reads(self) -> None:
        """parameters show their masters; tensors over them, which the program keeps, show those of later steps"""
        def read(module: nn.Module, made: Any, step: int) -> Any:
            kept.append(module.last.weight.data)
            result = [float(p.norm()) for p in module.parameters()], [each.whole() for each in kept]
            with torch.no_grad():
                module(torch.ones(2, 13).bfloat16())  # the masters in float32 go
            return result

        kept: list[Any] = []
        seen, masters = self.train(read, before=lambda module: kept.append(module.last.weight.detach()))
        for norms, shown in seen:
            same(shown, [shown[-1]] * len(shown))
        same(seen[-1][1][-1].flatten().cpu(), masters["last.weight"])
        self.assertNotEqual(float(masters["last.weight"].bfloat16().float().sub(masters["last.weight"]).abs().max()), 0.0)

    def test_writes(self) -> None:
        """writes between steps, and loads, are writes of masters"""
        def write(module: nn.Module, made: Any, step: int) -> None:
            if step == 1:
                with torch.no_grad():
                    for p in module.parameters():
                        p.fill_(1.0 + 2.0**-20)
            elif step == 2:
                module.load_state_dict({key: torch.full(value.shape, 2.0**-30 - 3) for key, value in module.state_dict().items()})
                with torch.no_grad():
                    module(torch.ones(2, 13).bfloat16())

        masters = self.train(write)[1]
        for name, values in masters.items():
            self.assertEqual(set(values.tolist()), {float(torch.tensor(2.0**-30 - 3))}, name)
        filled = self.train(lambda module, made, step: write(module, made, min(step, 1)), steps=2)[1]
        self.assertEqual({value for values in filled.values() for value in values.tolist()}, {1.0 + 2.0**-20})

    def test_others(self) -> None:
        """beside another optimizer, for other parameters of the same units"""
        class Both:
            """One optimizer for matrices, another for vectors."""

            def __init__(self, module: nn.Module) -> None:
                sharded = hasattr(module, "_zerod_model")
                matrices, vectors = ([p for p in module.parameters() if (p.dim() > 1) == wanted] for wanted in (True, False))
                self.each = [zt.AdamW(matrices, lr=1e-2) if sharded else Reference(matrices, "AdamW", lr=1e-2, weight_decay=1e-2),
                             torch.optim.SGD(vectors, lr=1e-2, foreach=False)]
                self.rounded = Reference.rounded

            def zero_grad(self) -> None:
                for each in self.each:
                    each.zero_grad()

            def step(self) -> None:
                for each in self.each:
                    each.step()

        for dtype in (None, torch.bfloat16):
            compare(daemon.socket, 2, models.MLP, Both, models.mlp_loss, dtype=dtype)

    def test_clipping(self) -> None:
        """clipping, some gradients of a unit read behind it, and a scheduler"""
        def clipped(module: nn.Module, made: Any) -> None:
            zt.clip_grad_norm_(module, 0.1) if hasattr(module, "_zerod_model") else nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            for parameter in list(module.parameters())[::2]:
                self.assertLess(float(parameter.grad.norm()), 0.11)
            for group in made.param_groups:
                group["lr"] *= 0.5

        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(models.MLP), param_dtype=torch.bfloat16)
            return harness.train(module, optimizer("AdamW", module, lr=1e-2), models.mlp_loss, rank, 3, before_step=clipped)

        expected = harness.alone(lambda: harness.reference(models.MLP, partial(optimizer, "AdamW", lr=1e-2), models.mlp_loss, 2, 3,
                                                           dtype=torch.bfloat16, before_step=clipped)[0])
        torch.testing.assert_close(harness.ranks(daemon.socket, 2, body), expected, rtol=1e-5, atol=1e-6)

    def test_scaler(self) -> None:
        """a GradScaler's overflow on one rank skips the step on all"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(models.MLP), param_dtype=torch.bfloat16)
            made, scaler = zt.AdamW(module.parameters(), lr=1e-2), torch.amp.GradScaler(models.DEVICE, init_scale=1024.0)
            for step in range(3):
                made.zero_grad()
                loss = module(models.numbers(rank, step, 6, 13).bfloat16()).square().mean()
                scaler.scale(loss * float("inf") if step == 1 and rank == 1 else loss).backward()
                scaler.step(made)
                scaler.update()
            return scaler.get_scale(), {float(made.state[p]["step"]) for p in module.parameters()}

        same(harness.ranks(daemon.socket, 2, body), [(512.0, {2.0})] * 2)

    def test_checkpoint(self) -> None:
        """zt.save() and zt.load() keep every bit; summary() counts the halves"""
        with tempfile.TemporaryDirectory() as folder:
            def body(rank: int, first: int, last: int) -> Any:
                torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store{first}{last}", rank=rank, world_size=2)
                module = harness.shard(harness.seeded(models.MLP), param_dtype=torch.bfloat16)
                made = zt.AdamW(module.parameters(), lr=1e-2)
                if first:
                    zt.load(folder + "/save", module, made)
                for step in range(first, last):
                    made.zero_grad()
                    models.mlp_loss(module, rank, step)
                    made.step()
                if last == 2:
                    zt.save(folder + "/save", module, made)
                self.assertEqual(zt.summary(module).units, zt.plan(models.MLP(), 2, param_dtype=torch.bfloat16, halves=True,
                                                                   offload=harness.OPTIONS.get("offload")).units)
                torch.distributed.destroy_process_group()
                return harness.slices(module)

            expected, _, found = [harness.whole(harness.ranks(daemon.socket, 2, lambda rank: body(rank, *steps)))
                                  for steps in ((0, 4), (0, 2), (2, 4))]
            same(found, expected)

    def test_wrong(self) -> None:
        """what it is not for raises, and says what is"""
        def body(rank: int) -> Any:
            module = harness.shard(nn.Linear(8, 8))
            half = harness.shard(nn.Linear(8, 8), param_dtype=torch.float16, offload="optimizer")
            texts = []
            for kind, parameters, numbers in ((ValueError, nn.Linear(2, 2).parameters(), {}), (NotImplementedError, half.parameters(), {}),
                                              (ValueError, module.parameters(), {"lr": -1}), (ValueError, module.parameters(), {"betas": (1, 0)})):
                try:
                    zt.AdamW(parameters, **numbers)
                except kind as raised:
                    texts.append(str(raised))
            made = zt.AdamW(module.parameters())
            with self.assertRaisesRegex(ValueError, "call shard"):
                made.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
            module(torch.ones(1, 8)).sum().backward()
            made.param_groups[0]["amsgrad"] = True
            try:
                made.step()
            except NotImplementedError as raised:
                texts.append(str(raised))
            made.param_groups[0]["amsgrad"] = False
            made.add_param_group({"params": [made.param_groups[0]["params"].pop()], "lr": float("nan")})
            before = module.weight.read_local().clone()
            with self.assertRaisesRegex(zerod.InvalidArgument, "lr is nan"):
                made.step()
            self.assertTrue(torch.equal(module.weight.read_local(), before))
            zt.abandon(module)
            return texts

        texts = harness.ranks(daemon.socket, 2, body)[0]
        for text, wanted in zip(texts, ("call shard\\(\\) first", "float16.*torch.optim.AdamW", "lr=-1", "betas", "amsgrad")):
            self.assertRegex(text, wanted)
        self.assertEqual(len(texts), 5)


if __name__ == "__main__":
    support.main()
