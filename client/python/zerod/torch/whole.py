# SPDX-License-Identifier: Apache-2.0
"""Whole parameters outside of a forward: for state_dict(), load_state_dict(), and programs that look or write.

Weights that are their own masters are gathered by one rank alone. Masters of another type are put together by a
unit that lasts for the call, in which every rank takes part.
"""
from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

import torch
from torch import nn

from zerod import structs as s

from .environment import DTYPES
from .parameter import ShardedParameter
from .tensors import tensor_at

if TYPE_CHECKING:
    from .model import Model
    from .unit import FlatUnit


def assemble(unit: "FlatUnit", part: torch.Tensor) -> torch.Tensor:
    """The whole of which each rank has a part (true_numel elements of any floating type). Every rank calls it."""
    model = unit.block.model
    stream = model.environment.stream()
    with_room = model.environment.with_room
    group = model.passing_group()
    made = with_room(group.register, model.passing_name(unit), DTYPES[part.dtype], unit.shard.padded_numel,
                     flags=s.UnitFlags.FROZEN | unit.placement.own_flags)
    try:
        shard = made.shard()
        group.update_begin([made])
        if part.numel():
            tensor_at(shard.data, part.numel(), part.dtype, unit.placement.own_device(model.environment)).copy_(part)
        group.publish([made], unit.placement.own_stream(model.environment))
        address = with_room(made.gather, stream)
        whole = tensor_at(address, unit.numel, part.dtype, unit.device).to(unit.placement.torch_device(model.environment),
                                                                           copy=True)
        made.release(stream, None)
        group.barrier()  # the unit goes when nobody reads it any more
    finally:
        made.unregister()
    return whole


def read(unit: "FlatUnit") -> torch.Tensor:
    """The unit's parameters in their own type, flat, in memory of torch's on the parameters' device."""
    model = unit.block.model
    model.settle()
    casts = unit.dtype != unit.source_dtype
    if casts and unit.master is not None and unit.master_unit is None:
        return assemble(unit, unit.master)
    environment = model.environment
    stream = environment.stream()
    source = unit.master_unit if casts and unit.master_unit is not None else unit.unit
    address = environment.with_room(source.gather, stream)
    whole = tensor_at(address, unit.numel, unit.source_dtype, unit.device).to(unit.placement.torch_device(environment),
                                                                              copy=True)
    source.release(stream, None)
    return whole


class _Reader:
    """Keeps the unit that was read last, since parameters of one unit are asked for one after another."""

    def __init__(self) -> None:
        self.unit: "Optional[FlatUnit]" = None
        self.parts: list[torch.Tensor] = []

    def __call__(self, parameter: torch.Tensor) -> torch.Tensor:
        unit, index = parameter._zerod
        if self.unit is not unit:
            self.parts = unit._split(read(unit))
            self.unit = unit
        return self.parts[index].clone()


def write(unit: "FlatUnit", index: int, value: torch.Tensor) -> None:
    """This rank's slice of a parameter, from the whole; inside an update of the unit."""
    member = unit.members[index]
    first, last = unit.bounds(member)
    begin = first + unit.shard.offset_numel - member.offset
    if last > first:
        unit.own[first:last].copy_(value.reshape(-1)[begin:begin + last - first])


def _why_not(key: str, value: Any, shape: tuple[int, ...]) -> str:
    """Why this value of a checkpoint cannot become the parameter's, or nothing."""
    if not isinstance(value, torch.Tensor):
        return f"{key} is no tensor in the checkpoint, but {type(value).__name__}"
    if value.is_meta:
        return f"{key} is a meta tensor in the checkpoint, which has no values"
    if tuple(value.shape) != shape:
        return f"size mismatch for {key}: {tuple(value.shape)} in the checkpoint, {shape} in the model"
    return ""


def begin_loading(model: "Model") -> None:
    """All slices may be written until end_loading(). Every rank calls it.

    The barrier comes first: a rank that still reads the former weights would wait for the new ones, also its own.
    """
    model.settle()
    model.load_depth += 1
    if model.load_depth == 1:
        model.release_kept()
        model.offload.wait()
        model.group.barrier()
        model.group.update_begin([unit.unit for unit in model.units])
        if model.durable is not None:
            model.durable.begin_update(all_masters=True)


def end_loading(model: "Model") -> None:
    model.load_depth -= 1
    if model.load_depth == 0:
        for unit in model.units:
            unit.publish()
        if model.durable is not None:
            model.durable.publish_slabs()


@contextmanager
def loading(model: "Model") -> Iterator[None]:
    """begin_loading() and end_loading()."""
    begin_loading(model)
    try:
        yield
    finally:
        end_loading(model)


