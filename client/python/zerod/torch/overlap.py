# SPDX-License-Identifier: Apache-2.0
"""An optimizer that runs while the backward continues: optimizer_in_backward().

A thread handles each unit when its sum is stored: it runs the optimizer for the unit's parameters and publishes the shard. step()
waits for it, steps the remaining units, and ends the window. Units remain if some of their parameters had no gradient here,
because the other ranks must report whether they had one.

On the device (OnDevice) the units have no place in the target: the sum of each is freed when its update has run. With offload
(Overlap) the optimizer runs on the CPU, in a second thread, after the copy to host memory (fetcher.py). Units that remain on the
device are left for step(). After the backward the GPU is idle, and the optimizer waits for the CPU's memory. The GPU then reads
the masters of a unit whose shards are in host memory, rounds them, and writes the shards, while the CPU steps the next unit.

The optimizer is the program's own. For a unit, a copy of it that has only the unit's parameters steps (plain.py). A sum exists
when all ranks have their gradient. No rank therefore needs the unit's former version in this window.

A published unit cannot be reverted. If a rank gives a window up, all ranks therefore publish every unit that any of them has
published (`mend()`), with the present values of their slices: StepTorn.
"""
from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Iterator, Optional

import torch

import zerod
from zerod import structs as s

from . import plain
from .context import Context
from .fetcher import Fetcher
from .gradients import Gradients, used
from .sharded import Lent, ShardedTensor, as_plain, part_of
from .tensors import tensor_at
from .unit import FlatUnit
from .updates import Updates

if TYPE_CHECKING:
    from .model import Model

_TERMS = (torch.float32, torch.bfloat16)  # which optimizer_update() sums
_ROUNDED = (torch.float32, torch.float16, torch.bfloat16)  # which the daemon's library converts


class UnitOptimizer(torch.optim.Optimizer):
    """An optimizer that steps the parameters of units (optimizers.py)."""

    def forget(self) -> None:
        """Drops its references to the units' state."""
        raise NotImplementedError

    def open(self, unit: FlatUnit) -> None:
        """Makes the state of a unit that is under update."""
        raise NotImplementedError

    def update(self, found: "list[tuple[FlatUnit, int, int, torch.nn.Parameter, Optional[torch.Tensor]]]",
               groups: "list[dict[str, Any]]", terms: Optional[s.Terms] = None) -> None:
        """Steps parameters of units that are under update: (unit, index, number of the group, parameter, gradient).

        terms: of the gradients, if `found` has one unit and no gradients.
        """
        raise NotImplementedError


def install(model: "Model", optimizer: Any) -> None:
    """Every rank calls it. ValueError and other errors if the optimizer cannot run in the backward."""
    model.settle()
    gradients, former = model.gradients, model.gradients.fetcher
    if former.runs_optimizer:
        raise ValueError("the model has an optimizer in its backward already")
    if gradients.window or gradients.reducing or gradients.local:
        raise RuntimeError("optimizer_in_backward() between a backward and its step: call it before the first backward")
    units = _check(model.context, optimizer, model.trainable)
    if model.offload.value is not None:
        gradients.fetcher = Overlap(model.context, model.updates, gradients, optimizer, units)
    else:
        gradients.fetcher = OnDevice(model.context, model.updates, gradients, optimizer, units)
    former.end()


