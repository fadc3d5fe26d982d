# SPDX-License-Identifier: Apache-2.0
"""The hooks that torch calls before and after every optimizer's step, registered once."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

if TYPE_CHECKING:
    from .model import Model

_registered = False


def register() -> None:
    global _registered
    if not _registered:
        _registered = True
        register_optimizer_step_pre_hook(_before)
        register_optimizer_step_post_hook(_after)


def _sharded(optimizer: torch.optim.Optimizer) -> "dict[Model, list[nn.Parameter]]":
    found: "dict[Model, list[nn.Parameter]]" = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            known = parameter.__dict__.get("_zerod")
            if known is not None:
                found.setdefault(known[0].block.model, []).append(parameter)
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
    for model, parameters in found.items():
        if model.durable is not None:
            model.durable.take(optimizer, parameters)
        _check_state(optimizer, parameters)
        if model.overlap is not None:
            _check_overlap(model, optimizer)
        if any(parameter.device.type == "cpu" for parameter in parameters):
            _fetch_scale(optimizer)
        model.before_step(parameters)


def _check_overlap(model: "Model", optimizer: torch.optim.Optimizer) -> None:
    assert model.overlap is not None
    if optimizer is not model.overlap.optimizer:
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


def _check_state(optimizer: torch.optim.Optimizer, parameters: "list[nn.Parameter]") -> None:
    for parameter in parameters:
        state = optimizer.state.get(parameter)
        for name, value in (state or {}).items():
            if isinstance(value, torch.Tensor) and value.dim() > 1:
                raise RuntimeError(f"the optimizer's {name} has the shape {tuple(value.shape)} of a parameter that is "
                                   "sharded now: make the optimizer after shard(), or load its state by zerod.torch")


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if "_zerod_part" in optimizer.__dict__:
        return
    for model, parameters in _sharded(optimizer).items():
        model.after_step(parameters)
