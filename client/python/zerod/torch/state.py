# SPDX-License-Identifier: Apache-2.0
"""Sharded state for torch.distributed.checkpoint, of a model and of its optimizer, by the parameters' names."""
from __future__ import annotations

import copy
import importlib.util
from contextlib import nullcontext
from typing import Any, Optional

import torch
from torch import nn

from . import plain
from .layout import plain_name
from .model import Model
from .sharded import ShardedTensor, as_plain, part_of


def checkpointable() -> bool:
    """Whether this torch's distributed checkpoints read a tensor in parts. Those of torch 2.4 do not."""
    return importlib.util.find_spec("torch.distributed._checkpointable") is not None


def model_state(model: Model, module: nn.Module) -> dict[str, Any]:
    """{name: this rank's part}, which are the slices themselves, including tied names. Also buffers and extra state."""
    if not checkpointable():
        raise NotImplementedError(f"sharded checkpoints need a newer torch than {torch.__version__}: full=True works")
    model.settle()
    state: dict[str, Any] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        prefix = plain_name(f"{prefix}." if prefix else "")
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                state[prefix + name] = parameter.detach()
        for name, buffer in owner._buffers.items():
            if buffer is not None and name not in owner._non_persistent_buffers_set:
                state[prefix + name] = buffer
        if type(owner).get_extra_state is not nn.Module.get_extra_state:
            state[f"{prefix}_extra_state"] = owner.get_extra_state()
    return state


def save_planner(model: Model) -> Any:
    """For writing: tensors that are not sharded can differ between ranks. The first rank's are written."""
    from torch.distributed.checkpoint import DefaultSavePlanner
    from torch.distributed.checkpoint.planner import WriteItemType

    class Planner(DefaultSavePlanner):
        def create_local_plan(self) -> Any:
            plan = super().create_local_plan()
            if model.rank or model.replicas is not None and model.replicas.row:
                plan.items[:] = [item for item in plan.items
                                 if item.type != WriteItemType.TENSOR or item.index.fqn.startswith("extra.")]
            return plan

    return Planner()


def load_model_state(module: nn.Module, state: dict[str, Any]) -> None:
    """Loads the result of model_state(). Values of parameters and buffers can already be in place."""
    for prefix, owner in module.named_modules(remove_duplicate=False):
        key = plain_name(f"{prefix}." if prefix else "") + "_extra_state"
        if key in state:
            owner.set_extra_state(state[key])


def make_state(model: Model, optimizer: torch.optim.Optimizer, only: Optional[nn.Parameter] = None) -> None:
    """Makes the optimizer's state, or that of one parameter, with a step of rate zero, so that a state can be read into it."""
    if model.durable is not None:
        model.durable.take(optimizer, list(named(model, optimizer)))
    if optimizer.state if only is None else only in optimizer.state:
        return
    parameters = list(named(model, optimizer)) if only is None else [only]
    ids = set(map(id, parameters))
    groups = [{**group, "params": [parameter for parameter in group["params"] if id(parameter) in ids],
               "lr": torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0}
              for group in optimizer.param_groups]
    model.settle()
    with as_plain(), model.updates.writes():
        before = [parameter.detach().clone() for parameter in parameters]
        shown = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter.detach())
        try:
            plain.step(optimizer, groups)
        finally:
            with torch.no_grad():
                for parameter, values, gradient in zip(parameters, before, shown):
                    parameter.detach().copy_(values)
                    parameter.grad = gradient


def named(model: Model, optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, str]:
    """The optimizer's sharded parameters, and those that shard() has ignored, with their names."""
    found = {}
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        part = part_of(parameter)
        name = model.ignored.get(parameter) if part is None else part.name
        if name is not None:
            found[parameter] = name
    return found


def optimizer_state(model: Model, optimizer: torch.optim.Optimizer, full: bool) -> dict[str, Any]:
    """{"state": {name: {key: value}}, "param_groups": [...]}: by names, which do not depend on an order.

    With full it has whole tensors, and every rank takes part.
    """
    names = named(model, optimizer)
    if model.durable is not None:
        model.durable.take(optimizer, list(names))
    model.settle()
    state = {name: {key: value.whole() if full and isinstance(value, ShardedTensor) else value
                    for key, value in optimizer.state.get(parameter, {}).items()} for parameter, name in names.items()}
    groups = [{**group, "params": [names[parameter] for parameter in group["params"] if parameter in names]}
              for group in optimizer.param_groups]
    return {"state": state, "param_groups": groups}


