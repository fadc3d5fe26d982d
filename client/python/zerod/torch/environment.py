# SPDX-License-Identifier: Apache-2.0
"""The environment of a model: the process's connection, the job, rank and device, and streams.

All values come from the environment that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, TORCHELASTIC_RUN_ID,
MASTER_PORT). ZEROD_JOB names the job instead. A process has one connection, which is made at its first shard() and closed with
the process. When the daemon has ended, the next shard() makes another connection. The first one remains open, because the tensors
of its models are in memory that it has mapped. It is closed if it has models of durable jobs, because the next daemon holds these
until the first connection is closed (recovery.py).
"""
from __future__ import annotations

import atexit
import hashlib
import os
import time
import weakref
from contextlib import suppress
from typing import Any, Callable, Optional, TypeVar

import torch
import torch.distributed as dist

import zerod
from zerod import DType
from zerod.structs import MAX_AGREED, NO_HOST, UnitFlags

FLOOR = (2, 4)
T = TypeVar("T")

DTYPES = {
    torch.float32: DType.FLOAT32,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float8_e4m3fn: DType.FLOAT8_E4M3,
    torch.float8_e5m2: DType.FLOAT8_E5M2,
    torch.int8: DType.INT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.uint8: DType.UINT8,
    torch.bool: DType.BOOL,
    torch.complex64: DType.FLOAT32,  # two of them: sums are linear
    torch.float64: DType.INT64,  # which the daemon gathers but does not sum
    torch.complex128: DType.INT64,  # two of them
}


