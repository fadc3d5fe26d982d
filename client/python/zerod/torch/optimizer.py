# SPDX-License-Identifier: Apache-2.0
"""The hooks that torch calls before and after every optimizer's step, registered once."""
from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .model import Model
from .rules import take_kernels
from .sharded import ShardedTensor, part_of

_registered = False
_stepping: "dict[int, dict[Model, list[nn.Parameter]]]" = {}  # optimizers that run


def register() -> None:
    global _registered
    if not _registered:
        _registered = True
        take_kernels()
        register_optimizer_step_pre_hook(_before)
        register_optimizer_step_post_hook(_after)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The sharded ones."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"] if part_of(parameter) is not None]


def _sharded(optimizer: torch.optim.Optimizer) -> dict[Model, list[nn.Parameter]]:
    found: dict[Model, list[nn.Parameter]] = {}
    for parameter in parameters_of(optimizer):
        found.setdefault(parameter.part.owner, []).append(parameter)  # type: ignore[attr-defined]
    return found


def _before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """args begins with the optimizer itself."""
    if "_zerod_part" in optimizer.__dict__:  # in the backward, for one unit
        return
    found = _sharded(optimizer)
    if not found:
        return
    if (len(args) > 1 and args[1] is not None) or kwargs.get("closure") is not None:
        raise NotImplementedError("zerod.torch: optimizer.step(closure) is not supported; call backward() before step()")
    _stepping[id(optimizer)] = found
    for model, parameters in found.items():
        if model.durable is not None:
            model.durable.take(optimizer, parameters)
        first = "_zerod_state" not in optimizer.__dict__
        _cut(optimizer, parameters)
        if model.gradients.fetcher is not None and model.gradients.fetcher.runs_optimizer:
            _check_overlap(model, optimizer)
        if any(parameter.device.type == "cpu" for parameter in parameters):
            _fetch_scale(optimizer)
        model.steps.before_optimizer(parameters, first)


def _check_overlap(model: Model, optimizer: torch.optim.Optimizer) -> None:
    if optimizer is not model.gradients.fetcher.optimizer:  # type: ignore[union-attr]
        raise RuntimeError("optimizer_in_backward() was given another optimizer: a model has one in its backward, for all "
                           "of its parameters")
    if getattr(optimizer, "found_inf", None) is not None:
        raise RuntimeError("GradScaler does not work with optimizer_in_backward(): whether a gradient has overflown is known "
                           "when the optimizer has run. Use bfloat16, which needs no scaling, or an ordinary optimizer")


def _fetch_scale(optimizer: torch.optim.Optimizer) -> None:
    """GradScaler's values, for a fused optimizer: torch copies them to the CPU, and its kernels there do not wait."""
    for name in ("grad_scale", "found_inf"):
        value = getattr(optimizer, name, None)
        if isinstance(value, torch.Tensor):
            setattr(optimizer, name, value.cpu())


def _cut(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    """Whole tensors of the state, which a checkpoint has given, become this rank's part of them."""
    known = optimizer.__dict__.get("_zerod_state")
    if known is not None and known[0] is optimizer.state and known[1] == len(optimizer.state):
        return
    for parameter in parameters:
        part = parameter.part  # type: ignore[attr-defined]
        for key, value in optimizer.state.get(parameter, {}).items():
            if type(value) is torch.Tensor and value.dim() and value.shape == part.shape:
                optimizer.state[parameter][key] = ShardedTensor(part.cut(value).clone(), part)
    optimizer.__dict__["_zerod_state"] = optimizer.state, len(optimizer.state)


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if "_zerod_part" in optimizer.__dict__:
        return
    for model, parameters in _stepping.pop(id(optimizer), {}).items():
        model.steps.after_optimizer(parameters)
