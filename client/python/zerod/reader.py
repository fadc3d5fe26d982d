# SPDX-License-Identifier: Apache-2.0
"""Weights of a model that trains, for a process that is no rank of it: an inference engine, an evaluation.

    from zerod.reader import Reader

    with Reader(job, group) as reader:              # as zerod.torch.share() has returned them to the trainer
        step = reader.load(model.load_weights)      # takes (name, tensor) pairs, all of one commit

No rank takes part, and none waits for a reader. docs/readers.md says which commits can be read for how long.
"""
from __future__ import annotations

import json
import os
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional

from . import structs as s
from .client import Allocation, Client
from .errors import NotHeld
from .memory import Memory

WEIGHTS = "zerod.weights"  # the unit that says where the weights are


class Weight(NamedTuple):
    """A tensor of the model: `shape` elements of `dtype`, a name of torch's, from an offset of a unit on."""

    name: str
    unit: str
    offset_bytes: int
    shape: tuple[int, ...]
    dtype: str


class Reader:
    """Of the last commit of one group. A context manager. It is used by one thread at a time.

    uid: of the job's user, where root reads another user's. device: the daemon's number of the device to whose memory units
    are copied. None: on GPUs torch's current one. The memory is as large as the largest unit.
    """

    def __init__(self, job: str, group: str = "world", uid: int = 0, device: Optional[int] = None,
                 socket_path: Optional[str] = None) -> None:
        self.client = Client(socket_path)
        self.source: dict[str, Any] = {"job": job, "group": group, "uid": uid}
        self.device = _current_device(self.client) if device is None else device
        self._staging: Optional[Allocation] = None

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection. Harmless when repeated."""
        self._staging = None
        self.client.close()

    def wait(self, after: int = 0, deadline_ms: int = 0) -> s.Committed:
        """The last commit, when that is of a step after `after`. NotFound: no such job, or it has ended. Deadline."""
        return self.client.commit_wait(after=after, deadline_ms=deadline_ms, **self.source)

    def weights(self, committed: s.Committed) -> list[Weight]:
        """Lists what the commit has. NotFound: zerod.torch.share() was not called. NotHeld: see tensors()."""
        info = self.client.unit_read(committed, WEIGHTS)
        found = json.loads(bytes(self._read(committed, WEIGHTS, info.numel, (info.numel,), s.DType.UINT8).numpy()))
        return [Weight(name, unit, offset, tuple(shape), dtype) for name, unit, offset, shape, dtype in found]

    def tensors(self, committed: s.Committed, names: Optional[Iterable[str]] = None) -> "Iterator[tuple[str, Any]]":
        """(name, torch.Tensor) of all weights, or of those named, in the order of their units.

        A tensor is valid until the next one of another unit: copy what is kept. KeyError: a name that the model does not
        have. NotHeld: the commit is no longer held, so what came before it counts only if that was all.
        """
        wanted = None if names is None else set(names)
        by_unit: dict[str, list[Weight]] = {}
        for weight in self.weights(committed):
            if wanted is None or weight.name in wanted:
                by_unit.setdefault(weight.unit, []).append(weight)
        missing = sorted((wanted or set()) - {weight.name for some in by_unit.values() for weight in some})
        if missing:
            raise KeyError(f"the model has no weights {', '.join(missing)}")
        for unit, some in by_unit.items():
            yield from self._tensors_of(committed, unit, some)

    def load(self, take: "Callable[[Iterator[tuple[str, Any]]], object]", after: int = 0, deadline_ms: int = 0) -> int:
        """Calls take() with the tensors of one commit of a step after `after`, and returns the step.

        Where that commit is no longer held before its last tensor, take() is called again with a later one. So take() must
        read all, and may be called several times.
        """
        while True:
            committed = self.wait(after, deadline_ms)
            try:
                take(self.tensors(committed))
                return committed.step
            except NotHeld:
                after = committed.step

    def _tensors_of(self, committed: s.Committed, unit: str, some: list[Weight]) -> "Iterator[tuple[str, Any]]":
        import torch

        sizes = [max(int(torch.Size(weight.shape).numel()), 0) * getattr(torch, weight.dtype).itemsize for weight in some]
        first = min(weight.offset_bytes for weight in some)
        nbytes = max(weight.offset_bytes + size for weight, size in zip(some, sizes)) - first
        values = torch.from_dlpack(self._read(committed, unit, nbytes, (nbytes,), s.DType.UINT8, first)) if nbytes else torch.empty(
            0, dtype=torch.uint8)
        for weight, size in zip(some, sizes):
            at = weight.offset_bytes - first
            yield weight.name, values[at:at + size].view(getattr(torch, weight.dtype)).view(weight.shape)

    def _read(self, committed: s.Committed, unit: str, nbytes: int, shape: tuple[int, ...], dtype: s.DType,
              offset_bytes: int = 0) -> Memory:
        staging = self._staging
        if staging is not None and not self.client.is_host:
            import torch

            torch.cuda.synchronize()  # streams may still copy what was read before
        if staging is None or staging.nbytes < nbytes:
            self._staging = None
            if staging is not None:
                staging.free()
            staging = self._staging = self.client.alloc(f"reader-{os.getpid()}", max(nbytes, 1), self.device, "staging")
        self.client.unit_read(committed, unit, staging, nbytes, offset_bytes)
        return staging.memory(shape, dtype)


def _current_device(client: Client) -> int:
    if client.is_host:
        return 0
    import torch

    client.cuda_ordinal = torch.cuda.current_device()
    uuid = str(torch.cuda.get_device_properties(client.cuda_ordinal).uuid)
    return [info.name.decode() for info in client.devices()].index(uuid if uuid.startswith("GPU-") else "GPU-" + uuid)
