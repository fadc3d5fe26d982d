# SPDX-License-Identifier: Apache-2.0
"""The parameters of each unit.

A policy chooses modules. Each chosen module, and the root, is a block. The default policy chooses repeated modules, and other
large ones: embeddings and the head. A parameter belongs to the innermost block that contains all modules which own it: tied
parameters belong to their common ancestor. The parameters of a block with one dtype and one requires_grad form a unit, with views
aligned to 256 bytes.
"""
from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Callable, Collection, Iterable, Optional, Union

import torch
from torch import nn

import zerod

from .environment import MOST_UNIT_BYTES, agree, short_name
from .offload import ON_DEVICE, Placement
from .replicas import Replicas

Policy = Union[None, Callable[[str, nn.Module], bool], Iterable[Any]]
ALIGN_BYTES = 256
LARGE_NUMEL = 1 << 20  # an embedding or a head of so many elements is a block by default


@dataclass
class Member:
    """A parameter: its name, its true shape, and every place that owns it."""

    name: str
    parameter: nn.Parameter
    owners: list[tuple[nn.Module, str]]
    shape: torch.Size
    numel: int
    offset: int = 0  # elements from the unit's start

    def show(self, parameter: Optional[nn.Parameter]) -> None:
        """The modules have this parameter."""
        for owner, name in self.owners:
            owner._parameters[name] = parameter


