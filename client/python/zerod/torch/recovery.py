# SPDX-License-Identifier: Apache-2.0
"""Detaches a module from the daemon: its parameters are then plain ones.

A durable model continues in the same process with the next daemon, which does not let any rank write the shards before this
process has closed its former connection. Closing it unmaps the memory of the model's tensors. The model is therefore taken apart
first: its parameters, which the optimizer knows, have no memory of their own, and the optimizer loses the state in the daemon's
memory. The module is then sharded with the same arguments, as in a restarted program.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Optional

from torch import nn

import zerod

from .durable import Durable
from .sharded import as_plain
from .unit import FlatUnit

if TYPE_CHECKING:
    from .model import Model


class Recovery:
    """How a module was sharded: the arguments of shard(), and the module's former attributes."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self._wanted: list[tuple[nn.Parameter, bool]] = []

    def take_apart(self, units: Iterable[FlatUnit]) -> None:
        """Afterwards the parameters are plain ones without values."""
        units = list(units)
        if not self._wanted:
            with as_plain():
                self._wanted = [(member.parameter, member.parameter.requires_grad) for unit in units for member in unit.members]
        for unit in units:
            unit.forget()
            unit.whole_parameters()
            for member in unit.members:
                member.parameter.requires_grad_(unit.planned)
                member.show(member.parameter)

    def finish(self, module: nn.Module) -> None:
        """Called when the module is sharded again: freezes and unfreezes parameters as the program did after shard()."""
        for parameter, wanted in self._wanted:
            if parameter.requires_grad != wanted:
                parameter.requires_grad_(wanted)
        self._wanted = []
        object.__delattr__(module, "_zerod_recovery")


def of(module: nn.Module) -> Recovery:
    """ValueError for a module that cannot continue; RuntimeError if its daemon has not ended."""
    model: Optional[Model] = getattr(module, "_zerod_model", None)
    recovery = model.recovery if model is not None else getattr(module, "_zerod_recovery", None)
    if recovery is None or recovery.arguments["durable"] is None:
        raise ValueError(f"{type(module).__name__} was not sharded with durable=: its weights have ended with the daemon")
    if model is not None and not model.environment.lost():
        raise RuntimeError("the daemon has not ended: an error of another kind is not recovered from")
    return recovery


def check_kept(module: nn.Module, durable: Optional[Durable]) -> None:
    """NotFound for a module without values of which the daemon has none."""
    if getattr(module, "_zerod_recovery", None) is None:
        return
    if durable is None or not durable.adopts:
        if durable is not None:
            durable.leave()
        raise zerod.errors.error(zerod.Status.NOT_FOUND, "the weights have ended with the daemon before, and this one has no "
                                 "committed step of them: shard a new module")
