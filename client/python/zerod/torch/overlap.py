# SPDX-License-Identifier: Apache-2.0
"""An optimizer on the CPU that runs while the backward goes on: optimizer_in_backward().

When the backward has handed a unit over, two threads take it. The first waits until this rank's slice of the sum is
stored and copies it to host memory; the second runs the optimizer for the unit's parameters and publishes the shard.
They take units in the order in which the backward hands them over. step() waits for them, steps what is left (units of
which some parameters had no gradient here, so that the other ranks have to say whether they had one), and ends the window.

The optimizer is the program's own. For a unit a copy of it steps that has the unit's parameters alone, and shares the
state. A sum exists when all ranks have their gradient, so no rank needs the unit's former version in this window.

A published unit cannot be taken back. So when a rank gives a window up, all ranks publish what any of them has
published (`mend()`), with whatever their slices hold: StepTorn.
"""
from __future__ import annotations

import atexit
import os
import threading
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
from torch import nn

import zerod

from .parameter import ShardedParameter

if TYPE_CHECKING:
    from .model import Model
    from .unit import FlatUnit

_local = torch._C.DisableTorchFunctionSubclass
_END_MS = 10_000  # how long the end of the process waits for a unit that is under way
Task = Optional[Callable[[], None]]


def check(model: "Model", optimizer: Any) -> None:
    """ValueError and the like where the optimizer cannot run in the backward."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer_in_backward() takes an optimizer of torch.optim, not {type(optimizer).__name__}")
    if not model.offload.optimizer:
        raise ValueError("optimizer_in_backward() is for models with offload: without it the optimizer runs on the GPU, "
                         "which the backward uses")
    if model.durable is not None:
        raise ValueError("optimizer_in_backward() with durable= is not supported: a step is committed as a whole")
    if model.overlap is not None:
        raise ValueError("the model has an optimizer in its backward already")
    if model.window or model.step_open or model.reducing:
        raise RuntimeError("optimizer_in_backward() between a backward and its step: call it before the first backward")
    known = (parameter.__dict__.get("_zerod") for group in optimizer.param_groups for parameter in group["params"])
    if not any(of is not None and of[0].block.model is model for of in known):
        raise ValueError("the optimizer has no parameter of the model: make it from model.parameters(), after shard()")


class Overlap:
    """Of one model: see the file's beginning. The sets are of the open window."""

    def __init__(self, model: "Model", optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        # GradScaler then hands its scale to the step, which refuses it.
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        self.mends = False  # the window was given up
        self.failure: Optional[BaseException] = None
        self.taken: "set[FlatUnit]" = set()  # handed to the threads
        self.stepped: "set[FlatUnit]" = set()  # whose slices the optimizer has at least begun to write
        self.begun: "set[FlatUnit]" = set()  # of which an update has begun
        self.published: "set[FlatUnit]" = set()
        self._groups: "Optional[dict[FlatUnit, list[tuple[dict[str, Any], list[nn.Parameter]]]]]" = None
        self._ready: "list[FlatUnit]" = []
        self._idle = threading.Condition()
        self._pending = 0
        self._lock = threading.Lock()  # held while a place that is lent is read
        self._stopped = False
        host = model.environment.host
        self._fetching, self._writing = (None if host else torch.cuda.Stream(model.device) for _ in range(2))
        self._fetches: "SimpleQueue[Task]" = SimpleQueue()
        self._updates: "SimpleQueue[Task]" = SimpleQueue()
        self._threads = [threading.Thread(target=_work, args=(queue, model.device), name=name, daemon=True)
                         for name, queue in (("zerod-fetch", self._fetches), ("zerod-optimizer", self._updates))]
        for thread in self._threads:
            thread.start()
        atexit.register(self._end, os.getpid())  # runs before the connection is closed

    # ---- For the backward and the step ----

    def ready(self, unit: "FlatUnit") -> None:
        """The unit was handed over; start() follows when the daemon has been told."""
        self.taken.add(unit)
        self._ready.append(unit)

    def start(self) -> None:
        units, self._ready = self._ready, []
        if not units:
            return
        if self._groups is None:
            self._groups = self._group()
        with self._idle:
            self._pending += len(units)
        for unit in units:
            self._fetches.put(lambda unit=unit: self._guard(self._fetch, unit))

    def drain(self) -> None:
        """Waits until the threads have done what was handed over. Nothing of the model may be held."""
        with self._idle:
            self._idle.wait_for(lambda: not self._pending)
        if self._writing is not None:
            self.model.offload.follow(self._writing)

    def left(self) -> "list[FlatUnit]":
        """The units that the optimizer has still to step."""
        return [unit for unit in self.model.trainable if unit not in self.stepped]

    def raise_failure(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            self.model.raised = True
            raise failure

    def stop(self) -> None:
        """The window is given up: no thread reads its target from now on. mend() follows, with nothing held."""
        with self._lock:
            self._stopped = self.mends = True

    def mend(self) -> bool:
        """Ends a window that was given up; every rank calls it. Returns whether any rank has updated a unit."""
        self.drain()
        model, self.mends = self.model, False
        torn = bool(self.stepped)
        if model.world > 1:
            torn = bool(model.group.agree(zerod.AgreeOp.MAX, [int(torn)])[0])
        if torn:
            model.begin_update()
            model.end_update()
        self.clear()
        return torn

    def clear(self) -> None:
        """The window has ended."""
        for units in (self.taken, self.stepped, self.begun, self.published):
            units.clear()
        self._groups = None
        self._ready = []
        self._stopped = self.mends = False
        self.failure = None

    # ---- The threads ----

    def _guard(self, task: Callable, unit: "FlatUnit", *args: Any) -> None:
        """Runs a unit's task; a unit that has ended is not pending any more."""
        ended = True
        try:
            if not self._stopped and self.failure is None:
                ended = task(unit, *args)
        except BaseException as failure:  # step() raises it
            self.failure = failure
        if ended:
            with self._idle:
                self._pending -= 1
                self._idle.notify_all()

    @staticmethod
    def _on(stream: "Optional[torch.cuda.Stream]") -> "AbstractContextManager[Any]":
        return nullcontext() if stream is None else torch.cuda.stream(stream)

    def _fetch(self, unit: "FlatUnit") -> bool:
        event = None
        with self._on(self._fetching):
            target = unit.unit.reduce_wait(self.model.environment.stream())
            with self._lock:
                if self._stopped:
                    return True
                self.model.offload.copy(unit.host_gradient(), unit.targets(target.data or 0))
            if self._fetching is not None:
                event = torch.cuda.Event(blocking=True)
                event.record(self._fetching)
        self._updates.put(lambda: self._guard(self._update, unit, event))
        return False

    def _update(self, unit: "FlatUnit", copied: "Optional[torch.cuda.Event]") -> bool:
        if copied is not None:
            copied.synchronize()
        if unit.master is None:
            self._begin(unit)
        self.stepped.add(unit)
        self._step(unit)
        if not self.model.in_place:  # else the backward that runs holds all blocks, and step() publishes
            self._begin(unit)
            with self._on(self._writing):
                self.model.publish([unit], ticket=not self.model.offload.shards, early=True)
            self.published.add(unit)
        return True

    def _begin(self, unit: "FlatUnit") -> None:
        if unit not in self.begun:
            self.model.group.update_begin([unit.unit])
            self.begun.add(unit)

    def _group(self) -> "dict[FlatUnit, list[tuple[dict[str, Any], list[nn.Parameter]]]]":
        """For each unit its parameters in each of the optimizer's groups."""
        found: "dict[FlatUnit, list[tuple[dict[str, Any], list[nn.Parameter]]]]" = {}
        for group in self.optimizer.param_groups:
            of: "dict[FlatUnit, list[nn.Parameter]]" = {}
            for parameter in group["params"]:
                if isinstance(parameter, ShardedParameter):
                    of.setdefault(parameter._zerod[0], []).append(parameter)
            for unit, parameters in of.items():
                found.setdefault(unit, []).append((group, parameters))
        return found

    def _step(self, unit: "FlatUnit") -> None:
        """Runs the optimizer for this rank's slices of the unit's parameters."""
        assert self._groups is not None
        groups = self._groups.get(unit)
        if not groups:
            return
        part = object.__new__(type(self.optimizer))
        part.__dict__.update(self.optimizer.__dict__, _optimizer_step_pre_hooks=OrderedDict(), _zerod_part=True,
                             _optimizer_step_post_hooks=OrderedDict(),
                             param_groups=[{**group, "params": parameters} for group, parameters in groups])
        part.__dict__.pop("step", None)  # a scheduler's, which counts the program's steps
        gradients = unit._parts(unit.host_gradient())
        parameters = [parameter for _, of in groups for parameter in of]
        try:
            with _local():
                for parameter in parameters:
                    parameter.grad = gradients[parameter._zerod[1]]
                    parameter.__class__ = nn.Parameter
            type(part).step(part)  # type: ignore[call-arg, arg-type]
        finally:
            with _local():
                for parameter in parameters:
                    parameter.grad = None
                    parameter.__class__ = ShardedParameter


    def _end(self, pid: int) -> None:
        """At the end of the process: no thread is inside of the library when the connection is closed."""
        if os.getpid() != pid:
            return
        self.stop()
        if self._pending:  # a sum that will not be: the other ranks lose this one
            with suppress(zerod.ZerodError):
                self.model.group.backward_abandon(deadline_ms=_END_MS)
        for queue in (self._fetches, self._updates):
            queue.put(None)
        for thread in self._threads:
            thread.join(_END_MS / 1000)


def _work(tasks: "SimpleQueue[Task]", device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    while True:
        task = tasks.get()
        if task is None:
            return
        task()
