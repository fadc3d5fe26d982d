# SPDX-License-Identifier: Apache-2.0
"""Replaces functions of other packages, at once or when the program imports their module."""
from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from functools import wraps
from types import ModuleType
from typing import Any, Callable, Optional, Sequence


def replaces(owner: Any, name: str) -> "Callable[[Callable[..., Any]], None]":
    """A decorator: the function replaces owner.name, once, and receives what it has replaced as its first argument."""
    plain = getattr(owner, name)

    def replace(function: Callable[..., Any]) -> None:
        @wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(plain, *args, **kwargs)

        call._zerod = True  # type: ignore[attr-defined]
        if not hasattr(plain, "_zerod"):
            setattr(owner, name, call)

    return replace


class _Loader(importlib.abc.Loader):
    """The module's own loader, with the call after it."""

    def __init__(self, plain: Any, then: Callable[[], None]) -> None:
        self._plain, self._then = plain, then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[ModuleType]:
        return self._plain.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self._plain
        self._plain.exec_module(module)
        self._then()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None) -> Any:
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._then)
                return spec
        return None


def when_imported(name: str, then: Callable[[], None]) -> None:
    """`name` is that of a module whose parents are packages. A failed import is not tried again."""
    if name in sys.modules:
        then()
    elif not any(isinstance(finder, _Finder) and finder._name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, then))
