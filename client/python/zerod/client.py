# SPDX-License-Identifier: Apache-2.0
"""The connection to the daemon, its streams, and plain allocations."""
from __future__ import annotations

import ctypes
import os
import threading
import time
from ctypes import byref, c_uint64, c_void_p
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional, Sequence, Union

from . import private as private_daemon
from . import structs as s
from .errors import ConnectionFailed, error
from .interrupts import asked, given_up, install
from .library import Closing, Handle, calls, failed
from .memory import KDLCPU, KDLCUDA, Memory

if TYPE_CHECKING:
    from .group import Group

_wait = calls.wait
_wait_many = calls.wait_many
_cork = calls.cork
_uncork = calls.uncork


class Stream(Closing, Handle):
    """An in-order sequence of work: of the CPU (`Client.host_stream()`) or a GPU's (`Client.cuda_stream()`).

    Calls accept one stream, a sequence of them, or None: the calling thread itself. The client references its streams until
    destroy(), so that functions run even if the program has dropped the stream.
    """

    __slots__ = ("client", "array", "_functions", "_lock")
    closes = "destroy"

    def __init__(self, client: "Client", handle: int) -> None:
        super().__init__(handle)
        self.client = client
        self.array = (c_void_p * 1)(handle)
        self._functions: list[Any] = []  # that can still run
        self._lock = threading.RLock()  # a signal handler can use the stream
        client.streams.add(self)

    def launch(self, function: Callable[[], None]) -> None:
        """Appends function() to a stream of the CPU. It must not raise: its exception is only printed."""
        handle = self.handle
        made = _LAUNCHED(lambda _: function())
        with self._lock:
            self._functions.append(made)
            status = calls.host_stream_launch(handle, ctypes.cast(made, c_void_p), None)
            self._functions.append(made)  # a signal handler that has waited meanwhile has dropped it
        self.client.check(status)

    def synchronize(self) -> None:
        """Blocks until all work in the stream has run. DeviceFailed, Aborted."""
        with self._lock:
            before = list(self._functions)  # another thread can launch functions meanwhile
        self.client.check(calls.stream_synchronize(self.handle))
        for each in before:
            with suppress(ValueError):  # another thread has dropped it
                self._functions.remove(each)

    def destroy(self) -> None:
        """Drains and frees a stream of the CPU. Of a GPU's stream it frees only the handle. Harmless when repeated."""
        if self.closed:
            return
        calls.stream_destroy(self.handle)
        self.end("the stream was destroyed")
        self._functions.clear()
        self.client.streams.discard(self)

    def end(self, why: str) -> None:
        super().end(why)
        self.array = None  # stream_array() then reads the handle, which raises

    def __repr__(self) -> str:
        return "Stream()"


_LAUNCHED = ctypes.CFUNCTYPE(None, c_void_p)
Streams = Union[None, Stream, Sequence[Stream]]


def stream_array(streams: Streams) -> tuple[Any, int]:
    """The pointer and count that calls of the library accept. For one stream, this is fast."""
    if streams is None:
        return None, 0
    if type(streams) is Stream:
        return streams.array or streams.handle, 1
    handles = [stream.handle for stream in streams]
    return (c_void_p * len(handles))(*handles), len(handles)


class Block(Handle):
    """Memory of the daemon. `address` is the device's. `memory()` views it."""

    def __init__(self, client: "Client", handle: int, address: int, nbytes: int, on_host: bool = False) -> None:
        super().__init__(handle)
        self.client = client
        self.on_host = on_host
        self.address = address
        self.nbytes = nbytes
        client.owned.add(self)

    def memory(self, shape: tuple[int, ...], dtype: s.DType, offset_bytes: int = 0) -> Memory:
        """A view of the memory from offset_bytes on. InvalidState after its end."""
        self.handle
        device = (KDLCPU, 0) if self.on_host else self.client.dlpack_device
        return Memory(self.address + offset_bytes, shape, dtype, device)


