#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names and hyperparameters in the checkpoints of zt.save(), and how zt.load() uses them."""
from __future__ import annotations

import os
import tempfile
import unittest
import warnings
from functools import partial
from typing import Any, Callable, Optional

import cases
import harness
import models
import torch
import torch.distributed.checkpoint as dcp
from harness import same, support
from torch import nn, optim
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import zerod.torch as zt
from zerod.torch.state import checkpointable

warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # for checkpoints of one process


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


class Counted(nn.Module):
    """A module with extra state that is not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def get_extra_state(self) -> Any:
        return {"seen": list(self.seen)}

    def set_extra_state(self, state: Any) -> None:
        self.seen = list(state["seen"])


class Net(models.GPT):
    """A GPT with tied weights, a buffer, and optionally extra state and wrapped blocks."""

    def __init__(self, tied: bool = True, wrapped: bool = False, counted: bool = False) -> None:
        super().__init__(depth=2, width=8)
        self.register_buffer("scale", torch.ones(3))
        if counted:
            self.counted = Counted()
        if not tied:
            self.head.weight = nn.Parameter(torch.zeros_like(self.tokens.weight))
        for i in range(2 if wrapped else 0):
            self.blocks[i] = checkpoint_wrapper(self.blocks[i])


def groups(module: nn.Module, order: str = "matrices, vectors") -> optim.Optimizer:
    """Each group has hyperparameters of its own."""
    kinds = {"matrices": (0.03, 0.5), "vectors": (0.02, 0.0)}
    return optim.AdamW([{"params": [p for n, p in module.named_parameters() if n.endswith("bias") == (kind == "vectors")],
                         "lr": kinds[kind][0], "weight_decay": kinds[kind][1]} for kind in order.split(", ")])


def rates(module: nn.Module, optimizer: optim.Optimizer) -> Any:
    names = {p: name for name, p in module.named_parameters()}
    return {names[p]: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}


MISFITS: dict[str, Callable[[nn.Module], optim.Optimizer]] = {
    "groups": lambda module: optim.AdamW(module.parameters(), lr=0.01),
    "SGD": lambda module: optim.SGD([{"params": g["params"]} for g in groups(module).param_groups], lr=0.1, momentum=0.9),
}


def carry(write: Callable[[], nn.Module], read: Callable[[], nn.Module], world: Optional[int] = 3) -> list[Any]:
    """Two ranks save, then `world` ranks or a plain process load. Returns saved names and values, and loaded values."""
    def values(module: nn.Module, optimizer: optim.Optimizer) -> Any:
        full = zt.state_dict(module, optimizer, full=True)
        return {n: v for n, v in full["model"].items() if isinstance(v, torch.Tensor)}, full["optimizer"]["state"]

    def save(rank: int) -> Any:
        module = harness.shard(harness.seeded(write))
        optimizer = models.adamw(module)
        harness.train(module, optimizer, models.gpt_loss, rank, 2)
        if hasattr(module, "counted"):
            module.counted.seen = [4, 2]
        zt.save(os.path.join(folder, "save"), module, optimizer)
        names = zt.state_dict(module, optimizer)
        return sorted(names["model"]), sorted(names["optimizer"]["state"]), values(module, optimizer)

    def load(_: int) -> Any:
        module = harness.shard(read())
        optimizer = models.adamw(module)
        zt.load(os.path.join(folder, "save"), module, optimizer)
        return values(module, optimizer), getattr(getattr(module, "counted", None), "seen", None)

    def load_plain() -> Any:
        found = {name: torch.zeros_like(value) for name, value in read().state_dict().items()}
        dcp.load({"model": found}, checkpoint_id=os.path.join(folder, "save"))
        return found

    with tempfile.TemporaryDirectory() as folder:
        saved = cases.gloo(daemon.socket, 2, save)[0]
        return [saved, cases.gloo(daemon.socket, world, load) if world else harness.alone(load_plain)]


@unittest.skipUnless(checkpointable(), "this torch's checkpoints do not ask a tensor for its parts")
class Checkpoints(unittest.TestCase):
    maxDiff = None

    def test_groups(self) -> None:
        """groups in another order receive hyperparameters by name, and other groups or another optimizer are rejected"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(Net))
            optimizer = groups(module)
            models.gpt_loss(module, rank, 0)
            optimizer.step()
            zt.save(folder, module, optimizer)
            full, expected = zt.state_dict(module, optimizer, full=True), rates(module, optimizer)
            wrong = []
            readers = {"load": partial(zt.load, folder), "load_state_dict": lambda m, o: zt.load_state_dict(m, full, o)}
            for how, read in readers.items():
                again = harness.shard(harness.seeded(Net))
                other = groups(again, "vectors, matrices")
                for group in other.param_groups:
                    group.update(lr=1.0, weight_decay=1.0)
                read(again, other)
                wrong += [] if rates(again, other) == expected else [f"{how}: hyperparameters go by the order"]
                for name, make in MISFITS.items():
                    try:
                        read(again, make(again))
                        wrong.append(f"{how}: {name} is not rejected")
                    except BaseException as refused:  # torch's CheckpointException is not an Exception
                        wrong += [] if name in str(refused) else [f"{how}: {name}: {str(refused)[-200:]}"]
            return wrong

        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(cases.gloo(daemon.socket, 2, body), [[], []])

    def test_extra_state(self) -> None:
        """a checkpoint contains get_extra_state() of modules, and set_extra_state() receives it"""
        saved, read = carry(partial(Net, counted=True), partial(Net, counted=True))
        for values, seen in read:
            same(values, saved[2])
            self.assertEqual(seen, [4, 2])

    def test_extra(self) -> None:
        """zt.save() has what each rank adds, also under names of its own"""
        def body(rank: int) -> Any:
            module = harness.shard(Net())
            zt.save(folder, module, **{f"of{rank}": torch.full((3,), rank + 1)})
            return zt.load(folder, module, of0=torch.zeros(3, dtype=torch.int64), of1=torch.zeros(3, dtype=torch.int64))

        with tempfile.TemporaryDirectory() as folder:
            same(cases.gloo(daemon.socket, 2, body), [{f"of{rank}": torch.full((3,), rank + 1) for rank in range(2)}] * 2)

    def test_tied(self) -> None:
        """a checkpoint contains both names of a tied weight, and a plain module without the tie reads it"""
        saved, read = carry(Net, Net)
        for values, _ in read:
            same(values, saved[2])
        self.assertEqual(set(saved[0]) & {"tokens.weight", "head.weight"}, {"tokens.weight", "head.weight"})
        saved, read = carry(Net, partial(Net, tied=False), world=None)
        same(read, saved[2][0])

    def test_wrapped(self) -> None:
        """names do not depend on checkpoint_wrapper(), and models with and without it read the same checkpoint"""
        expected = sorted(Net().state_dict())
        for write, read in ((True, False), (False, True)):
            saved, results = carry(partial(Net, wrapped=write), partial(Net, wrapped=read))
            self.assertEqual(saved[0], expected)
            self.assertEqual([name for name in saved[1] if "wrapped" in name], [])
            for values, _ in results:
                same(values, saved[2])


if __name__ == "__main__":
    support.main()