@contextmanager
def full_parameters(model: "Model", write_back: bool = False, units: "Optional[list[FlatUnit]]" = None) -> Iterator[None]:
    """The module shows whole parameters inside, copies in memory of torch's.

    With write_back what they hold on rank 0 then becomes all ranks' weights, and every rank enters it.
    """
    units = model.units if units is None else units
    copies: list[tuple["FlatUnit", list[nn.Parameter]]] = []
    for unit in units:
        parts = unit._split(read(unit))
        copies.append((unit, [nn.Parameter(part, requires_grad=False) for part in parts]))
    for unit, parameters in copies:
        for member, parameter in zip(unit.members, parameters):
            for owner, name in member.owners:
                owner._parameters[name] = parameter
    try:
        yield
    finally:
        for unit, _ in copies:
            for member in unit.members:
                for owner, name in member.owners:
                    owner._parameters[name] = member.parameter
    if write_back:
        model.group.barrier()  # see begin_loading()
        for unit, parameters in copies:
            unit.fill([parameter.detach() for parameter in parameters], model.group_loads())


def _apply_of(model: "Model", owner: nn.Module) -> Callable:
    """The function behind to(), half(), cpu() and the like: it changes buffers, and raises if parameters would change."""
    def apply(change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        for dtype in {unit.own.dtype for unit in model.units}:
            before = torch.empty(0, dtype=dtype, device=model.device)
            after = change(before)
            if (after.dtype, after.device) != (before.dtype, before.device):
                raise RuntimeError(f"a sharded model keeps its dtype and device: {dtype} on {before.device} cannot become "
                                   f"{after.dtype} on {after.device}. Change it before shard(), or use param_dtype")
        for part in owner.modules() if recurse else (owner,):
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = change(buffer)
        return owner

    return apply


def refuse_copies(module: nn.Module) -> None:
    """deepcopy() and pickling raise: a copy would share the daemon's memory with the module, or have none."""
    def refuse(*_: Any) -> Any:
        raise TypeError(f"a sharded {type(module).__name__} is neither copied nor pickled: "
                        "use zerod.torch.state_dict() or save()")

    for name in ("__deepcopy__", "__reduce_ex__"):
        object.__setattr__(module, name, refuse)


def refuse_ddp() -> None:
    """DistributedDataParallel around sharded parameters raises: it would broadcast rank 0's slices. torch has no hook there."""
    plain = nn.parallel.DistributedDataParallel.__init__
    if hasattr(plain, "_zerod_refuses"):
        return

    @wraps(plain)
    def init(self: nn.Module, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        for name, parameter in module.named_parameters():
            if isinstance(parameter, ShardedParameter):
                raise RuntimeError(f"DistributedDataParallel around a sharded parameter ({name}): zerod.torch sums the gradients "
                                   "of all ranks. Call the module that shard() returned")
        plain(self, module, *args, **kwargs)

    init._zerod_refuses = True  # type: ignore[attr-defined]
    nn.parallel.DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def install(model: "Model", module: nn.Module) -> None:
    """state_dict() gives whole parameters, and load_state_dict() takes them, of the module and of parts of it."""
    reader = _Reader()

    def after_state_dict(owner: nn.Module, state: dict, prefix: str, _: Any) -> None:
        for name, parameter in owner._parameters.items():
            if isinstance(parameter, ShardedParameter) and prefix + name in state:
                state[prefix + name] = reader(parameter)
        if owner is module:
            reader.unit, reader.parts = None, []

    def before_load(owner: nn.Module, state: dict, prefix: str, metadata: dict, strict: bool, missing: list,
                    unexpected: list, errors: list) -> None:
        begin_loading(model)
        for name, parameter in owner._parameters.items():
            key = prefix + name
            if not isinstance(parameter, ShardedParameter) or key not in state:
                continue
            unit, index = parameter._zerod
            wrong = _why_not(key, state[key], tuple(unit.members[index].shape))
            if wrong:
                errors.append(wrong)
            else:
                with torch.no_grad():
                    write(unit, index, state[key])
            state[key] = parameter.detach()
            metadata["assign_to_params_buffers"] = False  # the memory is the daemon's: values are copied

    def after_load(owner: nn.Module, _: Any) -> None:
        end_loading(model)

    for owner in module.modules():
        owner._apply = _apply_of(model, owner)  # type: ignore[method-assign]
        model.removable += [owner._register_state_dict_hook(after_state_dict),
                            owner._register_load_state_dict_pre_hook(before_load, with_module=True),
                            owner.register_load_state_dict_post_hook(after_load)]