def _check(context: Context, optimizer: Any, units: "list[FlatUnit]") -> "list[FlatUnit]":
    """The units of which the optimizer steps all parameters."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer_in_backward() takes an optimizer of torch.optim, not {type(optimizer).__name__}")
    if context.durable is not None:
        raise ValueError("optimizer_in_backward() with durable= is not supported: a step is committed as a whole")
    if context.replicas is not None and context.offload.value is None:
        raise ValueError("optimizer_in_backward() with a mesh of several rows is not supported: their gradients are summed in step()")
    mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    whole = []
    for unit in units:
        known = [id(member.parameter) in mine for member, wanted in zip(unit.members, unit.wants) if wanted]
        if any(known) and not all(known):
            raise ValueError(f"the optimizer has some parameters of {unit.name}, and not {unit.members[known.index(False)].name}: "
                             "optimizer_in_backward() steps all of a unit's at once")
        if any(known):
            whole.append(unit)
    if not whole:
        raise ValueError("the optimizer has no parameter of the model: make it from model.parameters(), after shard()")
    if context.offload.value is None and not (isinstance(optimizer, UnitOptimizer) or plain.is_elementwise(optimizer)):
        raise ValueError(f"optimizer_in_backward() is for optimizers that compute each element alone, and {type(optimizer).__name__} "
                         "is not known as one")
    return whole


class Overlap(Fetcher):
    """The overlap of one model: see the file's first comment."""

    runs_optimizer = True

    def __init__(self, context: Context, updates: Updates, gradients: Gradients, optimizer: torch.optim.Optimizer,
                 units: "list[FlatUnit]") -> None:
        if isinstance(optimizer, UnitOptimizer):
            with updates.writes():
                for unit in units:
                    optimizer.open(unit)
        # The units whose masters the GPU can read, and an event after its last reads. The driver can refuse to pin memory:
        # nothing else has been changed before.
        self._rounded: dict[FlatUnit, Optional[torch.cuda.Event]] = {}
        for unit in updates.units:
            if unit.master is not None and unit.placement.shards_on_host and unit.source_dtype in _ROUNDED:
                context.offload.pin(unit.master)
                self._rounded[unit] = None
        super().__init__(context)
        self._masters = threading.RLock()
        self.updates = updates
        self.gradients = gradients
        self.optimizer = optimizer
        # GradScaler then passes its scale to the step, which rejects it.
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        self._groups: list[dict[str, Any]] = []
        self._group_of: Optional[dict[int, int]] = None  # of each parameter, by its id
        if context.offload.value is not None:
            self._stepper = self._worker("zerod-optimizer")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Excludes updates in other threads, while a thread reads masters in halves."""
        with self._masters:
            yield

    # ---- For the backward and the step ----

    def takes(self, unit: FlatUnit, absent: bool) -> bool:
        if isinstance(self.optimizer, UnitOptimizer) and unit.halves is None and unit.dtype != unit.source_dtype:
            return False  # its first step, in step(), makes the halves
        return super().takes(unit, absent) and not absent

    def ready(self, unit: FlatUnit) -> None:
        if self._group_of is None:  # the numbers of one step, even if a scheduler changes them meanwhile
            self._groups = [dict(group) for group in self.optimizer.param_groups]
            self._group_of = {id(parameter): number for number, group in enumerate(self._groups) for parameter in group["params"]}
        if unit.halves is not None:
            unit.halves.alone = self.alone
        self.taken.add(unit)
        super().ready(unit)

    def take_failure(self) -> Optional[BaseException]:
        failure, self.failure = self.failure, None
        return failure

    def stop(self) -> None:
        """mend() follows. No lock is held."""
        super().stop()
        self.mends = True

    def mend(self) -> bool:
        self.drain()
        torn, begun = self.context.agree([float(bool(self.stepped)), float(bool(self.updates.begun))], zerod.AgreeOp.MAX)
        if begun:
            self.updates.begin()
            self.updates.end()
        self.clear()
        return torn > 0

    def clear(self) -> None:
        super().clear()
        self.updates.begun.clear()
        self.updates.published.clear()
        self._group_of = None

    # ---- The threads ----

    def _then(self, unit: FlatUnit) -> bool:
        copied = None
        if self._fetches.stream is not None:
            copied = torch.cuda.Event(blocking=True)
            copied.record(self._fetches.stream)
        self._stepper.put(partial(self._guard, self._update, unit, copied))
        return False

    def _update(self, unit: FlatUnit, copied: "Optional[torch.cuda.Event]") -> bool:
        for event in (copied, self._rounded.get(unit)):
            if event is not None:
                event.synchronize()
        if unit.master is None or unit.halves is not None or isinstance(self.optimizer, UnitOptimizer):
            self._begin(unit, [unit.written])
        lent = self.lock if unit.host_gradient() is None else nullcontext()  # held while the optimizer reads a lent place
        with lent, self._masters:
            if self._stopped:
                return True
            self.stepped.add(unit)
            if unit.halves is not None:  # masters that a program reads in the backward
                unit.halves.close(writes=False)
            self._step(unit)
        if not self.context.in_place:  # otherwise the running backward holds all blocks, and step() publishes
            self._begin(unit, [each for each, _ in unit.places()])
            self._publish(unit)
            self.updates.published.add(unit)
        return True

    def _publish(self, unit: FlatUnit) -> None:
        """While the backward continues, the CPU rounds: a kernel that waits for the link would delay the backward's kernels."""
        on_device = unit in self._rounded and not self.gradients.reducing
        with self._masters, self._stepper.on_stream():
            self.updates.publish([unit], ticket=on_device or not unit.placement.shards_on_host, early=True,
                               on_device=on_device)
        if on_device and self._stepper.stream is not None:
            self._rounded[unit] = self._stepper.stream.record_event()

    def _begin(self, unit: FlatUnit, written: "list[zerod.Unit]", waits: bool = True) -> None:
        """waits: for blocks that hold the unit. Otherwise InvalidState (BUSY)."""
        rest = [each for each in written if each not in self.updates.begun]
        if rest:
            self.updates.kept.check(unit)  # otherwise this would wait for the program
            self.context.group.update_begin(rest, flags=s.WaitFlags.LEASES if waits else 0)
            self.updates.begun.update(rest)

    def _step(self, unit: FlatUnit, terms: Optional[s.Terms] = None) -> None:
        """Runs the optimizer for this rank's slices of the unit's parameters, whose sums are there, or the sums' terms."""
        assert self._group_of is not None
        group_of = self._group_of
        mine = [(index, member.parameter) for index, member in enumerate(unit.members) if id(member.parameter) in group_of]
        if not mine:
            return
        if unit.host_gradient() is None and unit.placement.optimizer_on_host:  # the backward can have ended
            unit.unit.reduce_wait()
        gradients = unit.reduced() if terms is None else [None] * len(unit.members)
        if isinstance(self.optimizer, UnitOptimizer):
            self.optimizer.update([(unit, index, group_of[id(parameter)], parameter, gradients[index]) for index, parameter in mine],
                                  self._groups, terms)
            return
        shown = [parameter.grad for _, parameter in mine]
        try:
            with as_plain():
                for index, parameter in mine:
                    gradient = ShardedTensor(gradients[index], unit.gradient_parts[index])
                    gradient.wait_for(Lent(gradients[index], used))
                    parameter.grad = gradient
            plain.step(self.optimizer, [{**group, "params": [parameter for _, parameter in mine if group_of[id(parameter)] == number]}
                                        for number, group in enumerate(self._groups)])
        finally:
            with as_plain():
                for (_, parameter), former in zip(mine, shown):
                    parameter.grad = former


