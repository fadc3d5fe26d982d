# SPDX-License-Identifier: Apache-2.0
"""Python's signal handlers run while the main thread waits in the library.

The library calls `interrupted` while a call waits (zerod.h, "Calls that block"). Python runs a pending handler as soon as it
executes bytecode, which can be the first bytecode of a function. An exception that the handler raises there cannot be caught in
that function, and ctypes drops it. The library therefore does not call a function of Python, but resumes a generator, which waits
inside a `try`. All code on the way to it is functions of C.
"""
from __future__ import annotations

import ctypes
import operator
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

from . import structs as s

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object)


class _Asked(threading.local):
    ask: Any = int  # 0 in other threads, which run no handlers
    raised: Optional[BaseException] = None  # the exception of a handler that has ended a wait of the thread


asked = _Asked()
_function = _FUNCTION(operator.methodcaller("ask"))


def _answers() -> Iterator[int]:
    """Yields 1 for a wait that a handler has ended by an exception, 0 for a wait that continues."""
    answer = 0
    while True:
        try:
            yield answer
            ctypes.pythonapi.PyErr_CheckSignals()
            answer = 0
        except GeneratorExit:
            return
        except BaseException as raised:
            asked.raised, answer = raised, 1


def _arm() -> None:
    answers = _answers()
    next(answers)
    asked.ask = answers.__next__


if threading.current_thread() is threading.main_thread():
    _arm()  # a client may be made in another thread


def install(options: s.Options) -> None:
    """While a call of the client waits, handlers run in Python's main thread, and other threads can give the call up."""
    if threading.current_thread() is threading.main_thread():
        _arm()
    options.interrupted = ctypes.cast(_function, ctypes.c_void_p)
    options.interrupted_context = id(asked)


@contextmanager
def given_up(ask: Callable[[], int]) -> Iterator[None]:
    """Inside the `with`, a waiting call of this thread is given up when the library calls `interrupted` and ask() is true. In the
    main thread ask() is a function of C."""
    before, asked.ask = asked.ask, ask
    try:
        yield
    finally:
        asked.ask = before


def taken() -> Optional[BaseException]:
    """Returns asked.raised, once."""
    raised, asked.raised = asked.raised, None
    if raised is not None:
        _arm()  # a second signal can have ended the generator
    return raised
