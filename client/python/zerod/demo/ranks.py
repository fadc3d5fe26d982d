# SPDX-License-Identifier: Apache-2.0
"""The training: by ranks, which are processes with their shards in the daemon, and by one process without a daemon.

A rank sends its launcher a State after each step. The launcher ends a rank, or the kernel does if the launcher has ended.
"""
from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Callable, Iterator, Optional

import numpy as np

from .. import (BackwardOptions, Client, DType, Entry, GatherFlags, GatherOptions, ReduceFlags, ReduceOp, ReduceOptions,
                ReleaseFlags, ReleaseOptions, Status, Unsupported, ZerodError, view)
from .common import Failed, death, started_rank, starting
from .model import EMBEDDING, NAMES, Arrays, Plan, Whole, adam, forward_backward

_MEAN = ReduceOptions(op=ReduceOp.MEAN, flags=ReduceFlags.DETACHED)
_PREFETCH = GatherOptions(flags=GatherFlags.PREFETCH)


@dataclass
class State:
    """The state of a rank. Counts are since the start. Bytes are those of its device."""

    step: int = 0
    loss: float = 0.0
    gathers: int = 0
    skipped: int = 0  # steps without an update, because gradients overflowed
    live_bytes: int = 0  # in the middle of the step
    peak_bytes: int = 0
    shard_bytes: int = 0  # of the rank's parameters
    device: int = 0
    paused: bool = False
    shards: "list[tuple[int, np.ndarray]]" = field(default_factory=list)  # at the end: offset and elements of each layer
    failure: Optional[tuple[int, str]] = None


@dataclass
class Outcome:
    losses: np.ndarray  # (steps, ranks)
    values: list[np.ndarray]
    states: list[State] = field(default_factory=list)  # by rank; unsharded: none
    step: int = 0  # that all ranks have finished


# ---- A rank ----


class Rank:
    """The rank's part of every layer, and of Adam's moments, in memory of the daemon. It is a Lender that gathers and reduces."""

    def __init__(self, plan: Plan, rank: int, client: Client, channel: Connection) -> None:
        if not client.is_host:
            raise Unsupported(Status.UNSUPPORTED, "the demo computes on the CPU, and the daemon's devices are GPUs")
        self.plan, self.rank, self.client, self.channel = plan, rank, client, channel
        self.state = State(device=rank % len(client.rank_devices()))
        self.group = client.join(plan.job, plan.ranks, rank, self.state.device)
        self.units = [self.group.register(layer.name, DType.FLOAT32, views=[
            view("weight", 0, layer.shape), view("bias", layer.weights, (layer.bias,))]) for layer in plan.layers]
        self.shards, self.moments = [], []
        for unit in self.units:
            shard = unit.shard()
            self.state.shard_bytes += 4 * shard.shard_numel
            moments = client.alloc(plan.job, 2 * 4 * shard.shard_numel, self.state.device, f"adam.{unit.name}.{rank}")
            self.shards.append(unit.shard_memory().numpy())
            self.moments.append(moments.memory((2, shard.shard_numel), DType.FLOAT32).numpy()[:, :shard.true_numel])
        # The tied embedding's gradient is open during the whole backward: it occupies no slot that a layer needs.
        sizes = [4 * unit.padded_numel for unit in self.units]
        self.tied = self.group.bucket(DType.FLOAT32, sizes[EMBEDDING], 1)
        self.layers = self.group.bucket(DType.FLOAT32, max(sizes[1:]), 2)
        self.offsets = [unit.shard().offset_numel for unit in self.units]
        with self.group.updating(self.units):
            for layer, shard, offset in zip(plan.layers, self.shards, self.offsets):
                shard[:] = layer.initial(plan.seed)[offset:offset + len(shard)]

    @contextmanager
    def parameters(self, layer: int, tag: str, following: Optional[int] = None) -> Iterator[Arrays]:
        unit = self.units[layer]
        with self.client.corked():  # both requests are one packet
            ticket = unit.gather_begin(GatherOptions(tag=tag))
            if following is not None:
                self.units[following].gather_begin(_PREFETCH)
        address = self.client.wait(ticket)
        self.state.gathers += 1
        if tag == "forward":
            self._look_around(layer)
        yield self.plan.layers[layer].arrays(unit.memory(address).numpy())
        unit.release(options=ReleaseOptions(tag=tag, flags=ReleaseFlags.DETACHED))

    @contextmanager
    def backward(self) -> Iterator[None]:
        self.group.backward_begin(BackwardOptions(stage=3, boundary=1))
        yield
        self.group.backward_end()

    @contextmanager
    def gradient(self, layer: int) -> Iterator[Arrays]:
        unit, entry = self.units[layer], Entry()
        bucket = self.tied if layer == EMBEDDING else self.layers
        bucket.reserve(unit, entry)
        yield self.plan.layers[layer].arrays(bucket.memory(entry, unit).numpy())
        bucket.submit(entry.id, options=_MEAN)

    def _look_around(self, layer: int) -> None:
        """Called while the layer is held. In a pause each rank holds another layer, because ranks can be at different layers."""
        if layer == 2:
            self._read_memory()
        if self.state.step + 1 == self.plan.pause_step and layer == 1 + self.rank % (len(NAMES) - 1):
            self.channel.send(replace(self.state, paused=True))
            self.channel.recv()

    def _read_memory(self) -> None:
        device = self.client.device(self.state.device)
        self.state.live_bytes, self.state.peak_bytes = device.allocated_bytes, device.peak_bytes

    def _update(self, step: int) -> None:
        """After an overflow the shards do not change. They are published nevertheless: each rank publishes every version."""
        info = self.group.step_begin()
        self.state.skipped += info.overflow
        with self.group.updating(self.units):
            for shard, unit, moments in zip(self.shards, self.units, self.moments) if not info.overflow else ():
                adam(shard, unit.target_memory().numpy(), moments, step, self.plan.rate(step))
            self.group.step_end()
        self.group.commit(step)

    def train(self) -> None:
        self.channel.send(self.state)
        for step in range(1, self.plan.steps + 1):
            self.state.loss = forward_backward(*self.plan.samples(step, self.rank), self)
            self._update(step)
            self.state.step = step
            self.channel.send(self.state)
        self._read_memory()
        self.channel.send(replace(self.state, shards=list(zip(self.offsets, self.shards))))


