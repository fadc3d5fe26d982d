# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps on plain tensors: this rank's values of parameters, gradients and state.

The elementwise optimizers of torch.optim need no rule of rules.py, because they compute each element separately. A copy of the
optimizer steps instead of it, with plain tensors in its groups and its state. The program's optimizer is not changed meanwhile.
Its hooks therefore see sharded tensors, and nothing has to be restored after an exception. All other optimizers step the sharded
tensors.
"""
from __future__ import annotations

from collections import OrderedDict, defaultdict
from operator import is_
from typing import Any

import torch
from torch import optim

from . import sharded
from .sharded import Part, ShardedTensor, as_plain, part_of

_ELEMENTWISE = frozenset([optim.Adam, optim.AdamW, optim.SGD, optim.NAdam, optim.RAdam, optim.Adamax, optim.ASGD, optim.RMSprop,
                          optim.Rprop, optim.Adagrad, optim.Adadelta])
_NUMBERS = frozenset(["step", "mu_product", "eta", "mu"])  # in their state: one per parameter, not one per element
_KEPT = "_zerod_plain"  # in an optimizer's __dict__: the Values of its last step


def is_elementwise(optimizer: optim.Optimizer) -> bool:
    return type(optimizer) in _ELEMENTWISE and not any(
        options.get("differentiable") for options in (optimizer.defaults, *optimizer.param_groups))


def copy_of(optimizer: optim.Optimizer, groups: list[dict[str, Any]]) -> Any:
    """The optimizer with only these groups, with the same state and without hooks."""
    made = object.__new__(type(optimizer))
    made.__dict__.update(optimizer.__dict__, param_groups=groups, _zerod_copy=True, _optimizer_step_pre_hooks=OrderedDict(),
                         _optimizer_step_post_hooks=OrderedDict())
    for name in ("step", _KEPT):  # a scheduler's step() counts the program's steps
        made.__dict__.pop(name, None)
    return made


def cut_state(part: Part, state: dict[str, Any], elementwise: bool = False) -> None:
    """Cuts whole tensors of a checkpoint in a parameter's state to this rank's part of them."""
    for key, value in state.items():
        if value.__class__ is torch.Tensor and value.shape == part.shape and (value.dim() or elementwise and key not in _NUMBERS):
            state[key] = ShardedTensor(part.cut(value).clone(), part)


class Values:
    """Plain tensors for the parameters and the state of an optimizer, valid while `objects` are the same."""

    def __init__(self, optimizer: optim.Optimizer, parameters: list[Any]) -> None:
        self.parameters = parameters
        self.values = [parameter if part_of(parameter) is None else parameter.read_local().detach() for parameter in parameters]
        self.state: dict[torch.Tensor, dict[str, Any]] = defaultdict(dict)
        for parameter, values in zip(parameters, self.values):
            part, state = part_of(parameter), optimizer.state.get(parameter)
            if state and part is not None:
                cut_state(part, state, elementwise=True)
                state = {key: _of_state(value) for key, value in state.items()}
            if state:
                self.state[values] = state
        self.objects: list[Any] = []
        self.tensors = _flat(self.state)


def _of_state(value: Any) -> Any:
    if not isinstance(value, ShardedTensor):
        return value
    value.result = False  # it lasts: its views are read-only, and never replace its values
    return value.writable_local()  # earlier views are outdated after the step


def _flat(state: dict[torch.Tensor, dict[str, Any]]) -> list[Any]:
    return [value for each in state.values() for value in each.values()]


def _objects(optimizer: optim.Optimizer, parameters: list[Any]) -> list[Any]:
    state = _flat(optimizer.state)
    return [sharded.viewed, *parameters, *[parameter if part_of(parameter) is None else parameter.read_local() for parameter in parameters],
            *optimizer.state, *state, *[value._local if value.__class__ is ShardedTensor else None for value in state]]


def _same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def begin(optimizer: optim.Optimizer, groups: list[dict[str, Any]], keep: bool = False) -> Any:
    """A copy of an elementwise optimizer, which steps plain tensors. keep: for its next step with the same groups."""
    with as_plain():
        parameters = [parameter for group in groups for parameter in group["params"]]
        values = optimizer.__dict__.pop(_KEPT, None) if keep else None
        if values is None or not _same(_objects(optimizer, parameters), values.objects):
            values = Values(optimizer, parameters)
        made = copy_of(optimizer, [])
        made.state, made.values = values.state, values
        if keep:
            values.objects, optimizer.__dict__[_KEPT] = _objects(optimizer, parameters), values
        plain = iter(values.values)
        for group in groups:
            stepped = []
            for parameter, each in zip(group["params"], plain):
                gradient = parameter.grad
                if gradient is None:
                    continue
                if each is not parameter:
                    parameter.writable_local()
                    each.grad = gradient.read_local() if isinstance(gradient, ShardedTensor) else parameter.part.cut(gradient)
                stepped.append(each)
            made.param_groups.append({**group, "params": stepped})
    return made


def forget(optimizer: optim.Optimizer) -> None:
    """Called when the optimizer has other state, so that the tensors of its former state are freed."""
    optimizer.__dict__.pop(_KEPT, None)


def end(optimizer: optim.Optimizer, values: Values) -> None:
    """Gives the optimizer the state of the copy that has stepped. Tensors that it already has remain the same objects."""
    for parameter, each in zip(values.parameters, values.values):
        if each is not parameter:
            each.grad = None
    if _same(_flat(values.state), values.tensors):
        return
    for parameter, each in zip(values.parameters, values.values):
        made, part = values.state.get(each), part_of(parameter)
        if made is None or made is optimizer.state.get(parameter):
            continue
        state = optimizer.state[parameter]
        for key, value in made.items():
            before = state.get(key)
            if before is not value and not (isinstance(before, ShardedTensor) and before.read_local() is value):
                is_local = part is not None and isinstance(value, torch.Tensor) and value.shape == each.shape
                state[key] = ShardedTensor(value, part) if is_local else value  # type: ignore[arg-type]


def step(optimizer: optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """Steps only the groups' parameters, without hooks."""
    groups = [group for group in groups if group["params"]]
    made = begin(optimizer, groups) if is_elementwise(optimizer) else copy_of(optimizer, groups)
    type(made).step(made)
    if made.state is not optimizer.state:
        end(optimizer, made.values)
