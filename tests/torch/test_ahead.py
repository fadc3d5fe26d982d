#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far a program's CPU can run ahead: which calls of libzerod that may block a step makes before the optimizer's.

Counted, not timed: every call of the library is recorded by its name and arguments.
"""
from __future__ import annotations

import re
import sys
import unittest
from collections import Counter
from typing import Any, Callable, Optional
from unittest import mock

import harness
import models
import test_autograd
import torch
import torch.nn.functional as F
from harness import same, support
from torch import nn

import zerod
import zerod.torch as zt
from zerod import library, structs as s
from zerod.torch import gradients, layout, updates
from zerod.torch.pace import Pace


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena=harness.ARENA).for_module()


# The section "Calls that block" of zerod.h: those that a ticket keeps from waiting, and the others.
WITHOUT_TICKET = frozenset("group_barrier unit_load step_begin update_begin release publish publish_from "
                           "backward_end".split())
ALWAYS = frozenset("""
    group_join group_get group_agree unit_place commit unit_register alloc wait gather context_begin backward_begin bucket_reserve
    reduce forward_end claim_end context_end backward_abandon unit_unregister group_leave trim session_reset connect
    group_unique_id unique_id step_get step_norms_get reduce_wait stream_synchronize stream_destroy close
""".split())
WITHOUT_DAEMON = ("mapping_retain", "mapping_release", "dlpack_new", "dlpack_free")  # of tensors' memory, as they are made and collected
_DETACHED = int(s.ReleaseFlags.DETACHED)
_DETACHABLE = (s.ReleaseOptions, s.ReduceOptions, s.SkipOptions)


class Recorder:
    """Puts itself before every function of the library, in all modules that have taken it from `calls`."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.tickets: dict[int, str] = {}  # the call that each ticket is of
        wrapped = {id(function): self._wrap(name, function) for name, function in vars(library.calls).items()
                   if name not in WITHOUT_DAEMON}
        places = [vars(module) for name, module in sys.modules.items() if name.split(".")[0] == "zerod"]
        for place in [vars(library.calls), *places]:
            place.update({key: wrapped[id(value)] for key, value in place.items() if id(value) in wrapped})

    def _wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        has_ticket = name != "wait_many" and library._FUNCTIONS[name][1][-1:] == [library._TICKET]

        def call(*args: Any) -> Any:
            self.made.append(self._describe(name, args, has_ticket))
            result = function(*args)
            if has_ticket and args[-1] is not None:
                ticket = getattr(args[-1], "_obj", args[-1])
                self.tickets[ticket.value] = name
            return result

        return call

    def _describe(self, name: str, args: Any, has_ticket: bool) -> str:
        """The call's name; a wait's with the call that it waits for, and with "a stream" where it gives one."""
        if name == "wait":
            return f"wait for {self.tickets[args[1]]}" + " on a stream" * (args[2] is not None)
        detached = any(isinstance(arg, _DETACHABLE) and arg.flags & _DETACHED for arg in args)
        if name in WITHOUT_TICKET and not (has_ticket and args[-1] is not None) and not detached:
            return name + " without a ticket"
        return name


def train(rank: int, make: Callable[[], nn.Module], micro_batches: int, no_sync: bool, dtype: Optional[torch.dtype],
          **options: Any) -> Any:
    """The calls of the fourth step before optimizer.step(), and what the model has counted in it."""
    recorder = Recorder()
    module = harness.shard(harness.seeded(make), param_dtype=dtype, **options)
    model = module._zerod_model
    optimizer = models.adamw(module)
    for step in range(4):
        recorder.made.clear()
        gathers = model.counts.gathers
        optimizer.zero_grad()
        for micro in range(micro_batches):
            if no_sync and micro < micro_batches - 1:
                with zt.no_sync(module):
                    models.gpt_loss(module, rank, micro)
            else:
                models.gpt_loss(module, rank, micro)
        made, gathered = Counter(recorder.made), model.counts.gathers - gathers
        recorder.made.clear()
        optimizer.step()
        stepped = Counter(recorder.made)
    return made, stepped, gathered, len(model.trainable), model.environment.host