def _run_rank(plan: Plan, rank: int, channel: Connection) -> None:
    started_rank()
    try:
        with Client(plan.socket, name=f"demo.{rank}") as client:
            Rank(plan, rank, client, channel).train()
    except ZerodError as failure:
        channel.send(State(failure=(-failure.status, str(failure))))
    except (BrokenPipeError, EOFError):
        pass  # the launcher has ended


# ---- The launcher ----


def train_sharded(plan: Plan, heard: Callable[[Outcome], None], paused: Callable[[], None]) -> Outcome:
    """Runs the ranks. `heard` is called after each of their messages, `paused` while all of them pause. Raises Failed."""
    outcome = Outcome(np.zeros((plan.steps, plan.ranks)), plan.initial(), [State()] * plan.ranks)
    context = multiprocessing.get_context("fork")
    processes, channels = [], {}
    failures: list[tuple[int, str]] = []
    try:
        with starting():
            for rank in range(plan.ranks):
                ours, theirs = context.Pipe()
                process = context.Process(target=_run_rank, args=(plan, rank, theirs), daemon=True)
                process.start()
                processes.append(process)
                theirs.close()
                channels[ours] = rank
        running = dict(channels)
        while running and not failures:
            for channel in wait(list(running)):
                rank = running[channel]
                try:
                    state = channel.recv()
                except (EOFError, ConnectionResetError):
                    del running[channel]
                    processes[rank].join()
                    if processes[rank].exitcode:
                        failures.append(death(rank, processes[rank].exitcode))
                    continue
                if state.failure:
                    failures.append((state.failure[0], f"rank {rank}: {state.failure[1]}"))
                    continue
                outcome.states[rank] = state
                if state.step:
                    outcome.losses[state.step - 1, rank] = state.loss
                for values, (offset, shard) in zip(outcome.values, state.shards):
                    values[offset:offset + len(shard)] = shard
                if all(each.paused for each in outcome.states):
                    paused()
                    for each in channels:
                        with suppress(OSError):  # its rank has ended, which the next iteration detects
                            each.send(None)
                outcome.step = min(each.step for each in outcome.states)
                heard(outcome)
    finally:
        for process in processes:
            process.terminate()
            if process.is_alive():
                os.kill(process.pid, signal.SIGCONT)  # a stopped rank would not end
        for process in processes:
            process.join()
    if failures:
        # The end of a killed rank can be reported later than those of the ranks that have lost it.
        deaths = [death(rank, process.exitcode) for rank, process in enumerate(processes)
                  if process.exitcode not in (0, -signal.SIGTERM)]
        raise Failed(*(deaths + failures)[0])
    return outcome


def train_unsharded(plan: Plan, heard: Callable[[Outcome], None]) -> Outcome:
    """The same training in this process. It adds up the ranks' gradients as zerod does: in float32 and in rank order.

    Losses and parameters therefore equal those of the sharded run bit for bit.
    """
    outcome = Outcome(np.zeros((plan.steps, plan.ranks)), plan.initial())
    whole = Whole(plan.layers, outcome.values)
    moments = [np.zeros((2, layer.numel), np.float32) for layer in plan.layers]
    scale = np.float32(1) / np.float32(plan.ranks)
    heard(outcome)
    for step in range(1, plan.steps + 1):
        sums = [np.zeros(layer.numel, np.float32) for layer in plan.layers]
        for rank in range(plan.ranks):
            outcome.losses[step - 1, rank] = forward_backward(*plan.samples(step, rank), whole)
            for total, gradient in zip(sums, whole.gradients):
                total += gradient
        if all(np.isfinite(total).all() for total in sums):
            for values, total, both in zip(outcome.values, sums, moments):
                adam(values, total * scale, both, step, plan.rate(step))
        outcome.step = step
        heard(outcome)
    return outcome
