# SPDX-License-Identifier: Apache-2.0
"""Saving of gathered memory by autograd: as (unit, offset, sizes, strides), which the backward gathers again.

The pair of hooks is the same for all models. Torch applies only the innermost pair. `push()` therefore also calls the former
pair, such as save_on_cpu's, for all other tensors. Under activation checkpointing no hooks are pushed: it counts the saved
tensors, stores none, and runs the forward again in the backward.
"""
from __future__ import annotations

import copy
import threading
from typing import Any, Callable, Iterator, NamedTuple, Optional

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from .unit import FlatUnit, Leaf, storages, unit_of


def _follow_stack() -> None:
    """If torch does not report the innermost pair of hooks, the functions that install hooks are wrapped to note them."""
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
pop = _autograd._pop_saved_tensors_default_hooks
_task = torch._C._current_graph_task_id
_PLAIN = (torch.Tensor, nn.Parameter, Leaf)


class Packed(NamedTuple):
    """A view of a unit's gathered memory, of one version."""

    unit: FlatUnit
    version: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    conjugated: bool  # by a bit of the view
    negated: bool


class _Outer(NamedTuple):
    """A tensor that an outer pair of hooks has packed."""

    unpack: Callable[[Any], torch.Tensor]
    packed: Any


def pack(tensor: torch.Tensor) -> Any:
    known = storages.get(tensor.untyped_storage()._cdata)
    unit = None if known is None else known()
    if unit is None:
        return tensor
    return Packed(unit, unit.version, tensor.size(), tensor.stride(), tensor.storage_offset(),  # type: ignore[arg-type]
                  tensor.dtype, unit.dtype.is_complex and tensor.is_conj(), unit.dtype.is_complex and tensor.is_neg())


def unpack(packed: Any) -> torch.Tensor:
    if type(packed) is Packed:
        return _gathered(packed)
    return packed


def _gathered(packed: Packed) -> torch.Tensor:
    unit = packed.unit
    if unit.version != packed.version:
        raise RuntimeError(f"{unit.name} was updated between forward and backward: its weights of that forward are gone")
    flat = unit.context.gathered(unit)
    if packed.dtype != flat.dtype:
        flat = flat.view(packed.dtype)
    view = flat.as_strided(packed.size, packed.stride, packed.offset)
    view = view.conj() if packed.conjugated else view
    return torch._neg_view(view) if packed.negated else view


def _composed(outer: tuple[Callable, Callable]) -> tuple[Callable, Callable]:
    outer_pack, outer_unpack = outer

    def both_pack(tensor: torch.Tensor) -> Any:
        packed = pack(tensor)
        return packed if type(packed) is Packed else _Outer(outer_unpack, outer_pack(tensor))

    def both_unpack(packed: Any) -> torch.Tensor:
        return _gathered(packed) if type(packed) is Packed else packed.unpack(packed.packed)

    both_pack._zerod = True  # type: ignore[attr-defined]
    return both_pack, both_unpack


pack._zerod = True  # type: ignore[attr-defined]


def ours_apply() -> bool:
    """Whether tensors that are saved now use these hooks."""
    top = _top(False)
    return top is not None and hasattr(top[0], "_zerod")


def push() -> bool:
    """Installs the hooks until pop(). False if they already apply, save nothing, or must not apply."""
    if not torch.is_grad_enabled() or _task() != -1:
        return False
    top = _top(False)
    if top is None:
        _push(pack, unpack)
        return True
    if hasattr(top[0], "_zerod") or "checkpoint" in getattr(top[0], "__module__", ""):
        return False
    _push(*_composed(top))
    return True


class Boundary(torch.autograd.Function):
    """The identity on a block's inputs. Its backward runs when the block's own backward has ended."""

    @staticmethod
    def forward(ctx: Any, passed: Callable[[], None], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.passed = passed
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Optional[torch.Tensor], ...]:
        ctx.passed()
        return (None, *gradients)


def tensors_of(value: Any) -> "Iterator[torch.Tensor]":
    """The tensors in lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_of(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)


def replaced(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with its tensors changed, in lists, tuples and dictionaries, which are made again."""
    if isinstance(value, torch.Tensor):
        return change(value)
    kind = type(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(replaced(each, change) for each in value))
    if kind in (list, tuple):
        return kind(replaced(each, change) for each in value)
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, each in value.items():
            made[key] = replaced(each, change)
        return made
    return value


def with_boundary(passed: Callable[[], None], args: Any, kwargs: Any) -> Any:
    """args and kwargs with a Boundary on every tensor that needs a gradient."""
    found = [tensor for tensor in tensors_of((args, kwargs)) if tensor.requires_grad]
    if not found:
        return args, kwargs
    made = iter(Boundary.apply(passed, *found))
    return replaced((args, kwargs), lambda tensor: next(made) if tensor.requires_grad else tensor)


def without_views(output: Any) -> Any:
    """The output, with a copy in place of every tensor over a gathered buffer, because the buffer is released."""
    if not any(map(_is_lent, tensors_of(output))):
        return output
    return replaced(output, lambda tensor: tensor.clone() if _is_lent(tensor) else tensor)


def _is_lent(tensor: torch.Tensor) -> bool:
    return tensor.__class__ in _PLAIN and tensor.layout is torch.strided and unit_of(tensor) is not None


def recomputes() -> bool:
    """Whether a non-reentrant checkpoint runs its forward again: that forward's graph is discarded."""
    top = _top(False)
    return top is not None and "_recomputation_hook" in getattr(top[0], "__qualname__", "")


# ---- Inputs and outputs ----

def _has_other(value: Any, dtype: torch.dtype) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dtype != dtype and value.is_floating_point()
    if isinstance(value, (list, tuple)):
        return any(_has_other(each, dtype) for each in value)
    return isinstance(value, dict) and any(_has_other(each, dtype) for each in value.values())


def cast_inputs(dtype: torch.dtype, _: nn.Module, args: Any, kwargs: Any) -> Any:
    """A forward pre-hook: casts floating tensors in the arguments to this dtype."""
    if not _has_other(args, dtype) and not _has_other(kwargs, dtype):
        return None
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, (args, kwargs))


def cast_outputs(dtype: torch.dtype, _: nn.Module, args: Any, output: Any) -> Any:
    """A forward hook: casts floating tensors in the output to this dtype."""
    if not _has_other(output, dtype):
        return None
    return replaced(output, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