def whole_state(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    """One parameter's state, as copies. Every rank calls it."""
    _prepare(optimizer, parameter)
    return {key: value.whole() if isinstance(value, ShardedTensor) else copy.deepcopy(value)
            for key, value in optimizer.state.get(parameter, {}).items()}


def set_whole_state(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, values: dict[str, Any]) -> None:
    """Loads the result of whole_state(). Every rank calls it. ValueError for other keys or shapes than the optimizer's."""
    model = _prepare(optimizer, parameter)
    make_state(model, optimizer, parameter)
    with nullcontext() if model.durable is None else model.updates.writes():
        _load_one(optimizer, parameter, named(model, optimizer)[parameter], values)


def _prepare(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> Model:
    part = part_of(parameter)
    if part is None or not any(parameter is each for group in optimizer.param_groups for each in group["params"]):
        raise ValueError(f"the parameter of shape {tuple(parameter.shape)} is " +
                         ("not one of a sharded model" if part is None else f"{part.name}, which the optimizer does not step"))
    if part.owner.durable is not None:
        part.owner.durable.take(optimizer, list(named(part.owner, optimizer)))
    part.owner.settle()
    return part.owner


def planner() -> Any:
    """For reading: does not read optimizer state of parameters for which the checkpoint has none."""
    from torch.distributed.checkpoint import DefaultLoadPlanner

    class Planner(DefaultLoadPlanner):
        def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
            if "optimizer" in state_dict:
                asked = state_dict["optimizer"]
                for name, kept in asked["state"].items():
                    if not any(f"optimizer.state.{name}.{key}" in metadata.state_dict_metadata for key in kept):
                        kept.clear()
                asked["param_groups"] = _saved_groups(metadata)
            super().set_up_planner(state_dict, metadata, is_coordinator)

    return Planner()


def _saved_groups(metadata: Any) -> list[Any]:
    """Room for the groups of the checkpoint, which can differ from the optimizer's."""
    made: Any = {}
    for key, found in metadata.state_dict_metadata.items():
        path = metadata.planner_data.get(key, ())
        if tuple(path[:2]) != ("optimizer", "param_groups"):
            continue
        at = made
        for step in path[2:-1]:
            at = at.setdefault(step, {})
        at[path[-1]] = torch.empty(found.size, dtype=found.properties.dtype) if hasattr(found, "size") else None

    def listed(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        values = {key: listed(each) for key, each in value.items()}
        return [values[index] for index in range(len(values))] if values and all(isinstance(key, int) for key in values) else values

    return listed(made) or []


def load_optimizer_state(model: Model, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads the result of optimizer_state(), of any number of ranks, or the optimizer's state_dict() of a plain program.
    ValueError for the state of another kind of optimizer."""
    names = named(model, optimizer)
    state = _by_names(optimizer, names, state)
    groups = _groups(optimizer, names, state["param_groups"])
    make_state(model, optimizer)
    model.settle()
    with nullcontext() if model.durable is None else model.updates.writes():  # its state is in units
        for parameter, name in names.items():
            _load_one(optimizer, parameter, name, state["state"].get(name, {}))
    for group, saved in groups:
        group.update({key: value for key, value in saved.items() if key != "params"})


def _by_names(optimizer: torch.optim.Optimizer, known: dict[nn.Parameter, str], state: dict[str, Any]) -> dict[str, Any]:
    """torch numbers the parameters in the order of the groups."""
    saved = state["param_groups"]
    if not any(isinstance(each, int) for group in saved for each in group["params"]):
        return state
    here = [len(group["params"]) for group in optimizer.param_groups]
    there = [len(group["params"]) for group in saved]
    if here != there:
        raise ValueError(f"the loaded state has groups of {there} parameters, this optimizer of {here}")
    names = {number: known[parameter] for group, kept in zip(optimizer.param_groups, saved)
             for parameter, number in zip(group["params"], kept["params"]) if parameter in known}
    return {"state": {names[number]: values for number, values in state["state"].items() if number in names},
            "param_groups": [{**group, "params": [names[number] for number in group["params"] if number in names]} for group in saved]}


def _groups(optimizer: torch.optim.Optimizer, known: dict[nn.Parameter, str],
            saved: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(group, its hyperparameters), by the names of the parameters. ValueError if the groups differ."""
    found = []
    by_names = {frozenset(group["params"]): group for group in saved}
    for index, group in enumerate(optimizer.param_groups):
        names = frozenset(known[parameter] for parameter in group["params"] if parameter in known)
        if names not in by_names:
            raise ValueError(f"parameter group {index} of the optimizer has {len(names)} parameters that are no group of the loaded "
                             f"state, such as {min(names, default='none')}; that has {len(saved)} groups, this optimizer "
                             f"{len(optimizer.param_groups)}")
        missing = set(group) - set(by_names[names]) - {"params"}
        if missing:
            raise ValueError(f"the loaded state is of another optimizer: it has no {min(missing)}, which {type(optimizer).__name__} has")
        found.append((group, by_names[names]))
    if len(found) != len(saved):
        raise ValueError(f"the loaded state has {len(saved)} parameter groups, this optimizer has {len(found)}")
    return found


def _load_one(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, name: str, saved: dict[str, Any]) -> None:
    if not saved:  # the parameter had no gradient before it was saved
        optimizer.state.pop(parameter, None)
        return
    mine = optimizer.state[parameter]
    if set(mine) != set(saved):
        raise ValueError(f"the loaded state of {name} has {sorted(saved)}; {type(optimizer).__name__} has {sorted(mine)}")
    for key, value in saved.items():
        if isinstance(mine[key], ShardedTensor) or part_of(parameter) is None and isinstance(value, torch.Tensor):
            if not isinstance(value, torch.Tensor) or value.shape != mine[key].shape:
                raise ValueError(f"the loaded {key} of {name} has the shape {tuple(getattr(value, 'shape', ()))}, this one "
                                 f"{tuple(mine[key].shape)}")
            if value is not mine[key]:
                with torch.no_grad():
                    mine[key].copy_(value)
        else:
            mine[key] = value.clone() if isinstance(value, torch.Tensor) else value
