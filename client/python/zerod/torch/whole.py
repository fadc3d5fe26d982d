# SPDX-License-Identifier: Apache-2.0
"""Whole parameters outside of a forward: for state_dict(), load_state_dict(), and programs that read or write.

One rank alone gathers weights that are their own masters. Masters of another type, gradients and the optimizer's state are
gathered by a unit that lasts for the call, in which every rank takes part.
"""
from __future__ import annotations

import weakref
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Sequence

import torch
from torch import nn

import zerod
from zerod import structs as s

from .context import Context
from .environment import DTYPES
from .sharded import Part, part_of
from .tensors import tensor_at
from .unit import FlatUnit

if TYPE_CHECKING:
    from .model import Model


_READS = [0.0] * 11  # no other agreement has as many values


# ---- Reading ----

def passed(context: Context, name: str, local: torch.Tensor, numel: int, reader: Optional[int] = None) -> list[torch.Tensor]:
    """Returns numel elements of each rank: its values, followed by others. Every rank calls it.

    reader: the one rank that receives them. The others return [].
    """
    try:
        context.agree(_READS, zerod.AgreeOp.MIN)
    except zerod.Mismatch as differs:
        raise zerod.errors.error(zerod.Status.MISMATCH, f"{name}: each rank has a part of these values in memory of its own, so all "
                                 f"ranks must read them at the same place of the program: {differs}") from None
    group, stream, device = context.passing_group(), context.stream(), context.client.dlpack_device
    room = -(-max(numel, 1) // 256) * 256  # every rank's part starts where its shard does
    dtype, found = DTYPES[local.dtype], []
    count = context.world * room * local.dtype.itemsize // dtype.itemsize
    made = context.environment.register(group, context.passing_name(name), dtype, count)
    try:
        shard = made.shard()
        group.update_begin([made])
        if local.numel():
            tensor_at(shard.data, local.numel(), local.dtype, device).copy_(local)
        group.publish([made], stream)
        if reader is None or reader == context.rank:
            address = context.environment.with_room(made.gather, stream)
            whole = tensor_at(address, context.world * room, local.dtype, device).clone()
            made.release(stream, None)
            found = [whole[rank * room:rank * room + numel] for rank in range(context.world)]
        group.barrier()  # the unit is unregistered when no rank reads it any more
    finally:
        made.unregister()
    return found


def sum_of_ranks(unit: FlatUnit, gradients: "Sequence[Optional[torch.Tensor]]") -> torch.Tensor:
    """This rank's slice of the sum, or mean, of all ranks' gradients of the unit's members. Every rank calls it. None counts as
    zeros.

    The daemon does not sum in float64. Here each rank gathers its slice of all ranks' gradients and adds them up in rank order.
    """
    context, whole = unit.context, unit.whole_of(gradients)
    parts = [whole]
    if context.world > 1:
        parts = [part for rank, values in enumerate(whole.split(unit.shard.shard_numel))
                 for part in passed(context, f"{unit.name}:sum", values, values.numel(), reader=rank)]
    total = sum(parts[1:], parts[0])[:unit.shard.true_numel]
    if context.settings.op == s.ReduceOp.MEAN:
        total.mul_(1 / context.world)
    return total.to("cpu" if unit.placement.shards_on_host else context.device)


def gather(part: Part, local: torch.Tensor) -> torch.Tensor:
    """The whole tensor of whose range each rank has a part. Every rank calls it."""
    unit, index = part.place
    context, member = unit.context, unit.members[index]
    if context.world == 1:
        return local.clone().view(part.shape)
    step = unit.shard.shard_numel
    counts = [max(min(member.offset + member.numel, (rank + 1) * step) - max(member.offset, rank * step), 0)
              for rank in range(context.world)]
    bits = local.detach().to(context.device)
    if bits.dtype not in DTYPES:
        bits = bits.view({8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[bits.dtype.itemsize])
    found = passed(context, f"{unit.name}:{index}", bits, max(counts))
    whole = torch.cat([each[:count] for each, count in zip(found, counts)])
    return whole.view(local.dtype).view(part.shape).to(local.device)


def read(unit: FlatUnit) -> torch.Tensor:
    """The unit's parameters in their own type, flat, in memory of torch on the parameters' device."""
    context = unit.context
    device = unit.placement.torch_device(context.environment)
    if unit.dtype != unit.source_dtype and context.durable is None:
        parts = passed(context, unit.name, unit.own, unit.shard.shard_numel)
        return torch.cat(parts)[:unit.numel].to(device)
    stream = context.stream()
    source = unit.unit if unit.dtype == unit.source_dtype else unit.written
    address = context.environment.with_room(source.gather, stream)
    whole = tensor_at(address, unit.numel, unit.source_dtype, unit.device).to(device, copy=True)
    source.release(stream, None)
    return whole


def _sum(tensor: torch.Tensor) -> int:
    """A sum that changes with the tensor's bits."""
    if not tensor.numel():
        return 0
    found, step = 0, 1 << 20
    weights = torch.arange(1, step + 1, device=tensor.device)
    for i, chunk in enumerate(tensor.detach().reshape(-1).view(torch.uint8).split(step)):
        found += (i + 1) * int((chunk * weights[:chunk.numel()]).sum())
    return found


@contextmanager
def full_parameters(model: Model, module: nn.Module, write: bool) -> Iterator[nn.Module]:
    """See zerod.torch.full_parameters()."""
    model.settle(reads=not write)
    members = [member for unit in model.units for member in unit.members]
    copies = [nn.Parameter(part, requires_grad=False) for unit in model.units for part in unit.split(read(unit))]
    noted = [(_sum(copy), copy._version) for copy in copies]
    for member, copy in zip(members, copies):
        member.show(copy)
    try:
        yield module
    finally:
        shown = [member.owners[0][0]._parameters.get(member.owners[0][1]) if member.owners else copy
                 for member, copy in zip(members, copies)]
        for member in members:
            member.show(member.parameter)
    for member, copy, before, now in zip(members, copies, noted, shown):
        if write and (now is None or now.shape != copy.shape):
            raise RuntimeError(f"{member.name} was taken away or changed its shape inside full_parameters()")
        if not write and (now is not copy or (_sum(copy), copy._version) != before):
            raise RuntimeError(f"{member.name} was written inside full_parameters(), which shows copies: to keep what is written, "
                               "every rank enters full_parameters(model, write=True)")
    if write:
        model.context.group.barrier()  # see Updates.begin_writes()
        values = iter(shown)
        for unit in model.units:
            model.updates.fill(unit, [next(values).detach() for _ in unit.members])  # type: ignore[union-attr]


# ---- What a sharded module does otherwise than a plain one ----

ATTRIBUTES = ("_zerod_model", "_apply", "_zerod_part_of", "__deepcopy__", "__reduce_ex__", "flatten_parameters")  # of the object

def _apply(model: Model, owner: nn.Module, change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """The function of to(), half(), cpu() and similar calls: changes buffers and ignored parameters. Other changes raise."""
    for dtype in {unit.source_dtype for unit in model.units}:
        before = torch.ones(1, dtype=dtype, device=model.context.device)
        after = change(before.clone())
        if (after.dtype, after.device) != (before.dtype, before.device):
            raise RuntimeError(f"a sharded model keeps its dtype and device: {dtype} on {before.device} cannot become "
                               f"{after.dtype} on {after.device}. Change it before shard(), or use param_dtype")
        empties = getattr(change, "__qualname__", "").startswith("Module.to_empty.")  # any values are allowed: theirs remain
        if not empties and not torch.equal(after, before):
            raise RuntimeError("a sharded model's parameters keep their values in _apply(): write them by copy_()")
    for part in owner.modules() if recurse else (owner,):
        for parameter in part._parameters.values():
            if parameter is not None and part_of(parameter) is None:
                for tensor in (parameter,) if parameter.grad is None else (parameter, parameter.grad):
                    tensor.data = change(tensor.data)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = change(buffer)
    return owner


def _why_not(key: str, value: Any, shape: tuple[int, ...]) -> str:
    """The reason why this value of a checkpoint cannot become the parameter's, or ""."""
    if not isinstance(value, torch.Tensor):
        return f"{key} is no tensor in the checkpoint, but {type(value).__name__}"
    if value.is_meta:
        return f"{key} is a meta tensor in the checkpoint, which has no values"
    if tuple(value.shape) != shape:
        return f"size mismatch for {key}: {tuple(value.shape)} in the checkpoint, {shape} in the model"
    return ""


sharded_states = 0  # get_state_dict() and the like run: state_dict() gives sharded tensors
_keep: Callable[[torch.Tensor], torch.Tensor] = torch.clone  # how state_dict() copies a whole parameter


@contextmanager
def states_on_cpu(wanted: bool) -> Iterator[None]:
    """state_dict() returns whole parameters in the CPU's memory, or without memory on a rank that does not need them."""
    global _keep
    before = _keep
    _keep = (lambda tensor: tensor.to("cpu", copy=True)) if wanted else (lambda tensor: tensor.to("meta"))
    try:
        yield
    finally:
        _keep = before


def install(model: Model, module: nn.Module) -> None:
    """state_dict() of the module and of its parts returns whole parameters, and load_state_dict() accepts them."""
    its = weakref.ref(model)
    last_read: dict[tuple[FlatUnit, int], list[torch.Tensor]] = {}  # parameters of one unit are read one after another

    def before_state_dict(owner: nn.Module, *_: Any) -> None:
        found = its()
        if found is not None:
            found.settle(reads=True)

    def after_state_dict(owner: nn.Module, state: dict, prefix: str, metadata: dict) -> None:
        for name, parameter in owner._parameters.items():
            part = part_of(parameter)
            if part is not None and prefix + name in state and not sharded_states:
                unit, index = part.place
                if (unit, unit.version) not in last_read:
                    last_read.clear()
                    last_read[unit, unit.version] = unit.split(read(unit))
                state[prefix + name] = _keep(last_read[unit, unit.version][index])
        if not prefix or "_zerod_model" in owner.__dict__:
            last_read.clear()

    def before_load(owner: nn.Module, state: dict, prefix: str, metadata: dict, strict: bool, missing: list,
                    unexpected: list, errors: list) -> None:
        if model.steps.running:  # an optimizer has raised in its step, and the other ranks wait to be told
            model.settle()
        for name, parameter in owner._parameters.items():
            key = prefix + name
            if parameter is not None:
                metadata["assign_to_params_buffers"] = False  # the memory is the daemon's: values are copied
            if part_of(parameter) is None or key not in state:
                continue
            wrong = _why_not(key, state[key], tuple(parameter.shape))  # type: ignore[union-attr]
            if wrong:
                errors.append(wrong)
                state[key] = parameter.detach()  # type: ignore[union-attr]

    for owner in module.modules():
        owner._apply = partial(_apply, model, owner)  # type: ignore[method-assign]
        object.__setattr__(owner, "_zerod_part_of", its)
        model.removable += [owner.register_state_dict_pre_hook(before_state_dict),
                            owner._register_state_dict_hook(after_state_dict),
                            owner._register_load_state_dict_pre_hook(before_load, with_module=True)]
    _watch()


def uninstall(owner: nn.Module) -> None:
    """Makes the module a plain one again, except for hooks that torch has registered."""
    for name in ATTRIBUTES:
        owner.__dict__.pop(name, None)


# ---- Parameters and modules that are registered behind shard() ----

@cache
def _watch() -> None:
    """Once in a process."""
    nn.modules.module.register_module_parameter_registration_hook(_registered)
    nn.modules.module.register_module_module_registration_hook(_registered)


def _registered(owner: nn.Module, name: str, _: Any) -> None:
    model = owner.__dict__.get("_zerod_part_of")
    model = None if model is None else model()
    if model is not None:
        model.changed.append((owner, name))


def check_registered(changed: "Sequence[tuple[nn.Module, str]]", model: Any) -> None:
    """RuntimeError if one of them is not sharded. The model's own parameters can be registered again: they are then tied."""
    for owner, name in changed:
        found = owner._parameters.get(name)
        inside = owner._modules.get(name)
        parameters = [(name, found)] if found is not None else inside.named_parameters(name) if inside is not None else []
        for label, parameter in parameters:
            part = part_of(parameter)
            if part is None and any(parameter is leaf for unit in model.units for leaf in unit.leaves):
                raise RuntimeError(f"{type(owner).__name__}.{label} was assigned in a forward, where a weight is a gathered one: assign the "
                                   "parameter outside of forwards, or a clone() of it")
            if parameter in model.ignored:
                continue
            if part is None or part.owner is not model:
                raise RuntimeError(f"{type(owner).__name__}.{label} was added behind shard(), so no rank shards it and no sum has its "
                                   "gradient: add parameters and modules before shard()")
            if parameter is found:
                _tie(owner, name, part, model)


def _tie(owner: nn.Module, name: str, part: Part, model: Any) -> None:
    """From now on the module's parameter of this name is another parameter of the model."""
    for unit in model.units:
        for member in unit.members:
            member.owners = [each for each in member.owners if each[0] is not owner or each[1] != name]
    unit, index = part.place
    unit.members[index].owners.append((owner, name))
    for block in model.blocks:
        block.finish()
