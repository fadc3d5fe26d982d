#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch's own state dicts of sharded models and of their optimizers, in checkpoints for any number of ranks."""
from __future__ import annotations

import copy
import io
import tempfile
import unittest
import warnings
from functools import partial
from typing import Any, Callable

import cases
import harness
import models
import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
from cases import Program, state, whole
from harness import same, support
from torch import nn, optim
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_optimizer_state_dict,
                                                     get_state_dict, set_state_dict)

from zerod.torch.state import checkpointable

warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # for checkpoints of one process
Pair = tuple[nn.Module, optim.Optimizer]


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


def small() -> nn.Module:
    """With a tied weight."""
    module = models.GPT(depth=2, width=8)
    module.register_buffer("scale", torch.ones(3))
    return module


def pair(sharded: bool = True, make: Callable[[], nn.Module] = small, steps: int = 0, rank: int = 0) -> Pair:
    module = harness.shard(harness.seeded(make)) if sharded else harness.seeded(make).to(models.DEVICE)
    optimizer = optim.AdamW(module.parameters(), lr=1e-2, eps=1e-3)  # some gradients are rounding errors only
    harness.train(module, optimizer, models.gpt_loss, rank, steps)
    return module, optimizer


def zeros() -> nn.Module:
    module = small()
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


def found(module: nn.Module, optimizer: optim.Optimizer) -> Any:
    """The whole parameters and buffers, and the optimizer's state by names. Every rank calls it."""
    tensors, kept = state(module), {}
    for name, parameter in module.named_parameters():
        kept[name] = whole(dict(optimizer.state.get(parameter, {})))
        for key, value in kept[name].items():
            shapes = tuple(value.shape), tuple(tensors[name].shape)
            assert shapes[0] in ((), shapes[1]), f"{key} of {name} has the shape {shapes[0]} in place of {shapes[1]}"
    return tensors, kept


def continued(module: nn.Module, optimizer: optim.Optimizer) -> Any:
    """Trains two further steps, with the same batches on all ranks."""
    optimizer.zero_grad()
    harness.train(module, optimizer, lambda module, _, step: models.gpt_loss(module, 7, step), 0, 2)
    return found(module, optimizer)


def loaded(path: str, module: nn.Module, optimizer: optim.Optimizer) -> None:
    kept = dict(zip(("model", "optimizer"), get_state_dict(module, optimizer)))
    dcp.load(kept, checkpoint_id=path)
    set_state_dict(module, optimizer, model_state_dict=kept["model"], optim_state_dict=kept["optimizer"])


@unittest.skipUnless(checkpointable(), "this torch's checkpoints do not ask a tensor for its parts")
class OfTorch(unittest.TestCase):
    """get_state_dict() and set_state_dict(), of torch.distributed.checkpoint.state_dict."""

    def test_checkpoints(self) -> None:
        """two ranks write, by save() and by async_save() while they train; 3, 2, 1 and a plain process read"""
        def write(rank: int) -> Any:
            module, optimizer = pair(steps=3, rank=rank)
            kept = dict(zip(("model", "optimizer"), get_state_dict(module, optimizer)))
            dcp.save(kept, checkpoint_id=folder + "/sync")
            before = found(module, optimizer)
            written = dcp.async_save(kept, checkpoint_id=folder + "/async",
                                     process_group=torch.distributed.new_group(backend="gloo"))
            continued(module, optimizer)
            getattr(written, "upload_completion", written).result()
            return before

        def read(kind: str, sharded: bool, rank: int = 0) -> Any:
            module, optimizer = pair(sharded, zeros)
            loaded(f"{folder}/{kind}", module, optimizer)
            return found(module, optimizer), continued(module, optimizer)

        with tempfile.TemporaryDirectory() as folder:
            expected = cases.gloo(daemon.socket, 2, write)[0]
            for kind in ("sync", "async"):
                plain = harness.alone(partial(read, kind, False))
                same(plain[0], expected, f"{kind}, a plain process: ")
                for world in (3, 2, 1):
                    for seen, after in cases.gloo(daemon.socket, world, partial(read, kind, True)):
                        same(seen, expected, f"{kind}, {world} ranks: ")
                        cases.close(after, plain[1])

    def test_full(self) -> None:
        """full state dicts, on the device and on the CPU, and into a sharded model again"""
        def body(rank: int) -> Any:
            module, optimizer = pair(steps=2, rank=rank)
            made = []
            for cpu in (False, True):
                options = StateDictOptions(full_state_dict=True, cpu_offload=cpu)
                made.append((dict(get_model_state_dict(module, options=options)),
                             get_optimizer_state_dict(module, optimizer, options=options)["state"]
                             if rank == 0 or not cpu else get_optimizer_state_dict(module, optimizer, options=options)))
            again, other = pair(make=zeros)
            full = StateDictOptions(full_state_dict=True)
            model_state, optimizer_state = get_state_dict(module, optimizer, options=full)
            set_state_dict(again, other, model_state_dict=model_state, optim_state_dict=optimizer_state, options=full)
            return made, found(module, optimizer), found(again, other)

        results = cases.gloo(daemon.socket, 2, body)
        for rank, (made, expected, again) in enumerate(results):
            same(again, expected, f"set, rank {rank}: ")
            for cpu, (tensors, kept) in enumerate(made):
                if rank and cpu:  # torch returns them on rank 0 only
                    self.assertIn((tensors, kept), (({}, {}), ({}, {"state": {}})))
                    continue
                same((tensors, kept), expected, f"full, rank {rank}, cpu_offload={bool(cpu)}: ")


def reloaded(how: str, program: Program) -> Any:
    """Loads one optimizer's state_dict() into another one on the same ranks."""
    module = program.shard(cases.Table)
    optimizers = [optim.AdamW(module.parameters(), lr=0.05), optim.AdamW(module.parameters(), lr=0.01)]
    for optimizer in optimizers:
        for step in range(2):
            program.backward(lambda rank: module(10 * step + rank))
            harness.step_with(optimizer)
            optimizer.zero_grad()
        kept = optimizer.state_dict()
        if how == "saved":
            file = io.BytesIO()
            torch.save(kept, file)
            kept = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        optimizers[1].load_state_dict(copy.deepcopy(kept) if how == "copied" else kept)
    kept = [whole(dict(optimizers[1].state[p])) for p in module.parameters()]
    return state(module), kept, optimizers[1].param_groups[0]["lr"]


class OfOptimizers(unittest.TestCase):
    def test_own(self) -> None:
        """an optimizer's own state_dict() into another optimizer of the same ranks"""
        for world in (1, 2):
            with self.subTest(world=world):
                cases.check(daemon.socket, world, {how: partial(reloaded, how) for how in ("as it is", "copied", "saved")})

if __name__ == "__main__":
    support.main()