@dataclass
class UnitPlan:
    name: str
    dtype: torch.dtype  # of the gathered weights
    source_dtype: torch.dtype  # of the parameters in the module
    trainable: bool
    members: list[Member] = field(default_factory=list)
    numel: int = 0
    placement: Placement = ON_DEVICE  # the same for all units of a block

    def add(self, member: Member) -> None:
        align = max(ALIGN_BYTES // self.dtype.itemsize, 1)
        member.offset = -(-self.numel // align) * align
        self.numel = member.offset + member.numel
        self.members.append(member)


@dataclass
class BlockPlan:
    name: str
    module: nn.Module
    parent: int  # index of the innermost enclosing block, -1 for the root
    single: bool = False  # an embedding or a linear layer
    units: list[UnitPlan] = field(default_factory=list)


def default_policy(root: nn.Module) -> list[str]:
    """The outermost modules with parameters in a ModuleList or Sequential, and other large single layers."""
    chosen: list[str] = []
    owners = Counter(id(parameter) for _, module in root.named_modules(remove_duplicate=False)
                     for parameter in module._parameters.values())

    def visit(prefix: str, module: nn.Module) -> None:
        repeated = isinstance(module, (nn.ModuleList, nn.Sequential))
        for name, child in module.named_children():
            path = f"{prefix}.{name}" if prefix else name
            callable_child = not isinstance(child, (nn.ModuleList, nn.ModuleDict))
            if repeated and callable_child and next(child.parameters(), None) is not None:
                chosen.append(path)
            elif is_single(child) and child.weight.numel() >= LARGE_NUMEL and owners[id(child.weight)] == 1:
                chosen.append(path)
            else:
                visit(path, child)

    visit("", root)
    return chosen


def is_single(module: nn.Module) -> bool:
    """Subclasses do not count: their owners can use the weight without a call of the module."""
    return type(module) in (nn.Embedding, nn.Linear)


def plain_name(name: str) -> str:
    """The name without the additions of wrappers: checkpoints do not depend on checkpoint_wrapper() and torch.compile()."""
    return name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")


def choose(root: nn.Module, policy: Policy) -> list[str]:
    """The names of the modules that the policy chooses, in the order of named_modules()."""
    if policy is None:
        wanted = set(default_policy(root))
        return [name for name, _ in root.named_modules() if name in wanted]
    if callable(policy) and not isinstance(policy, type):
        return [name for name, module in root.named_modules() if name and policy(name, module)]
    items = [policy] if isinstance(policy, (type, str, nn.Module)) else list(policy)
    classes = tuple(item for item in items if isinstance(item, type))
    names = {item for item in items if isinstance(item, str)}
    modules = {id(item) for item in items if isinstance(item, nn.Module)}
    chosen = [name for name, module in root.named_modules()
              if name and (isinstance(module, classes) or type(module).__name__ in names or name in names
                           or id(module) in modules)]
    if items and not chosen:
        raise ValueError(f"the policy {policy!r} matches no module of {type(root).__name__}")
    return chosen


def names_of_ignored(root: nn.Module, wanted: "Collection[Any]") -> dict[nn.Parameter, str]:
    """The parameters that shard() does not change, with their names. ValueError for one that is not the module's."""
    names = {parameter: plain_name(name) for name, parameter in root.named_parameters() if parameter in wanted}
    for each in wanted:
        if each not in names:
            told = f"a {type(each).__name__} of shape {tuple(each.shape)}" if isinstance(each, torch.Tensor) else repr(each)
            raise ValueError(f"ignored_params has {told}, which is no parameter of {type(root).__name__}")
    return names


def plan(root: nn.Module, policy: Policy, param_dtype: Optional[torch.dtype], ignored: "Collection[Any]" = ()) -> list[BlockPlan]:
    """The blocks, the root first. ValueError for parameters that cannot be sharded."""
    chosen = choose(root, policy)
    modules = dict(root.named_modules())
    blocks = [BlockPlan("", root, -1)]
    for name in chosen:
        blocks.append(BlockPlan(name, modules[name], _innermost(blocks, name), is_single(modules[name])))
    members = _members(root, blocks, ignored)
    _check_memory(root, [member for member, _ in members], ignored)
    for member, block in members:
        _add(blocks[block], member, param_dtype)
    return blocks


def _check_memory(root: nn.Module, members: list[Member], ignored: "Collection[nn.Parameter]") -> None:
    """ValueError if a parameter shares an element with another tensor of the module: after sharding they would differ."""
    by_storage: dict[int, list[tuple[int, int, str, torch.Tensor]]] = {}
    named = [*((member.name, member.parameter) for member in members), *root.named_buffers(),
             *(("a parameter of ignored_params", parameter) for parameter in ignored)]
    for name, tensor in named:
        with suppress(RuntimeError, NotImplementedError):  # it has no storage: sparse and nested tensors
            storage = tensor.untyped_storage().data_ptr()
            if storage and tensor.numel():  # 0: a meta tensor
                by_storage.setdefault(storage, []).append((*_span(tensor), name, tensor))
    sharded = {id(member.parameter) for member in members}
    for some in by_storage.values():
        some.sort(key=lambda each: each[0])
        for i, (_, end, name, one) in enumerate(some):
            for _, _, other, another in takewhile(lambda each: each[0] < end, some[i + 1:]):
                if (id(one) in sharded or id(another) in sharded) and _overlap(one, another):
                    if id(one) not in sharded:
                        name, other = other, name
                    raise ValueError(f"{name} shares memory with {other}, which is another object: register one parameter under both "
                                     "names, or give each its own memory by clone()")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of its storage that the tensor has, and the byte after the last."""
    first = tensor.storage_offset() * tensor.element_size()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return first, first + (last + 1) * tensor.element_size()


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors over one storage have a byte in common. Their spans overlap."""
    first, marks = min(_span(one)[0], _span(other)[0]), None
    for tensor in (one, other):
        size = tensor.element_size()
        if marks is None:
            marks = torch.zeros(max(_span(one)[1], _span(other)[1]) - first, dtype=torch.bool)
        its = marks.as_strided((*tensor.shape, size), (*(size * stride for stride in tensor.stride()), 1), _span(tensor)[0] - first)
        if tensor is other:
            return bool(its.any())
        its.fill_(True)
    return False


def _innermost(blocks: list[BlockPlan], path: str) -> int:
    """The index of the innermost block that is, or contains, the module at the path."""
    return max((i for i, block in enumerate(blocks) if i == 0 or f"{path}.".startswith(f"{block.name}.")),
               key=lambda i: len(blocks[i].name))


def _members(root: nn.Module, blocks: list[BlockPlan], ignored: "Collection[Any]") -> list[tuple[Member, int]]:
    found: dict[int, tuple[Member, int]] = {}
    for path, module in root.named_modules(remove_duplicate=False):
        for name, parameter in module._parameters.items():
            if parameter is None or parameter in ignored:
                continue
            full = f"{path}.{name}" if path else name
            inside = _innermost(blocks, path)
            known = found.get(id(parameter))
            if known is None:
                _check(full, parameter)
                found[id(parameter)] = (Member(plain_name(full), parameter, [(module, name)], parameter.shape,
                                               parameter.numel()), inside)
            else:
                if (module, name) not in known[0].owners:
                    known[0].owners.append((module, name))
                found[id(parameter)] = (known[0], _common(blocks, known[1], inside))
    return list(found.values())


def _common(blocks: list[BlockPlan], a: int, b: int) -> int:
    above = set()
    while a >= 0:
        above.add(a)
        a = blocks[a].parent
    while b not in above:
        b = blocks[b].parent
    return b


def _check(name: str, parameter: nn.Parameter) -> None:
    if type(parameter) is not nn.Parameter:
        if hasattr(parameter, "part"):
            raise ValueError(f"{name} is sharded already")
        raise ValueError(f"{name} is a {type(parameter).__name__}: only nn.Parameter can be sharded")
    if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        raise ValueError(f"{name} has a gradient hook, which would never run: the daemon sums gradients. Remove it before shard()")
    if getattr(parameter, "grad_dtype", parameter.dtype) != parameter.dtype:  # torch 2.10 and newer
        raise ValueError(f"{name}.grad_dtype is {parameter.grad_dtype}, and a sharded parameter's gradient has its own dtype, "
                         f"{parameter.dtype}: param_dtype= computes with another dtype")
    if parameter.layout != torch.strided:
        raise ValueError(f"{name} has the layout {parameter.layout}")


def check_devices(blocks: list[BlockPlan], device: torch.device, ignored: dict[nn.Parameter, str]) -> None:
    """ValueError for parameters on other devices than the rank's, the CPU and the meta device, and for ignored ones on the
    last."""
    for parameter, name in ignored.items():
        if parameter.is_meta:
            raise ValueError(f"{name} of ignored_params is on the meta device, and rank 0 does not give it values")
    for member in (member for block in blocks for unit in block.units for member in unit.members):
        found = member.parameter.device
        if found.type not in ("cpu", "meta") and found != device:
            raise ValueError(f"{member.name} is on {found}, and this rank's device is {device}: "
                             "shard() takes a model on that device, the CPU or the meta device")


def _digest(text: str) -> int:
    """A digest that a float64 represents exactly."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def check_same(group: zerod.Group, blocks: list[BlockPlan], arguments: str, replicas: Optional[Replicas]) -> None:
    """Mismatch on all ranks if they have different models, or different arguments of shard()."""
    lines = [arguments] + [f"{unit.name!r} of {unit.numel} elements of {str(unit.dtype)[6:]}, "
                           + ", ".join(f"{member.name}{list(member.shape)}" for member in unit.members)
                           for block in blocks for unit in block.units]
    failure = None
    try:
        _check_group(group, lines)
    except zerod.Mismatch as mismatch:
        failure = mismatch
    if replicas is not None:
        replicas.check_same(failure, _digest("\n".join(lines)))
    if failure is not None:
        raise failure


def _check_group(group: zerod.Group, lines: list[str]) -> None:
    """Mismatch on all ranks of the group. The text names two ranks, and the first line that differs."""
    whole = float(_digest("\n".join(lines)))
    low, high, most = group.agree(zerod.AgreeOp.MAX, [-whole, whole, float(len(lines))])
    if -low == high:
        return
    lines = lines + ["nothing"] * (int(most) - len(lines))
    here = [float(_digest(line)) for line in lines]
    lowest, highest = agree(group, zerod.AgreeOp.MIN, here), agree(group, zerod.AgreeOp.MAX, here)
    first = next(i for i in range(len(here)) if lowest[i] != highest[i])
    ranks = group.agree(zerod.AgreeOp.MIN, [float(group.rank if here[first] == each else group.world_size)
                                            for each in (lowest[first], highest[first])])
    what = (f"models: unit {first - 1} of rank {group.rank} is" if first else
            f"arguments of shard(): those of rank {group.rank} are")
    raise zerod.errors.error(zerod.Status.MISMATCH, f"ranks {int(min(ranks))} and {int(max(ranks))} have different "
                             f"{what} {lines[first][:300]}")


def _add(block: BlockPlan, member: Member, param_dtype: Optional[torch.dtype]) -> None:
    source = member.parameter.dtype
    dtype = param_dtype if param_dtype is not None and source.is_floating_point else source
    trainable = member.parameter.requires_grad
    for unit in block.units:
        if (unit.source_dtype, unit.trainable) == (source, trainable):
            unit.add(member)
            return
    kind = str(source).rsplit(".", 1)[1] + ("" if trainable else ".frozen")
    unit = UnitPlan(short_name(f"{plain_name(block.name + '.')[:-1] or '(root)'}:{kind}", MOST_UNIT_BYTES), dtype, source, trainable)
    unit.add(member)
    block.units.append(unit)
