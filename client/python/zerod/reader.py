# SPDX-License-Identifier: Apache-2.0
"""Weights of a model in training, for a process that is not one of its ranks, such as an inference engine or an evaluation.

    from zerod.reader import Reader

    with Reader(job, group) as reader:              # as zerod.torch.share() has returned them to the trainer
        step = reader.load(model.load_weights)      # takes (name, tensor) pairs, all of one commit

Ranks do not take part in a read, and do not wait for a reader. docs/readers.md describes which commits can be read, and for how
long.
"""
from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
import warnings
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from itertools import groupby
from threading import Event
from typing import Any, Callable, Generator, Iterable, Iterator, Mapping, NamedTuple, Optional

from . import structs as s
from .client import Allocation, Client, Mapped
from .errors import NotFound, NotHeld, PermissionDenied, Unsupported, ZerodError
from .interrupts import given_up
from .library import Closing
from .memory import KDLCUDA

WEIGHTS = "zerod.weights"  # the unit that describes where the weights are, in a separate group
PIECE_BYTES = 128 << 20  # of a read
DEPTH = 3  # reads under way
Narrow = Mapping[str, "tuple[int, int, int]"]  # torch.narrow's dim, start and length, by the weight's name


def weights_job(job: str) -> str:
    """The job of that group. Its name is that of the weights' group. It is not durable, even if the weights' job is."""
    name = f"{job}.weights"
    return name if len(name.encode()) <= 63 else hashlib.sha256(job.encode()).hexdigest()[:40] + ".weights"