class Allocation(Closing, Block):
    """Plain zeroed memory of the daemon."""

    closes = "free"

    def free(self, streams: Streams = None) -> None:
        """Frees the memory when all work now in the streams has run. Harmless when repeated."""
        if self.closed:
            return
        self.client.check(calls.free(self.handle, *stream_array(streams)))
        self.end("the memory was freed")

    def __repr__(self) -> str:
        return f"Allocation({self.nbytes} bytes)"


class Mapped(Block):
    """Bytes of a commit in the memory of a rank, which an update can write meanwhile. This process must not write to them."""

    def release(self) -> None:
        """Called after the last read, also of streams. NotHeld: an update has begun, and the bytes that were read are invalid.
        The mapping ends in any case."""
        handle = self.handle
        self.end("the mapping was released")
        self.client.check(calls.unit_map_end(handle))

    def __repr__(self) -> str:
        return f"Mapped({self.nbytes} bytes)"


class Watch(Closing, Handle):
    """A wait for a commit by a descriptor, for an event loop. A context manager: leaving it ends the wait."""

    def __init__(self, client: "Client", handle: int) -> None:
        super().__init__(handle)
        self.client = client
        self._watch: Optional[int] = handle  # outlives the client
        client.owned.add(self)

    def fileno(self) -> int:
        """It is readable when take() has a result, and sometimes before. Remove it from the loop before close()."""
        if self._watch is None:
            self.handle  # raises
        return calls.watch_fd(self._watch)

    def take(self) -> Optional[s.Committed]:
        """The commit; None: not yet. Never blocks. Errors as of commit_wait(); InvalidState: the client was closed."""
        committed = s.Committed()
        status = calls.watch_take(self.handle, byref(committed))
        if status == s.Status.BUSY:
            return None
        self.client.check(status)
        return committed

    def close(self) -> None:
        """Cancels the wait, and closes the descriptor. Harmless when repeated."""
        watch, self._watch = self._watch, None
        self.end("the watch was closed")
        calls.watch_end(watch)

    def __repr__(self) -> str:
        return "Watch()"


