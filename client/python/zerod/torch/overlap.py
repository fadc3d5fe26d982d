# SPDX-License-Identifier: Apache-2.0
"""An optimizer on the CPU that runs while the backward goes on: optimizer_in_backward().

A second thread takes each unit behind its copy to host memory (fetcher.py): it runs the optimizer for the unit's
parameters and publishes the shard. step() waits for it, steps what is left (units that stay on the device, and units of
which some parameters had no gradient here, so that the other ranks have to say whether they had one), and ends the window.

Behind the backward the GPU is idle, and the CPU's memory is what the optimizer waits for. So the GPU then reads the masters
of a unit whose shards are in host memory, rounds them, and writes the shards, while the CPU steps the next unit.

The optimizer is the program's own. For a unit a copy of it steps, which has the unit's parameters alone (plain.py). A sum
exists when all ranks have their gradient, so no rank needs the unit's former version in this window.

A published unit cannot be taken back. So when a rank gives a window up, all ranks publish what any of them has
published (`mend()`), with whatever their slices hold: StepTorn.
"""
from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any, Optional

import torch

import zerod
from zerod import structs as s

from . import plain
from .context import Context
from .fetcher import Fetcher, Worker
from .gradients import Gradients
from .sharded import ShardedTensor, as_plain, part_of
from .unit import FlatUnit
from .updates import Updates

_ROUNDED = (torch.float32, torch.float16, torch.bfloat16)  # what the daemon's library converts


def check(context: Context, optimizer: Any, units: "list[FlatUnit]") -> None:
    """ValueError and the like where the optimizer cannot run in the backward."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer_in_backward() takes an optimizer of torch.optim, not {type(optimizer).__name__}")
    if context.offload.value is None:
        raise ValueError("optimizer_in_backward() is for models with offload: without it the optimizer runs on the GPU, "
                         "which the backward uses")
    if context.durable is not None:
        raise ValueError("optimizer_in_backward() with durable= is not supported: a step is committed as a whole")
    parts = (part_of(parameter) for group in optimizer.param_groups for parameter in group["params"])
    if not any(part is not None and part.place[0] in units for part in parts):
        raise ValueError("the optimizer has no parameter of the model: make it from model.parameters(), after shard()")


class Overlap(Fetcher):
    """Of one model: see the file's beginning."""

    runs_optimizer = True

    def __init__(self, context: Context, updates: Updates, gradients: Gradients, optimizer: torch.optim.Optimizer) -> None:
        # The units whose masters the GPU may read, and an event behind its last reads. The driver may refuse to pin memory,
        # so nothing else has been changed by then.
        self._rounded: dict[FlatUnit, Optional[torch.cuda.Event]] = {}
        for unit in updates.units:
            if unit.master is not None and unit.placement.shards_on_host and unit.source_dtype in _ROUNDED:
                context.offload.pin(unit.master)
                self._rounded[unit] = None
        super().__init__(context)
        self.updates = updates
        self.gradients = gradients
        self.optimizer = optimizer
        # GradScaler then hands its scale to the step, which refuses it.
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        self._group_of: Optional[dict[int, dict[str, Any]]] = None  # of each parameter, by its id
        self._stepper = Worker("zerod-optimizer", context.device)
        self._workers.append(self._stepper)

    # ---- For the backward and the step ----

    def ready(self, unit: FlatUnit) -> None:
        if self._group_of is None:
            self._group_of = {id(parameter): group for group in self.optimizer.param_groups for parameter in group["params"]}
        self.taken.add(unit)
        super().ready(unit)

    def take_failure(self) -> Optional[BaseException]:
        failure, self.failure = self.failure, None
        return failure

    def stop(self) -> None:
        """mend() follows, with nothing held."""
        super().stop()
        self.mends = True

    def mend(self) -> bool:
        self.drain()
        torn = self.context.agree([float(bool(self.stepped))], zerod.AgreeOp.MAX)[0] > 0
        if torn:
            self.updates.begin()
            self.updates.end()
        self.clear()
        return torn

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
        if unit.master is None:
            self._begin(unit)
        with self.lock if unit.host_gradient() is None else nullcontext():  # the optimizer reads the place that is lent
            if self._stopped:
                return True
            self.stepped.add(unit)
            self._step(unit)
        if not self.context.in_place:  # else the backward that runs holds all blocks, and step() publishes
            self._begin(unit)
            self._publish(unit)
            self.updates.published.add(unit)
        return True

    def _publish(self, unit: FlatUnit) -> None:
        """While the backward goes on, the CPU rounds: a kernel that waits for the link would hold back the backward's."""
        on_device = unit in self._rounded and not self.gradients.reducing
        with self._stepper.on_stream():
            self.updates.publish([unit], ticket=on_device or not unit.placement.shards_on_host, early=True,
                               on_device=on_device)
        if on_device and self._stepper.stream is not None:
            self._rounded[unit] = self._stepper.stream.record_event()

    def _begin(self, unit: FlatUnit) -> None:
        if unit not in self.updates.begun:
            self.updates.kept.check(unit)  # else this would wait for the program
            self.context.group.update_begin([unit.unit], flags=s.WaitFlags.LEASES)
            self.updates.begun.add(unit)

    def _step(self, unit: FlatUnit) -> None:
        """Runs the optimizer for this rank's slices of the unit's parameters."""
        assert self._group_of is not None
        group_of = self._group_of
        mine = [(index, member.parameter) for index, member in enumerate(unit.members) if id(member.parameter) in group_of]
        if not mine:
            return
        if unit.host_gradient() is None:  # the place is lent again: the backward has ended since, perhaps
            unit.unit.reduce_wait()
        gradients = unit.reduced()
        try:
            with as_plain():
                for index, parameter in mine:
                    parameter.grad = ShardedTensor(gradients[index], unit.gradient_parts[index])
            plain.step(self.optimizer, [{**group, "params": [parameter for _, parameter in mine if group_of[id(parameter)] is group]}
                                        for group in self.optimizer.param_groups])
        finally:
            with as_plain():
                for _, parameter in mine:
                    parameter.grad = None
