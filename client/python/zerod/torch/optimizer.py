# SPDX-License-Identifier: Apache-2.0
"""The hooks that torch calls before and after every optimizer's step. They are registered once.

An optimizer with sharded parameters receives two hooks of its own. The last of its pre-hooks replaces it with a copy that steps
plain tensors (plain.py). The first of its post-hooks transfers the copy's state to it.
"""
from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import plain
from .model import Model
from .overlap import UnitOptimizer
from .rules import take_kernels
from .sharded import part_of

_HOOK: Any = "zerod.torch"  # among an optimizer's own hooks


@cache
def register() -> None:
    """Once in a process."""
    take_kernels()
    register_optimizer_step_pre_hook(_before)
    register_optimizer_step_post_hook(_after)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The sharded ones."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"] if part_of(parameter) is not None]


def _run_closure(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    """The arguments of a step whose closure has run. The closure then only returns its loss. None without a closure."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        return None
    with torch.enable_grad():
        losses = [closure()]

    def loss() -> Any:
        if not losses:
            raise NotImplementedError(f"zerod.torch: {type(optimizer).__name__} calls its closure several times in a step; it is "
                                      "called once, before the units' update begins")
        return losses.pop()

    return ((args[0], loss, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": loss})


def _before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    """args starts with the optimizer itself."""
    if "_zerod_copy" in optimizer.__dict__:  # plain.step() calls it
        return None
    found: dict[Model, list[nn.Parameter]] = {}
    for parameter in parameters_of(optimizer):
        found.setdefault(parameter.part.owner, []).append(parameter)  # type: ignore[attr-defined]
    optimizer.__dict__["_zerod_stepping"] = found
    if not found:
        return None
    changed = _run_closure(optimizer, args, kwargs)
    first = _HOOK not in optimizer._optimizer_step_pre_hooks
    optimizer._optimizer_step_pre_hooks[_HOOK], optimizer._optimizer_step_post_hooks[_HOOK] = _copy, _take_state
    optimizer._optimizer_load_state_dict_post_hooks[_HOOK] = plain.forget
    optimizer._optimizer_step_pre_hooks.move_to_end(_HOOK)  # type: ignore[attr-defined]
    optimizer._optimizer_step_post_hooks.move_to_end(_HOOK, last=False)  # type: ignore[attr-defined]
    for model, parameters in found.items():
        if model.durable is not None:
            model.durable.take(optimizer, parameters)
        if model.gradients.fetcher.runs_optimizer:
            _check_overlap(model, optimizer)
        if model.offload.optimizer:
            _fetch_scale(optimizer)
        model.steps.before_optimizer(parameters, first, by_unit=isinstance(optimizer, UnitOptimizer))
    return changed


def _copy(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    if isinstance(optimizer, UnitOptimizer):  # cuts its own state
        return None
    if plain.is_elementwise(optimizer):
        return (plain.begin(optimizer, optimizer.param_groups, keep=True), *args[1:]), kwargs
    for parameter in parameters_of(optimizer):
        plain.cut_state(parameter.part, optimizer.state.get(parameter, {}))  # type: ignore[attr-defined]
    return None


def _take_state(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if args[0] is not optimizer:
        plain.end(optimizer, args[0].values)


def _check_overlap(model: Model, optimizer: torch.optim.Optimizer) -> None:
    if optimizer is not model.gradients.fetcher.optimizer:  # type: ignore[attr-defined]
        raise RuntimeError("optimizer_in_backward() was given another optimizer: a model has one in its backward, for all "
                           "of its parameters")
    if getattr(optimizer, "found_inf", None) is not None:
        raise RuntimeError("GradScaler does not work with optimizer_in_backward(): whether a gradient has overflown is known "
                           "when the optimizer has run. Use bfloat16, which needs no scaling, or an ordinary optimizer")


def _fetch_scale(optimizer: torch.optim.Optimizer) -> None:
    """GradScaler's values, for a fused optimizer. Torch copies them to the CPU, where its kernels do not wait for that."""
    for name in ("grad_scale", "found_inf"):
        value = getattr(optimizer, name, None)
        if isinstance(value, torch.Tensor):
            setattr(optimizer, name, value.cpu())


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if "_zerod_copy" not in optimizer.__dict__:
        for model, parameters in optimizer.__dict__.pop("_zerod_stepping", {}).items():
            model.steps.after_optimizer(parameters)
