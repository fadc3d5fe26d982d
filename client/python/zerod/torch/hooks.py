# SPDX-License-Identifier: Apache-2.0
"""How autograd saves gathered memory: as (unit, offset, sizes, strides), which backward gathers again.

The pair of hooks is one for all models. Torch applies only the innermost pair, so `push()` also calls the pair that
was there before, such as save_on_cpu's, for all other tensors. Under activation checkpointing nothing is pushed:
it counts what is saved, keeps none of it, and runs the forward again in the backward.
"""
from __future__ import annotations

import threading
from typing import Any, Callable, Optional

import torch

from .unit import FlatUnit, storages


def _follow_stack() -> None:
    """Has the functions by which torch installs hooks note them, where torch cannot be asked for the innermost pair."""
    autograd = torch._C._autograd
    push_hooks, pop_hooks = autograd._push_saved_tensors_default_hooks, autograd._pop_saved_tensors_default_hooks
    local = threading.local()

    def push(pack: Callable, unpack: Callable) -> None:
        push_hooks(pack, unpack)
        local.__dict__.setdefault("stack", []).append((pack, unpack))

    def pop() -> None:
        pop_hooks()
        if getattr(local, "stack", None):
            local.stack.pop()

    def top(_: bool = False) -> Optional[tuple]:
        stack = getattr(local, "stack", None)
        return stack[-1] if stack else None

    autograd._push_saved_tensors_default_hooks = push
    autograd._pop_saved_tensors_default_hooks = pop
    autograd._top_saved_tensors_default_hooks = top


_autograd = torch._C._autograd
if not hasattr(_autograd, "_top_saved_tensors_default_hooks"):
    _follow_stack()  # torch 2.4 and 2.5
_top = _autograd._top_saved_tensors_default_hooks
_push = _autograd._push_saved_tensors_default_hooks
_pop = _autograd._pop_saved_tensors_default_hooks
_task = torch._C._current_graph_task_id


class Packed:
    """A view of a unit's gathered memory, of one version."""

    __slots__ = ("unit", "version", "size", "stride", "offset", "dtype")

    def __init__(self, unit: FlatUnit, tensor: torch.Tensor) -> None:
        self.unit = unit
        self.version = unit.version
        self.size = tensor.size()
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()
        self.dtype = tensor.dtype


class _Outer:
    """A tensor that an outer pair of hooks has packed."""

    __slots__ = ("unpack", "packed")

    def __init__(self, unpack: Callable[[Any], torch.Tensor], packed: Any) -> None:
        self.unpack = unpack
        self.packed = packed


def pack(tensor: torch.Tensor) -> Any:
    unit = storages.get(tensor.untyped_storage()._cdata)
    return tensor if unit is None else Packed(unit, tensor)


def unpack(packed: Any) -> torch.Tensor:
    if type(packed) is Packed:
        return _gathered(packed)
    return packed


def _gathered(packed: Packed) -> torch.Tensor:
    unit = packed.unit
    if unit.version != packed.version:
        raise RuntimeError(f"{unit.name} was updated between forward and backward: its weights of that forward are gone")
    flat = unit.block.model.backward_flat(unit)
    if packed.dtype != flat.dtype:
        flat = flat.view(packed.dtype)
    return flat.as_strided(packed.size, packed.stride, packed.offset)


def _composed(outer: tuple[Callable, Callable]) -> tuple[Callable, Callable]:
    outer_pack, outer_unpack = outer

    def both_pack(tensor: torch.Tensor) -> Any:
        unit = storages.get(tensor.untyped_storage()._cdata)
        return Packed(unit, tensor) if unit is not None else _Outer(outer_unpack, outer_pack(tensor))

    def both_unpack(packed: Any) -> torch.Tensor:
        return _gathered(packed) if type(packed) is Packed else packed.unpack(packed.packed)

    both_pack._zerod = True  # type: ignore[attr-defined]
    return both_pack, both_unpack


pack._zerod = True  # type: ignore[attr-defined]


def ours_apply() -> bool:
    """Whether what is saved now goes by these hooks."""
    top = _top(False)
    return top is not None and hasattr(top[0], "_zerod")


def _checkpoints(top: Optional[tuple]) -> bool:
    return top is not None and "checkpoint" in getattr(top[0], "__module__", "")


def push() -> bool:
    """Installs the hooks until pop(); False where they apply already, save nothing, or must not."""
    if not torch.is_grad_enabled() or _task() != -1:
        return False
    top = _top(False)
    if top is None:
        _push(pack, unpack)
        return True
    if hasattr(top[0], "_zerod") or _checkpoints(top):
        return False
    _push(*_composed(top))
    return True


def pop() -> None:
    _pop()


class Boundary(torch.autograd.Function):
    """The identity on a block's inputs. Its backward runs when the block's own backward is over."""

    @staticmethod
    def forward(ctx: Any, block: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.block = block
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Optional[torch.Tensor], ...]:
        ctx.block.model.passed(ctx.block)
        return (None, *gradients)


def before_backward(output: Any, hook: Callable[[torch.Tensor], None]) -> None:
    """Calls the hook when a tensor of the output gets its gradient."""
    if isinstance(output, torch.Tensor):
        if output.requires_grad:
            output.register_hook(hook)
    elif isinstance(output, (list, tuple)):
        for each in output:
            before_backward(each, hook)
    elif isinstance(output, dict):
        for each in output.values():
            before_backward(each, hook)


def with_boundary(block: Any, args: Any, kwargs: Any) -> Any:
    """args and kwargs with a Boundary on every tensor that needs a gradient."""
    found: list[torch.Tensor] = []

    def collect(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                found.append(value)
        elif type(value) in (list, tuple):
            for each in value:
                collect(each)
        elif type(value) is dict:
            for each in value.values():
                collect(each)

    collect(args)
    collect(kwargs)
    if not found:
        return args, kwargs
    made = iter(Boundary.apply(block, *found))

    def replace(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return next(made) if value.requires_grad else value
        if type(value) in (list, tuple):
            return type(value)(replace(each) for each in value)
        if type(value) is dict:
            return {key: replace(each) for key, each in value.items()}
        return value

    return replace(args), replace(kwargs)