class OnDevice(Overlap):
    """The overlap of one model without offload: see the file's first comment. The thread waits for sums, and has its own
    stream."""

    def __init__(self, context: Context, updates: Updates, gradients: Gradients, optimizer: torch.optim.Optimizer,
                 units: "list[FlatUnit]") -> None:
        super().__init__(context, updates, gradients, optimizer, units)
        units = [unit for unit in units if not unit.summed_by_ranks]  # step() steps the others
        self._units = set(units)
        self._lent: set[FlatUnit] = set()  # those of whose sums the daemon lends the terms, in this backward
        self._held: Optional[list[FlatUnit]] = []  # those that a block holds; None: the backward has submitted all units
        try:
            for unit in units:
                unit.unit.set_target(False)
                unit.placed = False
        except BaseException:
            self.end()
            for unit in units:
                if not unit.placed:
                    unit.unit.set_target(True)
                    unit.placed = True
            raise

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Excludes updates, in time and on torch's stream, while another thread reads masters."""
        with self.lock:
            stream = self._fetches.stream
            if stream is not None:
                torch.cuda.current_stream(self.context.device).wait_stream(stream)
            yield
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream(self.context.device))

    def takes(self, unit: FlatUnit, absent: bool) -> bool:
        return unit in self._units and not absent

    def lends(self, unit: FlatUnit) -> bool:
        lends = isinstance(self.optimizer, UnitOptimizer) and self.ahead and unit.gradient_dtype in _TERMS and \
            not self.context.in_place and self.context.world <= s.MOST_TERMS
        if lends:
            self._lent.add(unit)
        return lends

    def clear(self) -> None:
        super().clear()
        self._lent.clear()
        self._held = []
        for unit in self._units:
            unit.copied = None

    def ready(self, unit: FlatUnit) -> None:
        if self._group_of is None and self._fetches.stream is not None:  # after the work that can have loaded state
            self._fetches.stream.wait_stream(torch.cuda.current_stream(self.context.device))
        super().ready(unit)

    def copy_rest(self) -> None:
        rest = [unit for unit in self.updates.trainable if unit in self._units and unit not in self.stepped]
        if rest:
            with suppress(zerod.ZerodError):  # step_begin() reports the failure
                self.gradients.complete_end()  # every rank has then reported of which units it has a gradient
        for unit in rest:
            with suppress(LookupError, zerod.ZerodError):  # no rank has a gradient; or step_begin() reports the failure
                unit.unit.reduce_wait()
                target = unit.unit.reduce_wait(self.context.stream())
                unit.copied = unit.targets(target.data or 0).clone()
                unit.unit.return_target()

    def start_held(self) -> None:
        with self.lock:
            held, self._held = self._held or [], None
        for unit in held:
            self._fetches.put(partial(self._guard, self._fetch_held, unit))

    def stop(self) -> None:
        super().stop()
        self.start_held()

    def _fetch(self, unit: FlatUnit) -> bool:
        with self._fetches.on_stream():
            if unit not in self._lent:
                unit.unit.reduce_wait()
                return self._fetch_held(unit)
            try:
                terms = unit.unit.reduce_terms(self.context.stream())
                if self._is_held(unit):
                    return self._defer(unit, terms)
                self._take(unit, terms)
            except BaseException:
                self._decline(unit)
                raise
        return True

    def _is_held(self, unit: FlatUnit) -> bool:
        """Begins the unit's update, unless a block holds the unit."""
        try:
            self._begin(unit, [unit.unit], waits=False)
        except zerod.InvalidState as error:
            if error.status != s.Status.BUSY:
                raise
            return True
        return False

    def _defer(self, unit: FlatUnit, terms: s.Terms) -> bool:
        """Makes the sum. The backward that holds the unit can need the room of these terms, and of later ones that wait for this
        thread. The unit is therefore updated when the backward has submitted all units."""
        with self.lock:
            if self._stopped:
                self._decline(unit)
                return True
            unit.copied = _sum(unit, terms)
            unit.unit.return_target()
            if self._held is not None:
                self._held.append(unit)
                return False
        return self._fetch_held(unit)

    def _fetch_held(self, unit: FlatUnit) -> bool:
        with self._fetches.on_stream():
            self._begin(unit, [unit.unit])
            self._take(unit)
        return True

    def _take(self, unit: FlatUnit, terms: Optional[s.Terms] = None) -> None:
        with self.lock:
            if self._stopped:
                return self._decline(unit)
            if terms is None and unit.copied is None:
                unit.unit.reduce_wait(self.context.stream())  # marks the stream as a reader of the stored sum
            self.stepped.add(unit)
            if unit.halves is not None:  # masters that a program reads in the backward
                unit.halves.close(writes=False)
            self._step(unit, terms)
            self.updates.publish([unit], ticket=True, early=True)
            self.updates.published.add(unit)
            unit.copied = None
            unit.unit.return_target()

    def _decline(self, unit: FlatUnit) -> None:
        if unit in self._lent:  # the backward does not end before, unless the window has failed
            with suppress(zerod.ZerodError):
                unit.unit.reduce_terms()
            unit.unit.return_target()


def _sum(unit: FlatUnit, terms: s.Terms) -> torch.Tensor:
    """The float32 sum, with the bits that the daemon's would have."""
    total = torch.zeros(terms.true_numel, dtype=torch.float32, device=unit.blank.device)
    for address in terms.each[:terms.count]:
        total += tensor_at(address, terms.true_numel, unit.gradient_dtype, unit.shard_device).float() * terms.prescale
    return total.mul_(terms.postscale)
