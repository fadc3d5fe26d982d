# SPDX-License-Identifier: Apache-2.0
"""Weights of which an engine's rank takes some rows, as a tensor-parallel one does: no other rows are read.

A `Sliced` tensor knows its shape, and has no elements until an operation needs them. A slice of rows (`narrow()`, `[a:b]`) is
another one. Everything else reads the rows that the tensor has. An engine takes the same rows in each load, so the next load reads
them ahead, in the order of the last one.
"""
from __future__ import annotations

from collections import deque
from typing import Any, Callable, Iterable, Iterator

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

Span = tuple[str, int, int]  # a unit, an offset in bytes, bytes
Read = Callable[[list[Span]], Iterator[torch.Tensor]]  # the bytes of each span
WHOLE_BYTES = 64 << 10  # at most, of a weight that is read as a whole
_aten = torch.ops.aten


class Load:
    """The reads of one load. `taken`: their spans, in order. `ahead`: those of the load before."""

    def __init__(self, read: Read, ahead: Iterable[Span]) -> None:
        self._read, self._ahead, self._over = read, deque(ahead), False
        self._values = read(list(self._ahead))
        self.taken: list[Span] = []

    def weight(self, unit: str, offset_bytes: int, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The weight, of which rows are read when they are needed; a small one is read now."""
        sliced = Sliced(self, unit, offset_bytes, shape, dtype, device)
        return sliced if sliced.nbytes > WHOLE_BYTES else sliced.value()

    def read(self, span: Span) -> torch.Tensor:
        if self._over:
            raise RuntimeError(f"a weight at byte {span[1]} of unit '{span[0]}' is needed after its load has ended")
        self.taken.append(span)
        if self._ahead and self._ahead[0] == span:
            self._ahead.popleft()
            return next(self._values)
        self._skip()
        value, = self._read([span])
        return value

    def end(self) -> None:
        self._skip()
        self._over = True

    def _skip(self) -> None:
        self._ahead.clear()
        self._values.close()  # type: ignore[attr-defined]  # it is a generator


class Sliced(torch.Tensor):
    """Rows of a weight. RuntimeError: an operation that writes to it, or needs its address."""

    @staticmethod
    def __new__(cls, load: Load, unit: str, offset_bytes: int, shape: Any, dtype: torch.dtype, device: torch.device) -> "Sliced":
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)  # type: ignore[attr-defined]

    def __init__(self, load: Load, unit: str, offset_bytes: int, *_: Any) -> None:
        self._load, self._unit, self._offset_bytes = load, unit, offset_bytes

    def rows(self, start: int, end: int) -> "Sliced":
        row_bytes = self.shape[1:].numel() * self.itemsize
        shape = (max(end - start, 0), *self.shape[1:])
        return Sliced(self._load, self._unit, self._offset_bytes + start * row_bytes, shape, self.dtype, self.device)

    def value(self) -> torch.Tensor:
        """A tensor with the elements. They are read again each time."""
        if self.numel() == 0:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        return self._load.read((self._unit, self._offset_bytes, self.nbytes)).view(self.dtype).view(self.shape)

    def _no_memory(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("a weight that is not read yet has no memory: clone() it first")

    data_ptr = untyped_storage = __dlpack__ = _no_memory

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _aten.slice.Tensor:
            whole, dim, start, end, step = (*args, *(0, None, None, 1)[len(args) - 1:])
            if dim in (0, -whole.dim()) and step == 1:
                return whole.rows(*slice(start, end).indices(len(whole))[:2])
        if func in (_aten.detach.default, _aten.alias.default):
            return args[0].rows(0, len(args[0])) if args[0].dim() else args[0]
        kwargs = kwargs or {}
        if _is_written(func, args, kwargs):
            raise RuntimeError(f"{func} writes to a weight of the training job: clone() it first")
        args, kwargs = tree_map_only(Sliced, Sliced.value, (args, kwargs))
        return func(*args, **kwargs)


def _is_written(func: Any, args: Any, kwargs: "dict[str, Any]") -> bool:
    """Whether func would write to a Sliced tensor."""
    declared = func._schema.arguments
    given = [*zip(declared, args), *((each, kwargs[each.name]) for each in declared if each.name in kwargs)]
    return any(each.alias_info is not None and each.alias_info.is_write and any(isinstance(leaf, Sliced) for leaf in tree_leaves(value))
               for each, value in given)