class Ahead(unittest.TestCase):
    def check(self, make: Callable[[], nn.Module] = models.GPT, micro_batches: int = 1, no_sync: bool = False,
              dtype: Optional[torch.dtype] = None, **options: Any) -> None:
        for world in (1, 2):
            reduced = 0 if world == 1 else 1 if no_sync else micro_batches
            results = harness.ranks(daemon.socket, world, lambda rank: train(rank, make, micro_batches, no_sync, dtype,
                                                                              **options))
            for made, stepped, gathers, units, host in results:
                # A gather has to have an address, an entry room in the bucket, a backward a target.
                wanted = {"wait for gather_begin" + " on a stream" * (not host): gathers, "gather_begin": gathers, "release": gathers}
                if reduced:
                    wanted |= {"backward_begin": reduced, "bucket_reserve": units * reduced, "bucket_submit": units * reduced,
                               "backward_end": reduced}
                if reduced > 1:  # a backward begins when the one before has ended
                    wanted["wait for backward_end"] = reduced - 1
                packets = {name: made.pop(name) for name in ("cork", "uncork")}
                self.assertEqual(packets["cork"], packets["uncork"])
                self.assertEqual(dict(made), wanted)
                self.check_step(stepped, host, world)

    def check_step(self, stepped: "Counter[str]", host: bool, world: int) -> None:
        """The stream waits for sums. The caller waits for other ranks once, for their word that their optimizers ran."""
        for name in ("step_begin", "update_begin") if world > 1 else ("update_begin",):
            wait = f"wait for {name}" + " on a stream" * (not host)
            self.assertEqual((stepped.pop(name), stepped.pop(wait)), (1, 1))
        self.assertEqual(stepped.pop("publish", 0) + stepped.pop("publish_from", 0), 1)
        self.assertEqual(stepped.pop("group_agree", 0), int(world > 1))
        self.assertLessEqual(set(stepped), {"target_get", "step_end"})

    def test_header(self) -> None:
        """the calls that block are those of zerod.h, section "Calls that block\""""
        header = (support.ROOT / "include" / "zerod.h").read_text()
        section = header.split(" * Calls that block\n")[1].split("*/")[0].replace("\n *", " ")
        named = re.sub(r"\(see\s+zerod_gather_begin\(\)", "", section)
        found = {name for name in re.findall(r"zerod_(\w+)", named)}
        self.assertEqual(found, ALWAYS | WITHOUT_TICKET)
        self.assertEqual(set(re.findall(r"zerod_(\w+) \[t\]", section)), set(WITHOUT_TICKET))
        self.assertLessEqual(found, set(library._FUNCTIONS))

    def test_step(self) -> None:
        """a step waits for addresses and for room, and for no stream, sum or rank"""
        for slots in (False, True):
            for dtype in (None, torch.bfloat16):
                with self.subTest(slots=slots, dtype=dtype):
                    self.check(slots=slots, dtype=dtype)

    def test_accumulation(self) -> None:
        """with accumulation, a backward also for the one before to end; with no_sync it does not"""
        for slots in (False, True):
            for no_sync in (False, True):
                with self.subTest(slots=slots, no_sync=no_sync):
                    self.check(slots=slots, no_sync=no_sync, micro_batches=3)

    def test_checkpointing(self) -> None:
        """with activation checkpointing as without"""
        for slots in (False, True):
            for kind in ("reentrant", "not", "inside", "inside reentrant"):
                with self.subTest(slots=slots, kind=kind):
                    self.check(lambda: test_autograd.checkpointed(kind), slots=slots)


