# SPDX-License-Identifier: Apache-2.0
"""Common parts of zerod.vllm, zerod.sglang and zerod.verl. All ranks of an engine load one commit, or all raise."""
from __future__ import annotations

from functools import partial
from typing import Any, Callable, Iterator

from ..errors import NotHeld, ZerodError
from ..reader import Reader
from .checkpoint import check

Take = Callable[["Iterator[tuple[str, Any]]"], object]
Gather = Callable[[Any], "list[Any]"]  # a collective: the values of all ranks
OWN_BYTES = 1 << 20  # loaders of vLLM change biases and norms in place


def load(reader: Reader, take: Take, gather: Gather, rank: int, config: Any, step: int = 0, deadline_ms: int = 0, maps: bool = False) -> int:
    """Calls Reader.load() in each rank of the engine, for a commit of `step` or later. Returns its step. Rank 0 pins it until all
    have loaded.

    maps: take() neither keeps the tensors that it receives, nor writes to those of more than OWN_BYTES. Otherwise all are copies.

    config: transformers' configuration of the engine's model, for check(). ValueError: the job has other weights, or the engine's
    loader has raised; the text names the weight. An exception of one rank is raised in all of them.
    """
    def give(committed: Any) -> None:
        reader.give(committed, lambda tensors: named(take, own(tensors) if maps else tensors), maps)

    while True:
        commits = _in_all(gather, lambda: reader.wait(max(step - 1, 0), deadline_ms) if rank == 0 else None)
        committed = commits[0]
        try:
            _in_all(gather, lambda: check(reader.weights(), config))
            _in_all(gather, partial(give, committed))
            return int(committed.step)
        except NotHeld as late:
            if rank == 0:
                reader.begins_again(late)
            step = committed.step + 1
        finally:
            reader.release()


def own(tensors: "Iterator[tuple[str, Any]]") -> "Iterator[tuple[str, Any]]":
    return ((name, tensor.clone() if tensor.nbytes <= OWN_BYTES else tensor) for name, tensor in tensors)


def named(take: Take, tensors: "Iterator[tuple[str, Any]]") -> None:
    """Calls take(). If it raises, the ValueError names the weight."""
    last = "before the first weight"

    def noted() -> "Iterator[tuple[str, Any]]":
        nonlocal last
        for name, tensor in tensors:
            last = f"at {name}, which has the shape {list(tensor.shape)} in the job"
            yield name, tensor
        last = "after the last weight"

    try:
        take(noted())
    except (ZerodError, MemoryError):
        raise
    except Exception as failed:
        raise ValueError(f"the engine's model has failed to load {last}: {type(failed).__name__}: {failed}") from failed


def register() -> None:
    """Registers zerod.vllm.ZerodEngine with vLLM: the package's entry point. Harmless when repeated, or without engines."""
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    except ImportError:
        return
    if "zerod" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("zerod", "zerod.vllm", "ZerodEngine")


def _in_all(gather: Gather, call: Callable[[], Any]) -> "list[Any]":
    value = failure = None
    try:
        value = call()
    except Exception as failed:
        failure = failed if isinstance(failed, (ZerodError, ValueError)) else RuntimeError(f"{type(failed).__name__}: {failed}")
    try:
        results = gather((value, failure))
    finally:
        failure = None  # its traceback refers to this frame, which would keep the call's objects alive
    failures = [failed for _, failed in results if failed is not None]
    for failed in sorted(failures, key=lambda failed: isinstance(failed, NotHeld)):  # other exceptions are raised first
        raise failed
    return [value for value, _ in results]