def dtype_of_sums(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which gradients of this dtype are summed."""
    return dtype if dtype in (torch.float64, torch.complex64, torch.complex128) else torch.float32


def check_torch() -> None:
    """ImportError if torch is older than the minimum."""
    found = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if found < FLOOR:
        raise ImportError(f"zerod.torch needs torch >= {FLOOR[0]}.{FLOOR[1]}, this is {torch.__version__}")


class Environment:
    """The connection and the GPU of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.client = zerod.Client(name=os.environ.get("ZEROD_NAME"), private=True)
        self.host = self.client.is_host
        self.device = torch.device("cpu")
        self.in_use = False  # at the end of the process: a thread that does not end is inside the library
        self.models = 0
        self.sharded: "weakref.WeakSet[Any]" = weakref.WeakSet()  # models
        self.durables: set[tuple[str, str]] = set()  # (job, group) of the joined ones
        self._streams: dict[int, zerod.Stream] = {}
        if not self.host:
            if not torch.cuda.is_available():
                raise RuntimeError("the daemon manages GPUs, and this torch sees none")
            local = int(os.environ.get("LOCAL_RANK", "0"))
            if "LOCAL_RANK" in os.environ and torch.cuda.current_device() == 0:
                torch.cuda.set_device(local % torch.cuda.device_count())
            self.device = torch.device("cuda", torch.cuda.current_device())
            self.client.cuda_ordinal = self.device.index
            with suppress(RuntimeError):  # cudaMallocAsync takes no observers
                torch._C._cuda_attach_out_of_memory_observer(self.torch_has_no_memory)

    def lost(self) -> bool:
        """Whether the connection has ended, for example because the daemon was restarted."""
        if self.client.closed:
            return True
        try:
            self.client.device(0)
        except zerod.ConnectionFailed:
            return True
        return False

    def leave(self) -> None:
        """Closes a connection that has ended, if the next daemon can wait for that."""
        if self.durables:
            for model in list(self.sharded):
                model.take_apart()
            self.sharded.clear()
            self.client.close()

    def stream(self) -> Optional[zerod.Stream]:
        """torch's current stream. None on emulated devices, on which the CPU itself does the work."""
        if self.host:
            return None
        raw = torch._C._cuda_getCurrentRawStream(self.device.index)  # current_stream() makes an object in each call
        wrapped = self._streams.get(raw)
        if wrapped is None:
            wrapped = self._streams[raw] = self.client.cuda_stream(raw)
        return wrapped

    def place(self, rank: int) -> dict[str, Any]:
        """The device in the terms of GroupOptions."""
        if self.host:
            local = int(os.environ.get("LOCAL_RANK", rank))
            return {"device": local % len(self.client.rank_devices())}
        uuid = str(torch.cuda.get_device_properties(self.device).uuid)
        return {"device_uuid": uuid if uuid.startswith("GPU-") else "GPU-" + uuid}

    def device_index(self, rank: int) -> int:
        """The daemon's number of the device."""
        place = self.place(rank)
        if "device" in place:
            return place["device"]
        names = [info.name.decode() for info in self.client.devices()]
        return names.index(place["device_uuid"])

    def host_index(self, rank: int) -> Optional[int]:
        """The daemon's number of the host memory of the rank's device, if there is one."""
        host = self.client.device(self.device_index(rank)).host
        found = host != NO_HOST and self.client.is_host_memory(host)  # a library without the function says 0
        return host if found else None

    # ---- Memory that torch's allocator and the daemon keep for later ----

    def torch_has_no_memory(self, *_: int) -> None:
        """Torch calls it when an allocation fails, and then raises. The next allocation finds the daemon's unused memory."""
        self.trim(0)

    def trim(self, rank: int) -> None:
        """The daemon returns the unused memory of this rank's device, as far as it can within 5 s."""
        with suppress(zerod.ZerodError):
            self.client.trim(self.device_index(rank), deadline_ms=5000)

    def return_unused(self) -> bool:
        """torch's allocator returns its unused memory to the device. False if there is none."""
        if self.host or torch.cuda.memory_reserved() <= torch.cuda.memory_allocated():
            return False
        torch.cuda.empty_cache()
        return True

    def again(self, error: zerod.OutOfMemory) -> None:
        """Returns if the failed call can find memory now. Otherwise raises its error."""
        if error.status != zerod.Status.NO_MEMORY or not self.return_unused():
            raise error

    def with_room(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """call(...), and once more if the device had no memory and torch's allocator did not use all of its own."""
        try:
            return call(*args, **options)
        except zerod.OutOfMemory as error:
            self.again(error)
        return call(*args, **options)

    def register(self, group: zerod.Group, name: str, dtype: DType, numel: int, on_host: bool = False) -> zerod.Unit:
        """Registers a unit that does not have a forward's weights: masters, an optimizer's state, or values that last for one
        call. Readers do not name it."""
        flags = UnitFlags.FROZEN | UnitFlags.COPIED | UnitFlags.UNSAVED | (UnitFlags.ON_HOST if on_host else UnitFlags(0))
        return self.with_room(group.register, name, dtype, numel, flags=flags)


def repeated(deadline: float, error: "type[zerod.ZerodError]", call: Callable[[], T]) -> T:
    """Repeats call() while it raises the error. `deadline` is of time.monotonic()."""
    while True:
        try:
            return call()
        except error:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


_environment: Optional[Environment] = None


def environment() -> Environment:
    """This process's environment. RuntimeError in a process that was forked from one that has it."""
    global _environment
    if _environment is None:
        check_torch()
        _environment = Environment()
        atexit.register(_close)
    elif _environment.pid != os.getpid():
        raise RuntimeError("this process was forked from one that uses zerod: use spawn, or shard after the fork")
    elif _environment.lost():
        _environment.leave()
        _environment = Environment()
    return _environment


def next_environment(deadline_ms: int) -> Environment:
    """Waits for the next daemon after the end of a daemon, and returns its environment."""
    return repeated(time.monotonic() + deadline_ms / 1000, zerod.ConnectionFailed, environment)


def _close() -> None:
    if _environment is not None and _environment.pid == os.getpid() and not _environment.in_use:
        _environment.client.close()


def rows(process_group: Any) -> Any:
    """The mesh, if it has two dimensions with several rows. ValueError for a mesh that cannot be used."""
    if not hasattr(process_group, "get_group"):
        return None
    if process_group.ndim > 2:
        raise ValueError(f"the mesh has {process_group.ndim} dimensions: one shards, the first of two replicates")
    if process_group.get_coordinate() is None:
        raise ValueError(f"this rank is not in {process_group}")
    return process_group if process_group.ndim == 2 and process_group.size(0) > 1 else None


def members(process_group: Any) -> tuple[int, int, str]:
    """(rank, world, a suffix that distinguishes this group from others of the job). None: of all ranks.

    Of a mesh the last dimension counts.
    """
    if process_group is None:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), ""
    group = process_group
    if hasattr(group, "get_group"):
        group = group.get_group(group.ndim - 1)
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in the process group that shard() was given: only its ranks call shard()")
    ranks = dist.get_process_group_ranks(group)
    return rank, len(ranks), f"@{min(ranks)}-{max(ranks)}x{len(ranks)}"


def agree(group: zerod.Group, op: zerod.AgreeOp, values: "list[float]") -> "list[float]":
    """The sum, maximum or minimum of each value across the ranks of the group, in portions of the daemon's limit."""
    if group.world_size == 1:
        return list(values)
    return [value for first in range(0, len(values), MAX_AGREED) for value in group.agree(op, values[first:first + MAX_AGREED])]


MOST_JOB_BYTES = 63
MOST_UNIT_BYTES = 127


def short_name(text: str, most_bytes: int) -> str:
    """The text. If it has more bytes, its end after a hash of the whole: different names remain different."""
    data = text.encode()
    if len(data) <= most_bytes:
        return text
    return hashlib.sha256(data).hexdigest()[:16] + "." + data[17 - most_bytes:].decode(errors="ignore")


def job_name() -> str:
    """$ZEROD_JOB, otherwise a name that all processes of this run of torchrun have, and no other run."""
    named = os.environ.get("ZEROD_JOB")
    if named:
        return named
    if "RANK" not in os.environ:
        return f"torch-{os.getpid()}"
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    port = os.environ.get("MASTER_PORT", "")
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return short_name(f"torch-{run}-{port}-{restarts}", MOST_JOB_BYTES)