class Untied(models.GPT):
    """Embedding and head have weights of their own. Both are blocks, as are three Blocks."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.head.weight = nn.Parameter(self.tokens.weight.detach().clone())


class Turn(unittest.TestCase):
    """From forward to backward, and from step to forward."""

    def setUp(self) -> None:
        for module, name, value in ((layout, "LARGE_NUMEL", 1000), (updates, "PORTION_BYTES", 1)):
            patched = mock.patch.object(module, name, value)
            patched.start()
            self.addCleanup(patched.stop)

    def test_policy(self) -> None:
        """embeddings and heads are blocks, but not tied or small ones, those of subclasses, and those inside of blocks"""
        blocks = ["blocks.0", "blocks.1", "blocks.2"]
        self.assertEqual(layout.choose(models.GPT(), None), blocks)
        self.assertEqual(layout.choose(Untied(), None), ["tokens", *blocks, "head"])
        untied = Untied()
        untied.head.__class__ = type("Head", (nn.Linear,), {})
        self.assertEqual(layout.choose(untied, None), ["tokens", *blocks])

    def test_equal(self) -> None:
        """an untied GPT equals one process; embedding and head are used by their calls, or by their weights alone"""
        class Plain(Untied):
            def forward(self, tokens: torch.Tensor) -> torch.Tensor:
                x = F.embedding(tokens, self.tokens.weight)
                for block in self.blocks:
                    x = block(x)
                return F.linear(self.norm(x), self.head.weight)

        for make in (Untied, Plain):
            for options in ({}, {"slots": True}, {"stage": 2}, {"dtype": torch.bfloat16, "accumulate": 2}):
                for world in (1, 2, 4):
                    with self.subTest(make=make.__name__, world=world, **options):
                        harness.compare(daemon.socket, world, make, models.adamw, models.gpt_loss, **options)

    def test_gathers(self) -> None:
        """a backward begins with what the forward has held last: the root, the head and the block before it"""
        def body(rank: int, prefetch: int) -> Any:
            module = harness.shard(Untied(), prefetch=prefetch)
            model, optimizer = module._zerod_model, models.adamw(module)
            gathers = []
            for step in range(3):
                before = model.counts.gathers
                models.gpt_loss(module, rank, step)
                gathers.append(model.counts.gathers - before)
                held = [block.name for block in model.blocks if block.uses]
                optimizer.step()
                optimizer.zero_grad()
            return gathers, held

        # The embedding's weight is not saved for a backward.
        for prefetch, gathers in ((1, [11, 8, 8]), (0, [11, 9, 9])):  # without one ahead, one block is held at a time
            same(harness.ranks(daemon.socket, 2, lambda rank: body(rank, prefetch)), [(gathers, [])] * 2)

    def test_room(self) -> None:
        """a slot for gradients has room for the largest unit of a list, and not for an embedding"""
        def body(rank: int) -> Any:
            made: list[int] = []
            bucket = zerod.Group.bucket
            module = harness.shard(Untied(vocabulary=1000))
            with mock.patch.object(gradients, "_BUCKET_BYTES", 1), mock.patch.object(
                    zerod.Group, "bucket", lambda group, *args, slot_bytes: made.append(slot_bytes) or bucket(group, *args, slot_bytes=slot_bytes)):
                models.gpt_loss(module, rank, 0)
            blocks = [block for block in module._zerod_model.blocks if block.name.startswith("blocks.")]
            zt.abandon(module)
            return made, max(4 * unit.shard.padded_numel for block in blocks for unit in block.units)

        for made, wanted in harness.ranks(daemon.socket, 2, body):
            self.assertEqual(made, [wanted])

    def test_publish(self) -> None:
        """units are published one by one, in the order of the forward, and small ones together"""
        def body(rank: int) -> Any:
            recorder = Recorder()
            module = harness.shard(Untied(), param_dtype=torch.bfloat16)
            model, optimizer = module._zerod_model, models.adamw(module)
            counts = []
            for part_bytes in (1, 1 << 20):
                models.gpt_loss(module, rank, 0)
                recorder.made.clear()
                with mock.patch.object(updates, "PORTION_BYTES", part_bytes):
                    optimizer.step()
                optimizer.zero_grad()
                counts.append(Counter(recorder.made)["publish_from"])
            return counts, [unit.block for unit in model.trainable]

        same(harness.ranks(daemon.socket, 2, body), [([6, 1], ["", "tokens", "blocks.0", "blocks.1", "blocks.2", "head"])] * 2)


class Event:
    """Stands for torch.cuda.Event; a GPU that is at the event waited for last, and has come no further."""

    made = 0
    waited: list[int] = []

    def __init__(self, blocking: bool) -> None:
        Event.made += 1

    def record(self) -> None:
        self.at = len(recorded)
        recorded.append(self)

    def synchronize(self) -> None:
        Event.waited.append(self.at)


recorded: list[Event] = []


class Paced(unittest.TestCase):
    def test_pace(self) -> None:
        """the CPU waits for the oldest releases, when more than 1 GiB or two blocks wait for the GPU; events are used again"""
        with mock.patch.object(torch.cuda, "Event", Event):
            for largest, most in ((100, 1 << 30), (3 << 28, 3 << 29)):
                one = most // 8
                Event.made, Event.waited = 0, []
                recorded.clear()
                pace = Pace(largest)
                for _ in range(8):
                    pace.released(one)
                    pace.keep()
                self.assertEqual(Event.waited, [])
                pace.released(2 * one)
                pace.keep()
                self.assertEqual(Event.waited, [0, 1])
                for _ in range(3):
                    pace.released(one)
                    pace.keep()
                self.assertEqual((Event.waited, Event.made), ([0, 1, 2, 3, 4], 9))
                pace.released(2 * most)
                pace.keep()
                self.assertEqual(Event.waited, list(range(len(recorded) - 1)))  # not for the newest


if __name__ == "__main__":
    support.main()
