# SPDX-License-Identifier: Apache-2.0
"""A durable model goes on in the same process with the next daemon.

The tensors of a model alias memory of the former daemon, which the process has mapped. The next daemon gives the shards
other addresses, and lets nobody write them before this process has closed its former connection, which unmaps all of
it. So the model is taken apart first: its parameters, which the optimizer knows, get their whole shapes back, without
values, and the optimizer loses the state that is in the daemon's memory. The module is then sharded with the same
arguments as before, and finds the last commit, as in a program that was started again.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import torch
from torch import nn

import zerod

if TYPE_CHECKING:
    from .durable import Durable
    from .layout import BlockPlan
    from .model import Model


class Recovery:
    """How a module was sharded: the arguments of shard(), and what its parameters were. `job` is of durable modules."""

    def __init__(self, plans: "list[BlockPlan]", device: torch.device, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.job: Optional[str] = arguments["durable"]
        self._device = device
        self._units = [unit for block in plans for unit in block.units]
        self._wanted: Optional[list[bool]] = None  # requires_grad when the model was taken apart

    def make_whole(self) -> None:
        """The parameters are plain ones of their former shapes. Harmless when repeated."""
        wanted = []
        with torch._C.DisableTorchFunctionSubclass():
            for unit in self._units:
                blank = torch.zeros((), dtype=unit.source_dtype, device=self._device)
                for member in unit.members:
                    parameter = member.parameter
                    wanted.append(parameter.requires_grad)
                    parameter.__dict__.pop("_zerod", None)
                    parameter.__class__ = nn.Parameter
                    parameter.grad = None
                    parameter.data = blank.expand(member.shape)
                    parameter.requires_grad_(unit.trainable)
                    for owner, name in member.owners:
                        owner._parameters[name] = parameter
        if self._wanted is None:
            self._wanted = wanted

    def finish(self, module: nn.Module) -> None:
        """The module is sharded again. What the program has frozen or unfrozen behind shard() is so again."""
        parameters = [member.parameter for unit in self._units for member in unit.members]
        for parameter, wanted in zip(parameters, self._wanted or ()):
            if parameter.requires_grad != wanted:
                parameter.requires_grad_(wanted)
        object.__delattr__(module, "_zerod_recovery")


def take_apart(model: "Model") -> None:
    """Of all tensors of the model's none aliases the daemon's memory afterwards."""
    assert model.recovery is not None
    for hook in model.removable:
        hook.remove()
    for unit in model.units:
        unit.forget()
    if model.durable is not None:
        model.durable.forget()
    model.recovery.make_whole()
    module = model.module()
    if module is not None:
        object.__setattr__(module, "_zerod_model", None)
        object.__setattr__(module, "_zerod_recovery", model.recovery)


def of(module: nn.Module) -> Recovery:
    """ValueError for a module that cannot go on; RuntimeError where its daemon has not ended."""
    model = getattr(module, "_zerod_model", None)
    recovery = model.recovery if model is not None else getattr(module, "_zerod_recovery", None)
    if recovery is None or recovery.job is None:
        raise ValueError(f"{type(module).__name__} was not sharded with durable=: its weights have ended with the daemon")
    if model is not None and not model.environment.lost():
        raise RuntimeError("the daemon has not ended: an error of another kind is not recovered from")
    return recovery


def check_kept(module: nn.Module, durable: "Optional[Durable]") -> None:
    """NotFound for a module without values of which the daemon has none."""
    if getattr(module, "_zerod_recovery", None) is None:
        return
    if durable is None or not durable.adopts:
        if durable is not None:
            durable.leave()
        raise zerod.errors.error(zerod.Status.NOT_FOUND, "the weights have ended with the daemon before, and this one has no "
                                 "committed step of them: shard a new module")
