# SPDX-License-Identifier: Apache-2.0
"""Copies reduced gradients of a model with offload to host memory, while the backward continues.

When the backward has submitted a unit whose optimizer is on the host, a thread waits until this rank's slice of the sum is
stored. It then copies the slice on a separate CUDA stream, if it is not in host memory already. The thread waits, not the stream:
this process makes the sum with a kernel, and the driver can delay every launch until all streams are idle, for example while the
backward uses a kernel for the first time. Slices of units without a gradient on this rank are copied when the step begins.

A slice is final if the window has one backward. After a window with several backwards no slice is copied early, until a window
has had one again.
"""
from __future__ import annotations

import atexit
import os
import threading
import weakref
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Callable, Optional

import torch

import zerod

from .context import Context
from .unit import FlatUnit, weakly

_END_MS = 10_000  # how long the end of the process waits for a unit in progress


class Worker:
    """A thread that runs tasks in order."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._tasks: "SimpleQueue[Optional[Callable[[], None]]]" = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, task: Optional[Callable[[], None]]) -> None:
        """None ends the thread."""
        self._tasks.put(task)

    def join(self) -> bool:
        """Returns whether the thread has ended in time."""
        self._thread.join(_END_MS / 1000)
        return not self._thread.is_alive()

    def on_stream(self) -> "AbstractContextManager[Any]":
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _run(self) -> None:
        if self.stream is not None:
            torch.cuda.set_device(self.stream.device)
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it refers to the model


class Fetcher:
    """Fetches the gradients of one model: see the file's first comment. Without offload it has no thread, and no unit is ready
    for it.

    optimizer_in_backward() uses a subclass that also runs the optimizer.
    """

    runs_optimizer = False

    def __init__(self, context: Context) -> None:
        self.context = context
        self.ahead = True
        self.mends = False  # the window was given up, and units of it can be updated
        # Units of the open window: those whose gradient was copied (the copy can still be in progress), those whose optimizer
        # runs in the backward, and those of which it has at least started to write the slices.
        self.fetched: set[FlatUnit] = set()
        self.taken: set[FlatUnit] = set()
        self.stepped: set[FlatUnit] = set()
        self.failure: Optional[BaseException] = None  # in a window that has one, no further task runs
        self._ready: list[FlatUnit] = []
        self._idle = threading.Condition()
        self._pending = 0
        self.lock = threading.RLock()  # held while a lent place is read; the end of a backward takes places back
        self._stopped = False
        self._workers: list[Worker] = []
        if context.offload.value is not None or self.runs_optimizer:
            self._fetches = self._worker("zerod-fetch")
            atexit.register(weakly(self.at_exit), os.getpid())  # runs before the connection is closed

    def _worker(self, name: str) -> Worker:
        """A thread that ends at the latest with this object."""
        made = Worker(name, self.context.device)
        self._workers.append(made)
        weakref.finalize(self, made.put, None).atexit = False
        return made

    def take_failure(self) -> Optional[BaseException]:
        """Returns the exception of an optimizer that has run in the backward."""
        return None

    def mend(self) -> bool:
        """Ends a window that was given up. Every rank calls it. Returns whether any rank has updated a unit."""
        return False

    def takes(self, unit: FlatUnit, absent: bool) -> bool:
        """Whether the unit is for the thread. absent: some of its parameters have no gradient here."""
        return unit.placement.optimizer_on_host

    def lends(self, unit: FlatUnit) -> bool:
        """Whether the thread needs the terms of the unit's sum, and not the sum."""
        return False

    def copy_rest(self) -> None:
        """Called before the step begins: copies sums of the remaining units, if they are not in the target."""

    def ready(self, unit: FlatUnit) -> None:
        """Called after the unit was submitted. start() follows when the daemon has the request."""
        if self.ahead:
            self._ready.append(unit)

    def start(self) -> None:
        units, self._ready = self._ready, []
        with self._idle:
            self._pending += len(units)
        for unit in units:
            self._fetches.put(partial(self._guard, self._fetch, unit))

    def start_held(self) -> None:
        """Called when the backward has submitted all units."""

    def drain(self) -> None:
        """Waits until the threads have run all tasks. Copies to and from the device can still be in progress."""
        with self._idle:
            self._idle.wait_for(lambda: not self._pending)
        for worker in self._workers:
            if worker.stream is not None:
                self.context.offload.follow(worker.stream)

    def stop(self) -> None:
        """Gives the window up: from now on no thread reads its target."""
        with self.lock:
            self._stopped = True

    def clear(self) -> None:
        """Called when the window has ended, or another backward of it begins. No task is pending."""
        for units in (self.fetched, self.taken, self.stepped):
            units.clear()
        self._ready = []
        self.mends = False
        self._stopped = False
        self.failure = None

    def end(self) -> bool:
        """Ends the threads when they have run all tasks. Returns whether they have ended in time."""
        for worker in self._workers:
            worker.put(None)
        return all([worker.join() for worker in self._workers])

    def at_exit(self, pid: int) -> None:
        """When the connection is closed, no thread is inside the library. Otherwise it is not closed, and ends with the process. A forked
        process has no threads."""
        if os.getpid() != pid:
            return
        self.stop()
        if self._pending:  # a sum that will not be made, because the other ranks lose this one
            with suppress(zerod.ZerodError):
                self.context.group.backward_abandon(deadline_ms=_END_MS)
        if not self.end():
            self.context.environment.in_use = True

    # ---- The thread ----

    def _guard(self, task: Callable, unit: FlatUnit, *args: Any) -> None:
        """Runs a unit's task. A unit that has ended is no longer pending."""
        ended = True
        try:
            if not self._stopped and self.failure is None:
                ended = task(unit, *args)
            else:
                self._decline(unit)
        except BaseException as failure:
            if self.failure is None:
                self.failure = failure
        if ended:
            with self._idle:
                self._pending -= 1
                self._idle.notify_all()

    def _decline(self, unit: FlatUnit) -> None:
        """Called in place of the unit's task."""

    def _fetch(self, unit: FlatUnit) -> bool:
        with self._fetches.on_stream():
            target = unit.unit.reduce_wait()
            with self.lock:
                if self._stopped:
                    return True
                gradient = unit.host_gradient()
                if gradient is not None:
                    if not unit.placement.shards_on_host and self._fetches.stream is not None:
                        # Marks the stream as a reader of the place. The sum is stored: the stream does not wait.
                        target = unit.unit.reduce_wait(self.context.stream())
                    self.context.offload.copy(gradient, unit.targets(target.data or 0))
                self.fetched.add(unit)
            return self._then(unit)

    def _then(self, unit: FlatUnit) -> bool:
        """Called after the copy, in the thread and on its stream. Returns whether the unit has ended."""
        return True
