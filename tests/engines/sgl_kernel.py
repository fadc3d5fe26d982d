# SPDX-License-Identifier: Apache-2.0
"""In place of SGLang's kernels for CPUs, which are not on PyPI: each name can be imported, and raises when it is called."""
from __future__ import annotations

from typing import Any, Callable

__path__: "list[str]" = []
__version__ = "0.4.10"


def __getattr__(name: str) -> "Callable[..., Any]":
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name}")

    return missing