class Span(NamedTuple):
    """Bytes of a unit: `rows` times `row_bytes`, `stride_bytes` apart."""

    unit: str
    offset_bytes: int
    row_bytes: int
    rows: int = 1
    stride_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes

    def pieces(self) -> "Iterator[Span]":
        """The parts of it that are read at once, of at most PIECE_BYTES."""
        whole_rows = max(1, PIECE_BYTES // max(1, self.row_bytes))
        for row in range(0, self.rows, whole_rows):
            for at in range(0, self.row_bytes, PIECE_BYTES):
                yield Span(self.unit, self.offset_bytes + row * self.stride_bytes + at, min(PIECE_BYTES, self.row_bytes - at),
                           min(whole_rows, self.rows - row), self.stride_bytes)


class Weight(NamedTuple):
    """A tensor of the model: `shape` elements of torch's `dtype`, starting at an offset of a unit."""

    name: str
    unit: str
    offset_bytes: int
    shape: Any
    dtype: Any

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.nbytes

    def of(self, values: Any, at: int) -> Any:
        """The tensor, given bytes of its unit from the offset `at` on."""
        return values[self.offset_bytes - at:self.end_bytes - at].view(self.dtype).view(self.shape)

    def narrow(self, dim: int, start: int, length: int) -> "tuple[Span, Any]":
        """The bytes and the shape of torch.narrow() of the tensor. Errors as torch's, but ValueError for RuntimeError."""
        import torch

        try:
            part = torch.empty(self.shape, device="meta").narrow(dim, start, length)
        except (IndexError, RuntimeError) as wrong:
            kind = IndexError if isinstance(wrong, IndexError) else ValueError
            raise kind(f"narrow({dim}, {start}, {length}) of {self.name}, of {list(self.shape)}: {wrong}") from None
        dim, size = dim % part.dim(), self.dtype.itemsize
        return Span(self.unit, self.offset_bytes + part.storage_offset() * size, part.shape[dim:].numel() * size,
                    self.shape[:dim].numel(), self.shape[dim:].numel() * size), part.shape


class Reader(Closing):
    """Reads the last commit of one group. A context manager. It is used by one thread at a time.

    uid: that of the job's user in the daemon, if another user reads (root, or a member of reader_groups). device: the daemon's
    number of the device to whose memory the daemon copies, at most 3 pieces of 128 MiB. None: on GPUs torch's current device.
    pin_seconds: the maximum time for which the commit is held after a wait(). Choose more than the time of a load. saved: reads
    the copies in host memory that zerod.torch.save_commit() makes. No commit is pinned, and the next copy replaces the last one.
    ConnectionFailed, after the daemon has ended: make another Reader.
    """

    def __init__(self, job: str, group: str = "world", uid: int = 0, device: Optional[int] = None,
                 socket_path: Optional[str] = None, pin_seconds: float = 10.0, saved: bool = False) -> None:
        if not 0.001 <= pin_seconds < 1 << 22:
            raise ValueError(f"pin_seconds={pin_seconds}: 0.001 to {1 << 22} s")
        self.pin_seconds, self.saved = pin_seconds, saved
        self.client = Client(socket_path)
        self.source: dict[str, Any] = {"job": job, "group": group, "uid": uid}
        how = {"flags": s.CommitFlags.SAVED} if saved else {"flags": s.CommitFlags.PIN, "pin_ms": round(1000 * pin_seconds)}
        self._waits = {**self.source, **how}
        try:
            self.device = _device(self.client, device)
        except BaseException:
            self.client.close()
            raise
        self._stops: set[Event] = set()  # of _read()
        self._threads = ThreadPoolExecutor(DEPTH, "zerod-reader")
        self._staging: list[_Staging] = []
        self._maps = True  # as far as is known
        self._described: tuple[int, int] = (0, 0)  # the commit of:
        self._weights: list[Weight] = []

    def close(self) -> None:
        """Ends the connection. Harmless when repeated."""
        for stop in list(self._stops):
            stop.set()
        try:
            self._threads.shutdown()
        finally:
            self._threads.shutdown()  # a signal handler may have raised
            for staging in self._staging:
                staging.wait()
            self._staging.clear()
            self.client.close()

    def wait(self, after: int = 0, deadline_ms: int = 0) -> s.Committed:
        """The last commit, if its step is after `after`. NotFound: no such job, or it has ended. Deadline.

        From now on updates save it, unless there is no memory, for pin_seconds or until the next wait(), release() or close().
        With saved=True it is the commit whose copy is in host memory.
        """
        with self._pinning():
            return self.client.commit_wait(after=after, deadline_ms=deadline_ms, **self._waits)

    async def wait_async(self, after: int = 0, deadline_ms: int = 0) -> s.Committed:
        """wait() that does not block asyncio's event loop, and needs no thread. InvalidState: the reader was closed meanwhile."""
        loop = asyncio.get_running_loop()
        with self._pinning(), self.client.commit_watch(after=after, deadline_ms=deadline_ms, **self._waits) as watch:
            while (committed := watch.take()) is None:
                readable = asyncio.Event()
                loop.add_reader(watch, readable.set)
                try:
                    await readable.wait()
                finally:
                    loop.remove_reader(watch)
            return committed

    @contextmanager
    def _pinning(self) -> "Generator[None, None, None]":
        try:
            yield
        except ZerodError:
            raise
        except BaseException:  # of a signal handler, or a cancelled task, perhaps after the pin
            self.release()
            raise
        self._pinned = time.monotonic()

    def release(self) -> None:
        """Updates need not save the commit of wait() any more. load() calls this. Harmless when repeated."""
        if self.saved:
            return
        with suppress(ZerodError):  # the pinned group replies at once; after an error there is no pin
            self.client.commit_wait(deadline_ms=1, **self.source)

    def weights(self) -> list[Weight]:
        """Lists the model's weights. NotFound: zerod.torch.share() was not called."""
        import torch

        described = self.client.commit_wait(weights_job(self.source["job"]), self.source["group"], uid=self.source["uid"])
        if self._described != (described.group, described.step):
            numel = self._asked(self.client.unit_read, described, WEIGHTS).numel
            text, = self._read(described, [Span(WEIGHTS, 0, numel)])
            self._weights = [Weight(name, unit, offset, torch.Size(shape), getattr(torch, dtype))
                             for name, unit, offset, shape, dtype in json.loads(bytes(text.cpu().numpy()))]
            self._described = described.group, described.step
        return list(self._weights)

    def tensors(self, committed: s.Committed, names: Optional[Iterable[str]] = None,
                narrow: Optional[Narrow] = None) -> "Iterator[tuple[str, Any]]":
        """(name, torch.Tensor) of all weights, or of those named, in the order of their units. KeyError: an unknown name.

        narrow: {name: (dim, start, length)}, as in torch.narrow(). Of these weights only the slices are read, into memory of their
        own. IndexError, ValueError: there is no such slice.
        Other tensors of one unit share memory of torch. On GPUs their values are valid in the order of the current stream. Later units
        are read meanwhile. NotHeld: the commit is no longer held. The tensors before that are of the commit, but not complete.
        """
        return self._tensors(committed, names, narrow)

    def _tensors(self, committed: s.Committed, names: Optional[Iterable[str]], narrow: Optional[Narrow],
                 mapped: "Optional[list[Mapped]]" = None) -> "Generator[tuple[str, Any], None, None]":
        """mapped: weights are mapped if possible, and the mappings are appended to it. None: all weights are copied."""
        weights, narrow = self.weights(), narrow or {}
        wanted = {weight.name for weight in weights} if names is None else set(names)
        missing = sorted({*wanted, *narrow} - {weight.name for weight in weights})
        if missing:
            raise KeyError(f"the model has no weights {', '.join(missing)}")
        by_unit: dict[str, list[Weight]] = {}
        for weight in weights:
            if weight.name in wanted:
                by_unit.setdefault(weight.unit, []).append(weight)
        slices = {weight.name: weight.narrow(*narrow[weight.name]) for weight in weights if weight.name in narrow}
        found: list[dict[str, Any]] = []  # for each unit: the weights that are mapped,
        copied: list[list[list[Weight]]] = []  # and runs of the other weights
        for some in by_unit.values():
            here = {} if mapped is None else self._map(committed, some, mapped)
            runs = groupby(sorted(some, key=lambda weight: weight.offset_bytes),
                           lambda weight: (weight.name in here, weight.name if weight.name in narrow else None))
            copied.append([list(run) for (is_mapped, _), run in runs if not is_mapped])
            found.append({name: tensor.narrow(*narrow[name]) if name in narrow else tensor for name, tensor in here.items()})

        def span(run: "list[Weight]") -> Span:
            if run[0].name in narrow:
                return slices[run[0].name][0]
            return Span(run[0].unit, run[0].offset_bytes, max(weight.end_bytes for weight in run) - run[0].offset_bytes)

        values = self._read(committed, [span(run) for runs in copied for run in runs])
        for some, here, runs in zip(by_unit.values(), found, copied):
            for run in runs:
                read, first = next(values), run[0].offset_bytes
                here.update((weight.name, read.view(weight.dtype).view(slices[weight.name][1]) if weight.name in narrow
                             else weight.of(read, first)) for weight in run)
            for weight in some:
                yield weight.name, here.pop(weight.name)

    def _map(self, committed: s.Committed, some: "list[Weight]", mapped: "list[Mapped]") -> "dict[str, Any]":
        """The tensors of a unit's weights that are in one piece, in memory of the reader's device."""
        import torch

        found: dict[str, Any] = {}
        at, end = min(weight.offset_bytes for weight in some), max(weight.end_bytes for weight in some)
        while at < end and self._maps:
            try:
                piece, nbytes = self._asked(self.client.unit_map, committed, some[0].unit, end - at, at, self.device)
            except (PermissionDenied, Unsupported):  # all weights are copied
                self._maps = False
                break
            if piece is not None:
                mapped.append(piece)
                values = torch.from_dlpack(piece.memory((nbytes,), s.DType.UINT8))
                found.update((weight.name, weight.of(values, at)) for weight in some
                             if at <= weight.offset_bytes and weight.end_bytes <= at + nbytes
                             and (weight.offset_bytes - at) % weight.dtype.itemsize == 0)
            at += nbytes
        return found

    def _end(self, mapped: "list[Mapped]") -> bool:
        """Ends the mappings when the device has run all work that reads them. Returns whether all bytes were valid."""
        import torch

        counted, failures = True, []
        if mapped and self.client.dlpack_device[0] == KDLCUDA:
            torch.cuda.synchronize(self.client.cuda_ordinal)
        while mapped:
            try:
                self._asked(mapped.pop().release)
            except NotHeld:
                counted = False
            except ZerodError as failed:
                failures.append(failed)
        if failures:
            raise failures[0]
        return counted

    def give(self, committed: s.Committed, take: "Callable[[Iterator[tuple[str, Any]]], object]", maps: bool = True,
             narrow: Optional[Narrow] = None) -> None:
        """Calls take() with the tensors of the commit. RuntimeError: it has returned before it has read all of them.

        maps: a weight in one piece in memory of the reader's device is the ranks' own memory. take() must neither write to a tensor
        nor keep it or a view of it. If an update begins before it returns, take() is called again, with copies. Waits for that
        device. narrow: as in tensors(). NotHeld: the commit is no longer held.
        """
        mapped: list[Mapped] = []
        try:
            try:
                _give_all(take, self._tensors(committed, None, narrow, mapped if maps else None))
            except Exception:  # the bytes can be those of an update
                if self._end(mapped):
                    raise
            else:
                if self._end(mapped):
                    return
        finally:
            with suppress(ZerodError):  # after the exception of a signal handler, which is raised
                self._end(mapped)
        _give_all(take, self._tensors(committed, None, narrow))

    def load(self, take: "Callable[[Iterator[tuple[str, Any]]], object]", after: int = 0, deadline_ms: int = 0, maps: bool = False,
             narrow: Optional[Narrow] = None) -> int:
        """Calls take() with the tensors of one commit of a step after `after`, and returns the step.

        RuntimeError: take() has not read all tensors. If that commit is no longer held before its last tensor, take() is called
        again with a later one. A warning reports if this was after pin_seconds. maps: weights on the reader's device are not copied,
        and take() must obey the rules of give(). narrow: as in tensors().
        """
        while True:
            committed = self.wait(after, deadline_ms)
            try:
                self.give(committed, take, maps, narrow)
                return committed.step
            except NotHeld as late:
                self.begins_again(late)
                after = committed.step
            finally:
                self.release()

    def begins_again(self, late: NotHeld) -> None:
        """Warns if a load has lasted longer than its commit was held, because the next one can as well."""
        if self.saved:
            warnings.warn(f"save_commit() of a later step came before the end of a load, which begins again: {late}", stacklevel=3)
        elif time.monotonic() - self._pinned >= self.pin_seconds:
            warnings.warn(f"a load has lasted longer than pin_seconds={self.pin_seconds}, and begins again: {late}", stacklevel=3)

    def _asked(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except NotFound as gone:
            raise NotFound(gone.status, "job '{job}', or its group '{group}', has ended: ".format(**self.source) + gone.text) from None

    def _read(self, committed: s.Committed, spans: list[Span]) -> Iterator[Any]:
        """The bytes of each span, in memory of torch. Threads read the next pieces meanwhile."""
        import torch

        pieces = deque(piece for span in spans for piece in span.pieces())
        reads: "deque[tuple[_Staging, Future[None]]]" = deque()
        stop = Event()

        def begin(staging: _Staging) -> None:
            read = self._threads.submit(self._asked, staging.read, stop, self.client, committed, pieces.popleft())
            reads.append((staging, read))

        taken = self._take(min(DEPTH, len(pieces)), max((piece.nbytes for piece in pieces), default=0))
        self._stops.add(stop)
        try:
            for staging in taken:
                begin(staging)
            for span in spans:
                values = torch.empty(span.nbytes, dtype=torch.uint8, device=self._torch_device())
                for part in values.split([piece.nbytes for piece in span.pieces()]):
                    self.client.handle  # raises if the reader was closed meanwhile
                    reads[0][1].result()
                    staging, _ = reads.popleft()
                    staging.copy_to(part)
                    self.client.handle
                    if pieces:
                        begin(staging)
                yield values
        finally:
            stop.set()
            self._stops.discard(stop)
            wait([read for _, read in reads if not read.cancel()])
            for staging in taken:
                staging.taken = False

    def _torch_device(self) -> str:
        is_cpu = self.client.is_host or self.client.is_host_memory(self.device)
        return "cpu" if is_cpu else f"cuda:{self.client.cuda_ordinal}"

    def _take(self, count: int, nbytes: int) -> "list[_Staging]":
        """So many allocations of the daemon, each of at least nbytes. Smaller ones are freed."""
        for staging in self._staging[:]:
            if not staging.taken and staging.allocation.nbytes < nbytes:
                self._staging.remove(staging)
                staging.wait()
                staging.allocation.free()
        while sum(not staging.taken for staging in self._staging) < count:
            self._staging.append(_Staging(self.client.alloc(f"reader-{os.getpid()}", nbytes, self.device, "staging")))
        taken = [staging for staging in self._staging if not staging.taken][:count]
        for staging in taken:
            staging.taken = True
        return taken


class _Staging:
    """An allocation of the daemon, into which it copies a piece of a unit."""

    def __init__(self, allocation: Allocation) -> None:
        import torch

        self.allocation = allocation
        self.values = torch.from_dlpack(allocation.memory((allocation.nbytes,), s.DType.UINT8))
        self.copied = torch.cuda.Event() if self.values.is_cuda else None  # the last copy_to()
        self.taken = False

    def read(self, stop: Event, client: Client, committed: s.Committed, span: Span) -> None:
        """In a thread of the reader. Interrupted: after `stop`."""
        self.wait()
        with given_up(stop.is_set):
            client.unit_read(committed, span.unit, self.allocation, span.row_bytes, span.offset_bytes, rows=span.rows,
                             stride_bytes=span.stride_bytes)

    def copy_to(self, values: Any) -> None:
        import torch

        values.copy_(self.values[:len(values)])
        if self.copied is not None:
            self.copied.record(torch.cuda.current_stream(values.device))

    def wait(self) -> None:
        """Waits until no stream reads the allocation."""
        if self.copied is not None:
            self.copied.synchronize()


def _give_all(take: "Callable[[Iterator[tuple[str, Any]]], object]", tensors: "Generator[tuple[str, Any], None, None]") -> None:
    with closing(tensors):
        take(tensors)
        for name, _ in tensors:
            raise RuntimeError(f"take() has returned before it read {name}: it must read all weights")


def _device(client: Client, device: Optional[int]) -> int:
    """The daemon's number of the device. On GPUs the client uses torch's device."""
    if device is not None:
        client.device(device)  # NotFound
    if client.is_host or device is not None and client.is_host_memory(device):
        return device or 0
    import torch

    uuids = [str(torch.cuda.get_device_properties(i).uuid).removeprefix("GPU-") for i in range(torch.cuda.device_count())]
    names = [info.name.decode().removeprefix("GPU-") for info in client.devices()]
    wanted = uuids[torch.cuda.current_device()] if device is None else names[device]
    if wanted not in names or wanted not in uuids:
        whose = "torch's" if wanted in names else "the daemon's"
        raise ValueError(f"device={device}: GPU-{wanted} is not a device of {whose}")
    client.cuda_ordinal = uuids.index(wanted)
    return names.index(wanted)
