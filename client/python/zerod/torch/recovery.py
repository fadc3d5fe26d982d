# SPDX-License-Identifier: Apache-2.0
"""A module is taken apart from the daemon: its parameters are plain ones again.

A durable model goes on in the same process with the next daemon, which lets nobody write the shards before this process
has closed its former connection. That unmaps the memory over which the model's tensors are. So the model is taken apart
first: its parameters, which the optimizer knows, get no memory of their own, and the optimizer loses the state that is
in the daemon's memory. The module is then sharded with the same arguments, as in a program that was started again.
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
    """How a module was sharded: the arguments of shard(), and what it had before."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self._wanted: list[tuple[nn.Parameter, bool]] = []

    def take_apart(self, units: Iterable[FlatUnit]) -> None:
        """The parameters are plain ones without values."""
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
        """The module is sharded again. What the program has frozen or unfrozen behind shard() is so again."""
        for parameter, wanted in self._wanted:
            if parameter.requires_grad != wanted:
                parameter.requires_grad_(wanted)
        self._wanted = []
        object.__delattr__(module, "_zerod_recovery")


def of(module: nn.Module) -> Recovery:
    """ValueError for a module that cannot go on; RuntimeError where its daemon has not ended."""
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
