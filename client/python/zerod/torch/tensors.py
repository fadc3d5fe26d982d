# SPDX-License-Identifier: Apache-2.0
"""Tensors over the daemon's memory, which do not own it.

If old DLPack does not know a tensor's type, the tensor is imported as bytes, and viewed. Each buffer therefore has one storage,
whatever its type. `Places` stores the tensors of one unit by address, because the daemon returns the same few addresses
repeatedly.
"""
from __future__ import annotations

from typing import Callable, Generic, Optional, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from zerod import DType
from zerod.memory import capsule

_from_dlpack = torch._C._from_dlpack


def tensor_at(address: int, numel: int, dtype: torch.dtype, device: tuple[int, int]) -> torch.Tensor:
    """numel elements of dtype at the address. device is DLPack's."""
    if numel == 0:
        return torch.empty(0, dtype=dtype, device="cpu" if device[0] == 1 else f"cuda:{device[1]}")
    raw = _from_dlpack(capsule(address, (numel * dtype.itemsize,), DType.UINT8, device))
    return raw.view(dtype)


T = TypeVar("T")


class Places(Generic[T]):
    """Objects made by `make`, cached by address, at most LIMIT of them."""

    LIMIT = 64

    def __init__(self, make: Callable[[int], T], forget: Optional[Callable[[T], None]] = None) -> None:
        self._make = make
        self._forget = forget
        self._made: dict[int, T] = {}

    def __call__(self, address: int) -> T:
        made = self._made.get(address)
        if made is None:
            if len(self._made) >= self.LIMIT:
                self.clear()
            with torch.inference_mode(False), _disable_current_modes():  # the tensors outlive the modes of the first caller
                made = self._made[address] = self._make(address)
        return made

    def clear(self) -> None:
        if self._forget is not None:
            for made in self._made.values():
                self._forget(made)
        self._made.clear()
