# SPDX-License-Identifier: Apache-2.0
"""Gathered buffers over which the program still has a tensor when their block is released."""
from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

import zerod
from zerod import structs as s

from .unit import FlatUnit


@dataclass
class _Lease:
    """`flat` and `views`: this package's own tensors over the buffer."""

    unit: FlatUnit
    tag: str
    flat: torch.Tensor
    views: list[torch.Tensor]

    def release(self) -> None:
        self.unit.unit.release(self.unit.context.stream(), s.ReleaseOptions(tag=self.tag))


class Kept:
    """The kept buffers of one model."""

    def __init__(self) -> None:
        self._leases: list[_Lease] = []
        self._tags = itertools.count()

    def keep(self, unit: FlatUnit, views_alone: bool = False) -> None:
        """Called before a lease of the unit ends. If the program has a tensor over its buffer, makes another lease."""
        flat = unit.buffer
        if flat is None or unit.address == unit.shard.data or not (
                unit.has_views(flat) if views_alone else unit.is_aliased(flat)):  # the shard itself remains
            return
        if any(lease.flat is flat for lease in self._leases):
            return
        lease = _Lease(unit, f"kept{next(self._tags)}", flat, unit.views(unit.address))
        options = s.GatherOptions(tag=lease.tag, flags=s.GatherFlags.NO_SLOT)
        if unit.unit.gather(unit.context.stream(), options) != unit.address:  # it joins the lease that is held
            lease.release()
            raise zerod.errors.error(s.Status.STATE, f"a view of {unit.name!r} is kept, whose weights have been updated since")
        self._leases.append(lease)

    def sweep(self) -> None:
        """Releases the leases of buffers over which no tensor remains."""
        if not self._leases:
            return
        held = [lease.unit.is_aliased(lease.flat) for lease in self._leases]
        for lease, is_held in zip(self._leases, held):
            if not is_held:
                lease.release()
        self._leases = [lease for lease, is_held in zip(self._leases, held) if is_held]

    def check(self, unit: FlatUnit) -> None:
        """RuntimeError if the program has a view of the unit."""
        if any(lease.unit is unit and unit.has_views(lease.flat) for lease in self._leases):
            names = ", ".join(member.name for member in unit.members[:3])
            raise RuntimeError(f"the program keeps a view of weights that are to be updated: of {names} or another parameter of "
                               f"{unit.name!r}. Keep a clone() of it, or delete it before the step")

    def end(self) -> None:
        """An update begins, and the daemon has one buffer per unit: RuntimeError if the program has a view."""
        self.sweep()
        for lease in self._leases:
            self.check(lease.unit)
        for lease in self._leases:
            lease.unit.leave_buffer()
            lease.release()
        self._leases.clear()
