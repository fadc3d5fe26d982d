# SPDX-License-Identifier: Apache-2.0
"""The parts of a unit in the daemon's host memory, and the copies between that memory and the rank's device.

Gathered buffers are on the device of computation. A unit's Placement describes where its other parts are, as chosen by
placement.py. The CPU itself writes host memory, at once. If the shards are there, an update or a publish names no stream, except
the publish after the backward in overlap.py.

Each copy runs after the work in torch's current stream. The CPU does not wait for it only if the GPU's driver has pinned the
memory. `wait()` must precede the CPU's reads of fetched values, and its writes to values that are still being copied to the
device.
"""
from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, Optional

import torch

import zerod
from zerod import structs as s
from zerod.memory import KDLCPU

from .environment import MOST_JOB_BYTES, Environment, short_name
from .tensors import tensor_at

if TYPE_CHECKING:
    from .unit import FlatUnit

VALUES = ("params", "optimizer", "all")
_PAGE = mmap.PAGESIZE  # a GPU's driver pins whole pages: two allocations must not share one


def check(value: Optional[str], stage: int, mesh: Any, device_budget: Optional[int] = None) -> None:
    """ValueError for arguments of shard() that exclude each other."""
    if device_budget is not None and (type(device_budget) is not int or device_budget < 0):
        raise ValueError(f"device_budget is {device_budget!r}: it is a whole number of bytes, 0 or more")
    if value is None:
        if device_budget:
            raise ValueError(f"device_budget={device_budget} without offload: all units are on the device")
        return
    if value not in VALUES:
        raise ValueError(f"offload is {value!r}: None, {', '.join(map(repr, VALUES))} are possible")
    if stage == 1:
        raise ValueError(f"offload={value!r} with stage=1 is not supported: each rank keeps whole weights on its device")
    if mesh is not None:
        raise ValueError(f"offload={value!r} with a mesh of two dimensions as process_group is not supported")


@dataclass(frozen=True)
class Placement:
    """The places of a unit's parts."""

    shards_on_host: bool = False  # and the targets
    optimizer_on_host: bool = False  # masters, gradients and the optimizer's state

    @property
    def apart(self) -> bool:
        """Whether the optimizer works in host memory, and the shards are on the device."""
        return self.optimizer_on_host and not self.shards_on_host

    def own_device(self, environment: Environment) -> tuple[int, int]:
        """The DLPack device of masters and the optimizer's state."""
        return (KDLCPU, 0) if self.optimizer_on_host else environment.client.dlpack_device

    def torch_device(self, environment: Environment) -> torch.device:
        """own_device() as a torch device: that of parameters outside of a forward."""
        return torch.device("cpu") if self.optimizer_on_host else environment.device

    def own_stream(self, environment: Environment) -> Optional[zerod.Stream]:
        return None if self.optimizer_on_host else environment.stream()


ON_DEVICE = Placement()


def offloaded(value: Optional[str]) -> Placement:
    """The placement of a unit that shard(offload=value) offloads."""
    return Placement(shards_on_host=value in ("params", "all"), optimizer_on_host=value is not None)


class Offload:
    """The offload of one model: see the file's first comment. `shards` and `optimizer`: whether any unit has them there."""

    def __init__(self, environment: Environment, value: Optional[str], placements: "set[Placement]", rank: int,
                 job: str) -> None:
        self.environment = environment
        self.job = job
        self.value = value
        self.shards = any(placement.shards_on_host for placement in placements)
        self.optimizer = any(placement.optimizer_on_host for placement in placements)
        self.index: Optional[int] = None
        self._copied: Optional[torch.cuda.Event] = None
        self._allocations: list[zerod.client.Allocation] = []
        self._pinned_at: list[int] = []
        if self.optimizer:
            self.index = environment.host_index(rank)
            if self.index is None:
                raise zerod.errors.error(s.Status.UNSUPPORTED, f"offload={value!r}: the daemon has no host memory: "
                                         "host_arena in [devices] of zerod.conf, or zerod --host-arena, sets its size")

    # ---- Memory and copies ----

    def allocate(self, what: str, numel: int, dtype: torch.dtype, copied: bool) -> torch.Tensor:
        """Host memory of the daemon until the session ends. copied: pinned, for copies from and to the device."""
        assert self.index is not None
        if numel == 0:
            return torch.empty(0, dtype=dtype, device="cpu")  # a program can have another default device
        name = short_name(what, MOST_JOB_BYTES)
        nbytes = -(-numel * dtype.itemsize // _PAGE) * _PAGE
        made = self.environment.with_room(self.environment.client.alloc, self.job, nbytes, self.index, name, alignment=_PAGE)
        self._allocations.append(made)
        tensor = tensor_at(made.address, numel, dtype, (KDLCPU, 0))
        if copied:
            self.pin(tensor)
        return tensor

    def pin(self, tensor: torch.Tensor) -> None:
        """The GPU's driver pins the memory of allocate()."""
        if self.environment.host or not tensor.numel() or tensor.is_pinned():
            return
        nbytes = -(-tensor.nbytes // _PAGE) * _PAGE
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), nbytes, 0))
        self._pinned_at.append(tensor.data_ptr())

    def release(self, tensor: torch.Tensor) -> None:
        """Frees the memory of allocate(). Has no effect on other tensors."""
        for made in self._allocations:
            if made.address == tensor.data_ptr():
                if made.address in self._pinned_at:
                    torch.cuda.cudart().cudaHostUnregister(made.address)
                    self._pinned_at.remove(made.address)
                made.free()
                self._allocations.remove(made)
                return

    def free(self) -> None:
        """Frees the memory. No tensor over it may be used any more."""
        for address in self._pinned_at:
            torch.cuda.cudart().cudaHostUnregister(address)
        for made in self._allocations:
            made.free()
        self._pinned_at, self._allocations = [], []

    def fetch(self, into: torch.Tensor, source: torch.Tensor) -> None:
        """Copies from the device into host memory; wait() before the first use."""
        self.copy(into, source)
        self._note()

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        """A copy that wait() does not wait for."""
        if into.numel():
            into.copy_(source.to(into.dtype), non_blocking=self._pinned(into))

    def write_shards(self, units: "Iterable[FlatUnit]", note: bool) -> None:
        """Rounds masters to the shards' dtype on the CPU, and copies the result to the shards.

        note: wait() waits for it.
        """
        with torch.no_grad():
            for unit in units:
                source = unit.own if unit.staging is None else unit.staging
                if unit.staging is not None and unit.halves is None:  # halves have the masters' upper halves there
                    source.copy_(unit.own)
                if source.numel():
                    unit.slice.copy_(source, non_blocking=unit.placement.apart and self._pinned(source))
        if note:
            self._note()

    def follow(self, stream: torch.cuda.Stream) -> None:
        """wait() then also waits for the work now in the stream."""
        torch.cuda.current_stream(self.environment.device).wait_stream(stream)
        self._note()

    def _pinned(self, tensor: torch.Tensor) -> bool:
        return not self.environment.host and tensor.is_pinned()

    def _note(self) -> None:
        if self.environment.host:
            return
        stream = torch.cuda.current_stream(self.environment.device)
        if self._copied is None:
            self._copied = torch.cuda.Event(blocking=True)
        else:
            stream.wait_event(self._copied)  # wait() is for all copies, including those of another stream
        self._copied.record(stream)

    def wait(self) -> None:
        """Waits until all copies so far have ended."""
        if self._copied is not None:
            self._copied.synchronize()