class Client(Closing, Handle):
    """One connection. A context manager: leaving it closes the connection, which ends the session.

    Every method raises the ZerodError that fits the library's status. Calls may come from several threads; cork
    and uncork count for the calling thread.
    """

    def __init__(self, socket_path: Optional[str] = None, name: Optional[str] = None, deadline_ms: int = 0,
                 strict: bool = False, poison: bool = False, reconnect_ms: int = 0, private: bool = False) -> None:
        """private: if no daemon serves the system or this user, one is started for the job (zerod.private)."""
        options = s.Options(socket_path=socket_path, name=name, deadline_ms=deadline_ms, strict=int(strict),
                            poison=int(poison), reconnect_ms=reconnect_ms)
        install(options)
        private = private and socket_path is None and not os.environ.get("ZEROD_SOCKET")
        self.is_private = private and private_daemon.wanted()
        self.socket_path = socket_path  # None: that of the environment, or of the system
        handle = c_void_p()
        for _ in range(private_daemon.TRIES):
            if self.is_private:
                self.socket_path = private_daemon.socket_path()
                options.socket_path = self.socket_path.encode()
            status = calls.connect(byref(options), byref(handle))
            if not self.is_private or status not in private_daemon.ENDING:
                break
            time.sleep(0.05)
        if status:
            failure = failed(status, None)
            if private and not self.is_private and isinstance(failure, ConnectionFailed):
                failure = error(status, f"{failure.text}. ZEROD_PRIVATE=1 starts a daemon for this job alone")
            raise failure
        super().__init__(handle.value or 0)
        self.streams: set[Stream] = set()
        self.cuda_ordinal = 0  # for DLPack on GPUs: this process's number of the GPU that it uses
        self._host: Optional[bool] = None
        self._on_host: dict[int, bool] = {}

    # ---- Life ----

    def close(self) -> None:
        """Runs all work in streams of the CPU, and ends the session. Then every object of this client is closed.

        Harmless when repeated.
        """
        if self.closed:
            return
        for stream in list(self.streams):
            stream.destroy()
        handle = self.handle
        self.end("the client was closed")
        calls.close(handle)

    def __repr__(self) -> str:
        return "Client()"

    def check(self, status: int) -> None:
        """Raises if the status of a call on this client is an error, or if a signal handler has raised during the call."""
        if status or asked.raised is not None:
            raise failed(status, self.handle)

    def check_made(self, status: int, end: Callable[..., object], *handle: Any) -> None:
        """check(). If a handler has raised during a call that has made an object, the object ends."""
        try:
            self.check(status)
        except BaseException:
            if not status:
                end(*handle)
            raise

    def error(self, status: int) -> BaseException:
        """The exception for a status that a call on this client has just returned."""
        return failed(status, self.handle)

    def reset(self, deadline_ms: int = 0) -> None:
        """zerod_session_reset()."""
        self.check(calls.session_reset(self.handle, wait_options(deadline_ms)))

    def set_deadline(self, deadline_ms: int) -> None:
        """Sets the deadline of later calls without their own. 0: the deadline with which the client was made."""
        self.check(calls.set_deadline(self.handle, deadline_ms))

    # ---- Devices ----

    def device(self, index: int = 0) -> s.DeviceInfo:
        """Bytes that the daemon holds on a device. NotFound past the last."""
        info = s.DeviceInfo()
        self.check(calls.device_get(self.handle, index, byref(info)))
        return info

    def devices(self) -> list[s.DeviceInfo]:
        found = []
        try:
            while True:
                found.append(self.device(len(found)))
        except LookupError:
            return found

    @property
    def is_host(self) -> bool:
        """Whether the devices are emulated: the CPU can then access their memory."""
        if self._host is None:
            self._host = self.device(0).name.startswith(b"host")
        return self._host

    def rank_devices(self) -> list[s.DeviceInfo]:
        """The devices on which ranks can join, without host memory."""
        return [info for info in self.devices() if not info.name.startswith(b"memory")]

    def is_host_memory(self, device: int) -> bool:
        """Whether the device is the daemon's host memory. The CPU can access it, and no rank runs on it."""
        if device not in self._on_host:
            self._on_host[device] = self.device(device).name.startswith(b"memory")
        return self._on_host[device]

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return (KDLCPU, 0) if self.is_host else (KDLCUDA, self.cuda_ordinal)

    def trim(self, device: int = 0, keep_bytes: int = 0, deadline_ms: int = 0) -> int:
        """Returns unused memory to the device. Returns the number of bytes."""
        freed = c_uint64()
        self.check(calls.trim(self.handle, device, keep_bytes, wait_options(deadline_ms), byref(freed)))
        return freed.value

    # ---- Batching and tickets ----

    def cork(self) -> None:
        _cork(self.handle)

    def uncork(self) -> None:
        status = _uncork(self.handle)
        if status:
            raise failed(status, self.handle)

    def corked(self) -> "_Corked":
        """with client.corked(): requests of this thread that return tickets are sent together."""
        return _Corked(self)

    def wait(self, ticket: int, stream: Optional[Stream] = None) -> int:
        """Completes a gather's ticket. Returns the address of padded_numel elements, valid until the release.

        The stream waits for the bytes. None: the calling thread waits. The address of a prefetch is 0.
        """
        data = c_void_p()
        status = _wait(self.handle, ticket, None if stream is None else stream.handle, data)
        if status:
            raise failed(status, self.handle)
        return data.value or 0

    def wait_many(self, tickets: Sequence[int], stream: Optional[Stream] = None) -> list[int]:
        """wait() for at most MAX_TICKETS tickets, with little more time than for one."""
        count = len(tickets)
        data = (c_void_p * count)()
        status = _wait_many(self.handle, (c_uint64 * count)(*tickets), count,
                            None if stream is None else stream.handle, data)
        if status:
            raise failed(status, self.handle)
        return [address or 0 for address in data]

    def complete(self, ticket: int, stream: Optional[Stream] = None) -> None:
        """Completes the ticket of any call except a gather. A stream is accepted only if zerod_wait() accepts it."""
        status = _wait(self.handle, ticket, None if stream is None else stream.handle, None)
        if status:
            raise failed(status, self.handle)

    def give_up(self, ticket: int) -> bool:
        """Ends the wait for a ticket's reply, after an exception of a signal handler. False: the reply has already arrived."""
        with given_up(partial(int, 1)):
            return _wait(self.handle, ticket, None, None) != 0

    # ---- Streams, allocations, groups ----

    def host_stream(self) -> Stream:
        """A thread of the library that runs functions in order."""
        handle = c_void_p()
        self.check(calls.host_stream_create(self.handle, byref(handle)))
        return Stream(self, handle.value or 0)

    def cuda_stream(self, cu_stream: int) -> Stream:
        """Wraps a cudaStream_t, such as torch.cuda.current_stream().cuda_stream. Each is wrapped once."""
        handle = c_void_p()
        self.check(calls.cuda_stream_wrap(self.handle, cu_stream, byref(handle)))
        return Stream(self, handle.value or 0)

    def alloc(self, job: str, nbytes: int, device: int = 0, name: Optional[str] = None, **options: Any) -> Allocation:
        """zerod_alloc(): zeroed memory; further options as in AllocOptions."""
        handle, data, on_host = c_void_p(), c_void_p(), self.is_host_memory(device)
        asked = s.AllocOptions(job=job, bytes=nbytes, device=device, name=name, **options)
        self.check_made(calls.alloc(self.handle, byref(asked), byref(handle), byref(data)), calls.free, handle, None, 0)
        return Allocation(self, handle.value or 0, data.value or 0, nbytes, on_host)

    # ---- Reads of other processes' commits ----

    def commit_wait(self, job: str, group: str = "world", after: int = 0, uid: int = 0, deadline_ms: int = 0,
                    flags: int = 0, pin_ms: int = 0) -> s.Committed:
        """zerod_commit_wait(): the group's last commit, if its step is after `after`. flags: CommitFlags. pin_ms: 0: 10000."""
        committed = s.Committed()
        source = s.CommitSource(job=job, group=group, uid=uid, deadline_ms=deadline_ms, flags=flags, pin_ms=pin_ms)
        self.check(calls.commit_wait(self.handle, byref(source), after, byref(committed)))
        return committed

    def commit_watch(self, job: str, group: str = "world", after: int = 0, uid: int = 0, deadline_ms: int = 0,
                     flags: int = 0, pin_ms: int = 0) -> Watch:
        """zerod_commit_watch(): as commit_wait(), whose result Watch.take() gives later."""
        watch = c_void_p()
        source = s.CommitSource(job=job, group=group, uid=uid, deadline_ms=deadline_ms, flags=flags, pin_ms=pin_ms)
        self.check(calls.commit_watch(self.handle, byref(source), after, byref(watch)))
        return Watch(self, watch.value or 0)

    def unit_read(self, committed: s.Committed, unit: str, into: Optional[Allocation] = None, nbytes: int = 0,
                  offset_bytes: int = 0, into_offset_bytes: int = 0, deadline_ms: int = 0, rows: int = 1,
                  stride_bytes: int = 0) -> s.UnitInfo:
        """zerod_unit_read(): copies nbytes of the unit, as of the commit, into the allocation. NotHeld: wait for the next.

        rows: so many times nbytes, stride_bytes apart in the unit, and without gaps in the allocation.
        """
        handle, info = self.handle, s.UnitInfo()
        options = s.UnitReadOptions(group=committed.group, step=committed.step, unit=unit, offset_bytes=offset_bytes, bytes=nbytes,
                                    into=None if into is None else into.handle, into_offset_bytes=into_offset_bytes,
                                    deadline_ms=deadline_ms, rows=rows, stride_bytes=stride_bytes)
        self.check(calls.unit_read(handle, byref(options), byref(info)))
        return info

    def unit_map(self, committed: s.Committed, unit: str, nbytes: int, offset_bytes: int = 0, device: int = 0,
                 deadline_ms: int = 0) -> "tuple[Optional[Mapped], int]":
        """zerod_unit_map(): the first bytes of the range that are in one shard, and their number. None: on another device."""
        handle, mapped, data, count, on_host = self.handle, c_void_p(), c_void_p(), c_uint64(), self.is_host_memory(device)
        options = s.UnitMapOptions(group=committed.group, step=committed.step, unit=unit, offset_bytes=offset_bytes, bytes=nbytes,
                                   device=device, deadline_ms=deadline_ms)
        status = calls.unit_map(handle, byref(options), byref(mapped), byref(data), byref(count))
        self.check_made(status, calls.unit_map_end, mapped)
        if mapped.value is None:
            return None, count.value
        return Mapped(self, mapped.value, data.value or 0, count.value, on_host), count.value

    def unique_id(self, local_world_size: int, deadline_ms: int = 0) -> bytes:
        """Makes the id of any group of this user that spans daemons. One rank makes it, and all ranks pass it to join()."""
        made = s.UniqueId()
        self.check(calls.unique_id(self.handle, local_world_size, wait_options(deadline_ms), byref(made)))
        return bytes(made)

    def group_unique_id(self, job: str, world_size: int, local_world_size: int, deadline_ms: int = 0,
                        **options: Any) -> bytes:
        """Makes the id of this group only. All ranks pass it to join(), with the same options."""
        group = s.GroupOptions(job=job, world_size=world_size, local_world_size=local_world_size, **options)
        made = s.UniqueId()
        self.check(calls.group_unique_id(self.handle, byref(group), wait_options(deadline_ms), byref(made)))
        return bytes(made)

    def join(self, job: str, world_size: int = 1, rank: int = 0, device: int = 0, unique_id: Optional[bytes] = None,
             **options: Any) -> "Group":
        """Joins a group as one rank, and waits until every rank has joined. Further options: see GroupOptions."""
        from .group import Group

        asked = s.GroupOptions(job=job, world_size=world_size, rank=rank, device=device, **options)
        if unique_id is not None:
            asked.unique_id = ctypes.pointer(s.UniqueId.from_buffer_copy(unique_id))
        handle = c_void_p()
        self.check(calls.group_join(self.handle, byref(asked), byref(handle)))
        return Group(self, handle.value or 0, rank, world_size, job, options.get("group") or "world")

    # ---- Scopes ----

    def forward_end(self, scope: int, grad: bool = False, streams: Streams = None, deadline_ms: int = 0) -> None:
        """Ends a scope's forward. With grad the scope becomes a claim until claim_end()."""
        self.check(calls.forward_end(self.handle, scope, int(grad), *stream_array(streams), wait_options(deadline_ms)))

    def claim_end(self, claim: int, streams: Streams = None, deadline_ms: int = 0) -> None:
        self.check(calls.claim_end(self.handle, claim, *stream_array(streams), wait_options(deadline_ms)))

    def scope_abandon(self, scope: int, streams: Streams = None) -> None:
        """Drops an open scope with all scopes nested in it, or a claim."""
        self.check(calls.scope_abandon(self.handle, scope, *stream_array(streams)))

    def context_end(self, context: int, streams: Streams = None, deadline_ms: int = 0) -> None:
        self.check(calls.context_end(self.handle, context, *stream_array(streams), wait_options(deadline_ms)))


class _Corked:
    __slots__ = ("client",)

    def __init__(self, client: Client) -> None:
        self.client = client

    def __enter__(self) -> Client:
        _cork(self.client.handle)
        return self.client

    def __exit__(self, kind: object, *_: object) -> None:
        status = _uncork(self.client.handle)
        if status and kind is None:
            raise failed(status, self.client.handle)


def wait_options(deadline_ms: int, flags: int = 0) -> Optional[s.WaitOptions]:
    """NULL, the client's default, for 0."""
    return s.WaitOptions(deadline_ms=deadline_ms, flags=flags) if deadline_ms or flags else None


def handle_array(objects: Iterable[Any]) -> tuple[Any, int]:
    """The array of the handles of units or streams, and its length."""
    handles = [each.handle for each in objects]
    return (c_void_p * len(handles))(*handles), len(handles)
