# SPDX-License-Identifier: Apache-2.0
"""deepcopy() of a sharded module: another sharded module, with the same options and values, in its own group.

The copy is made of plain parameters without values, and sharded like the original. Then each rank copies its slices.
"""
from __future__ import annotations

import copy
import weakref
from functools import partial
from typing import Any, Callable

import torch
from torch import nn

from .model import Model
from .sharded import part_of
from .whole import ATTRIBUTES


def install(model: Model, module: nn.Module, shard: Callable[..., nn.Module]) -> None:
    """deepcopy() of the module copies it. deepcopy() of a part of it, and pickling, raise."""
    for owner in module.modules():
        if any(part_of(parameter) is not None for parameter in owner.parameters()):
            object.__setattr__(owner, "__deepcopy__", partial(_refuse, owner.__class__, "copied alone: copy the whole sharded module"))
            object.__setattr__(owner, "__reduce_ex__", partial(_refuse, owner.__class__, "pickled: use zerod.torch.state_dict() or save()"))
    object.__setattr__(module, "__deepcopy__", partial(_copied, weakref.ref(model), shard))


def _refuse(kind: type, why: str, *_: Any) -> Any:
    raise TypeError(f"a sharded {kind.__name__} is not {why}")


def _copied(its: "weakref.ref[Model]", shard: Callable[..., nn.Module], memo: dict[int, Any]) -> nn.Module:
    """Every rank calls it."""
    model = its()
    module = None if model is None else model.module()
    assert model is not None and module is not None
    if model.durable is not None:
        _refuse(type(module), "copied if it has durable=: the job has one module of its name")
    if model.outermost is not None or model.in_backward:
        raise RuntimeError(f"deepcopy() of a sharded {type(module).__name__} in its forward or backward: copy it between two steps")
    model.settle()
    units = [(unit, member) for unit in model.units for member in unit.members]
    for unit, member in units:
        memo[id(member.parameter)] = nn.Parameter(torch.empty(member.shape, dtype=unit.source_dtype, device="meta"), unit.planned)
    made = _without_model(model, module, memo)
    shard(made, **{**model.recovery.arguments, "name": None, "policy": [memo[id(block.module)] for block in model.blocks[1:]],
                   "ignored_params": [memo[id(parameter)] for parameter in model.ignored]})
    with torch.no_grad():
        for _, member in units:
            memo[id(member.parameter)].copy_(member.parameter)
            if member.parameter.requires_grad != memo[id(member.parameter)].requires_grad:
                memo[id(member.parameter)].requires_grad_(member.parameter.requires_grad)
    made._zerod_model.settle()  # type: ignore[union-attr]
    return made


def _without_model(model: Model, module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A copy of the module as it was before shard(), except the parameters, for which `memo` has others."""
    hooks = [(handle.id, [reference() for reference in (handle.hooks_dict_ref, *handle.extra_dict_ref)]) for handle in model.removable]
    for number, (functions, *_) in hooks:
        memo[id(functions[number])] = functions[number]
    attributes = [(owner, {name: owner.__dict__.pop(name) for name in ATTRIBUTES if name in owner.__dict__}) for owner in module.modules()]
    try:
        made = copy.deepcopy(module, memo)
    finally:
        for owner, kept in attributes:
            owner.__dict__.update(kept)
    for number, places in hooks:
        for place in places:
            memo.get(id(place), {}).pop(number, None)  # a module can copy itself without hooks
    return made
