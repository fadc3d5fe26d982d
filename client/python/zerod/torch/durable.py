# SPDX-License-Identifier: Apache-2.0
"""Durable jobs: weights, masters and the optimizer's state remain in the daemon when all ranks end.

The group has shadow shards, so that the end of a rank restores all units to the last commit (docs/durable.md). Everything that a
step writes is therefore a unit: the weights' shards, the float32 masters, and the *slabs*, units of bytes that hold the
optimizer's state. Slabs are never gathered. Memory of zerod_alloc() would remain as well, but has no shadow: a rank that ends
inside of a step would leave half-written moments next to weights of the previous step.

A slab starts with a description of its content, because a restarted trainer cannot know which state the optimizer has. The state
depends on its class, its options, and the parameters that have had a gradient. One slab is made at the end of the first step, and
another one whenever more parameters have state.

With offload a slab is in host memory. If a budget keeps units on the device, their state has separate slabs there.

The *record* has the data that must be known before any unit is registered: the model's description, and the sizes of all slabs
that this rank has ever registered. The size of a slab on the device is negative if there are slabs in host memory. The record is
a durable allocation, which a rollback does not change. A slab without a commit is restored as zeros, and is unregistered, because
units of which no rank has a handle would prevent commits.
"""
from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Iterable, Optional

import torch
from torch import nn

import zerod
from zerod import structs as s

from .environment import MOST_JOB_BYTES, Environment, job_name, repeated, short_name
from .layout import BlockPlan
from .offload import ON_DEVICE, Placement, offloaded
from .sharded import Part, ShardedTensor
from .tensors import tensor_at

if TYPE_CHECKING:
    from .unit import FlatUnit


JOIN_DEADLINE_MS = 60000
FORMAT = 2
_ALIGN = 256
_RECORD_NUMEL = 512  # of int64: format, bytes of the description, whether it is complete, and the slabs' bytes
_FIRST_SLAB = 3
MOST_UNITS = 1024  # of one update
_HEAD_BYTES = _ALIGN  # of a slab: the number of bytes of its description
_TENSORS = ("part", "tensor")
_NUMBERS = {"int": int, "float": float, "bool": bool}


def refuse(environment: Environment, durable: str, name: str, process_group: Any, job: Optional[str]) -> None:
    """ValueError for arguments of shard() that a durable job cannot have."""
    if not durable:
        raise ValueError('durable is "": it is the name of the job')
    if job is not None:
        raise ValueError(f"job={job!r} and durable={durable!r} both name the job")
    if process_group is not None:
        raise ValueError("durable works over all ranks: process groups and meshes are not supported with it")
    if environment.client.is_private:
        raise ValueError(f"durable={durable!r} needs the node's daemon, or one that you start: this job's own daemon ends with it")
    if (durable, name) in environment.durables:
        raise ValueError(f"this process has sharded a module as {name!r} of durable job {durable!r} already: "
                         "another module needs another name=")


def join(environment: Environment, job: str, name: str, rank: int, world: int, deadline_ms: int) -> zerod.Group:
    """Joins the job's group, and waits until it has no rank of the former run.

    The daemon can detect the end of a process later than its launcher does. Until then the process's rank is taken.
    """
    deadline = time.monotonic() + (deadline_ms or JOIN_DEADLINE_MS) / 1000
    try:
        group = repeated(deadline, zerod.AlreadyExists, partial(
            environment.client.join, job=job, group=name, world_size=world, rank=rank, deadline_ms=deadline_ms,
            flags=s.GroupFlags.DURABLE | s.GroupFlags.SHADOW, **environment.place(rank)))
    except zerod.Mismatch as mismatch:
        raise zerod.errors.error(mismatch.status, f"{mismatch.text}; durable job {job!r} goes on as it was begun: with "
                                 f"as many ranks, on the same devices. To begin anew: zeroctl end-job {job}") from None
    environment.durables.add((job, name))
    # A rank of the former run is lost: its successor joins the same group.
    repeated(deadline, zerod.PeerLost, partial(group.barrier, deadline_ms))
    return group


def _describe(plans: list[BlockPlan], offload: Optional[str]) -> list[list[str]]:
    """[parameter, what a unit has of it] for each parameter."""
    return [[member.name, f"{list(member.shape)} of {str(unit.source_dtype)[6:]}, gathered as {str(unit.dtype)[6:]}, "
             f"{'' if unit.trainable else 'frozen, '}at {member.offset} of unit {unit.name!r}"
             f"{f', with offload={offload!r}' if unit.placement.optimizer_on_host else ''}"]
            for block in plans for unit in block.units for member in unit.members]


@dataclass(eq=False)
class Entry:
    """One value of optimizer.state: `key` of a parameter. It is in a slab."""

    parameter: str
    key: str
    kind: str  # part: this rank's of a sharded tensor; tensor; scalar: one without dimensions; or a type of numbers
    dtype: str
    shape: list[int]
    offset: int  # bytes, of a tensor, from the slab's data
    beside: bool  # the tensor is on the parameters' device
    tensor: Optional[torch.Tensor] = None  # the slab's memory

    def described(self) -> list[Any]:
        return [self.parameter, self.key, self.kind, self.dtype, self.shape, self.offset, self.beside]


@dataclass(eq=False)
class Slab:
    """See the file's first comment. `values` has two rows: which entries exist, and the scalars' values."""

    unit: zerod.Unit
    placement: Placement
    values: torch.Tensor
    entries: list[Entry] = field(default_factory=list)


def _align(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def _bytes(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


class Durable:
    """The data of one model in the daemon. `step` is the last committed one."""

    def __init__(self, environment: Environment, job: str, name: str, group: zerod.Group, offload: Optional[str]) -> None:
        self.environment = environment
        self.offload = offload
        self.placements = [ON_DEVICE] if offload is None else [offloaded(offload), ON_DEVICE]  # of slabs
        self.job, self.name, self.group = job, name, group
        self.device = environment.device_index(group.rank)
        info = group.info()
        if info.torn:
            raise self._error(s.Status.TORN, f"the shards of step {info.committed_step} are lost")
        self.step = int(info.committed_step)
        self.adopts = self.step > 0
        self.slabs: list[Slab] = []
        self.entries: dict[tuple[str, str], Entry] = {}
        self.unclaimed: set[tuple[str, str]] = set()  # no optimizer has received these yet
        self.owners: dict[str, torch.optim.Optimizer] = {}
        self.parameters: dict[str, nn.Parameter] = {}
        self.parts: dict[str, Part] = {}
        self.agreed_bytes: list[int] = []  # of the slab that this step makes, for each placement
        self._passing: Optional[zerod.Group] = None
        self._planned: list[tuple[bytes, list[Entry]]] = []

    def _error(self, status: s.Status, text: str) -> zerod.ZerodError:
        return zerod.errors.error(status, f"durable job {self.job!r}: {text}")

    def leave(self) -> None:
        """The process can then shard another module as this one of the job."""
        if self._passing is not None:
            self._passing.leave()
        self.group.leave()
        self.environment.durables.discard((self.job, self.name))

    # ---- The record ----

    def _allocate(self, what: str, nbytes: int) -> "tuple[zerod.client.Allocation, torch.Tensor]":
        made = self.environment.with_room(self.environment.client.alloc, self.job, nbytes, self.device,
                                          f"{self.name}.{self.group.rank}.{what}", flags=s.AllocFlags.DURABLE)
        return made, tensor_at(made.address, nbytes, torch.uint8, self.environment.client.dlpack_device)

    def _note(self, index: int, value: int) -> None:
        """Waits until the device has written the record, because this process can be killed afterwards."""
        self.record[index] = value
        stream = self.environment.stream()
        if stream is not None:
            stream.synchronize()

    def check_same(self, plans: list[BlockPlan]) -> None:
        """Mismatch if the job has another model. The text names the first parameter that differs."""
        here = _describe(plans, self.offload)
        self.record = self._allocate("record", 8 * _RECORD_NUMEL)[1].view(torch.int64)
        version, nbytes, complete = self.record[:_FIRST_SLAB].tolist()
        if version not in (0, FORMAT):
            raise self._error(s.Status.MISMATCH, f"another version of zerod.torch has made it: format {version}, this "
                              f"version has {FORMAT}")
        if complete:
            self._compare(json.loads(bytes(self._allocate("model", nbytes)[1].tolist())), here)
            return
        if nbytes:  # the process that wrote it was killed before the end
            self._allocate("model", nbytes)[0].free(self.environment.stream())
        text = json.dumps(here).encode()
        self._note(0, FORMAT)
        self._note(1, len(text))
        self._allocate("model", len(text))[1].copy_(_bytes(text))
        self._note(2, 1)

    def _compare(self, there: list[list[str]], here: list[list[str]]) -> None:
        if there == here:
            return
        index = next((i for i, (a, b) in enumerate(zip(there, here)) if a != b), min(len(there), len(here)))
        shown = [" ".join(lines[index]) if index < len(lines) else "nothing" for lines in (there, here)]
        raise self._error(s.Status.MISMATCH, f"it holds a different model: its parameter {index} is {shown[0]}; this model "
                          f"has {shown[1]}. To begin anew: zeroctl end-job {self.job}")

    # ---- Units ----

    def attach(self, units: "list[FlatUnit]") -> None:
        """Called when the model's units are registered. Finds the slabs of the last commit."""
        self.parameters = {member.name: member.parameter for unit in units for member in unit.members}
        self.parts = {part.name: part for unit in units for part in unit.parts}
        for index, nbytes in enumerate(self.record[_FIRST_SLAB:].tolist()):
            if nbytes:
                self._attach_slab(index, nbytes)
        self.unclaimed = set(self.entries)
        most = int(self.group.agree(zerod.AgreeOp.MAX, [len(self.slabs)])[0])
        if most != len(self.slabs):
            raise self._error(s.Status.MISMATCH, f"rank {self.group.rank} has {len(self.slabs)} units of the optimizer's "
                              f"state, another rank has {most}")

    def _register(self, index: int, nbytes: int, placement: Placement) -> tuple[zerod.Unit, torch.Tensor]:
        unit = self.environment.register(self.group, f"(state {index})", zerod.DType.UINT8, self.group.world_size * nbytes,
                                         placement.optimizer_on_host)
        return unit, tensor_at(unit.shard().data or 0, nbytes, torch.uint8, placement.own_device(self.environment))

    def _attach_slab(self, index: int, nbytes: int) -> None:
        """nbytes: from the record"""
        placement = self.placements[0 if nbytes > 0 else 1]
        unit, memory = self._register(index, abs(nbytes), placement)
        length = int(memory[:8].view(torch.int64))
        if not length:  # it was registered after the last commit
            unit.unregister()
            self._note(_FIRST_SLAB + index, 0)
            return
        text = bytes(memory[_HEAD_BYTES:_HEAD_BYTES + length].tolist())
        self._add(unit, placement, memory, length, [Entry(*values) for values in json.loads(text)])
        slab = self.slabs[-1]
        for entry, present in zip(slab.entries, slab.values[0].tolist()):
            if not present:
                del self.entries[entry.parameter, entry.key]

    def _add(self, unit: zerod.Unit, placement: Placement, memory: torch.Tensor, length: int,
             entries: list[Entry]) -> None:
        begin = _HEAD_BYTES + _align(length)
        nbytes = 16 * len(entries)
        values = memory[begin:begin + nbytes].view(torch.float64).view(2, len(entries))
        begin += _align(nbytes)
        for entry in entries:
            if entry.kind in _TENSORS:
                dtype = getattr(torch, entry.dtype)
                first = begin + entry.offset
                last = first + torch.Size(entry.shape).numel() * dtype.itemsize
                entry.tensor = memory[first:last].view(dtype).view(entry.shape)
            self.entries[entry.parameter, entry.key] = entry
        self.slabs.append(Slab(unit, placement, values, entries))

    def places(self) -> "list[tuple[zerod.Unit, bool]]":
        """The units of all slabs, and whether the CPU writes each of them."""
        return [(slab.unit, slab.placement.optimizer_on_host) for slab in self.slabs]

    def commit(self) -> None:
        self.group.commit(self.step + 1)
        self.step += 1

    def passing_group(self) -> zerod.Group:
        """The group for units that last for one call. In the durable group, a killed rank would leave them. Collective."""
        if self._passing is None:
            self._passing = self.environment.client.join(
                job=short_name(f"{job_name()}.passing", MOST_JOB_BYTES), group=self.name,
                world_size=self.group.world_size, rank=self.group.rank, **self.environment.place(self.group.rank))
        return self._passing

    # ---- The optimizer's state ----

    def take(self, optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
        """Called for an optimizer that steps these parameters. It receives their state of the last commit, unless an optimizer
        has received it already."""
        for parameter in parameters:
            self.owners[parameter.part.name] = optimizer  # type: ignore[attr-defined]
        if not self.unclaimed:
            return
        for name, key in [each for each in self.entries if each in self.unclaimed and each[0] in self.owners]:
            self.unclaimed.discard((name, key))
            self.owners[name].state[self.parameters[name]][key] = self._value(self.entries[name, key])

    def forget(self) -> "set[torch.optim.Optimizer]":
        """The optimizers, which have no state any more. A part of it is in the daemon's memory, and all in the last commit."""
        for name, optimizer in self.owners.items():
            optimizer.state.pop(self.parameters[name], None)
        return set(self.owners.values())

    def _value(self, entry: Entry) -> Any:
        if entry.kind in _TENSORS:
            assert entry.tensor is not None
            values = entry.tensor if entry.beside else entry.tensor.to("cpu", copy=True)
            return values if entry.kind == "tensor" else ShardedTensor(values, self.parts[entry.parameter])
        value = self._number(entry)
        if entry.kind == "scalar":
            device = self._placement(entry.parameter).torch_device(self.environment) if entry.beside else "cpu"
            return torch.tensor(value, dtype=getattr(torch, entry.dtype), device=device)
        return _NUMBERS[entry.kind](value)

    def _placement(self, parameter: str) -> Placement:
        return self.parts[parameter].place[0].placement

    def _number(self, entry: Entry) -> float:
        slab = next(slab for slab in self.slabs if entry in slab.entries)
        return float(slab.values[1, slab.entries.index(entry)])

    def _state(self) -> Iterable[tuple[str, str, Any]]:
        """(parameter, key, value) of the optimizers' present state."""
        for name, optimizer in self.owners.items():
            for key, value in list(optimizer.state.get(self.parameters[name], {}).items()):
                if value is not None:
                    yield name, key, value

    def wanted_bytes(self) -> list[int]:
        """For each placement, the bytes of a slab for the state that is not in a slab yet. 0: there is no such state."""
        self._planned = []
        return [self._plan(placement.optimizer_on_host) for placement in self.placements]

    def _plan(self, on_host: bool) -> int:
        found: list[Entry] = []
        nbytes = 0
        for name, key, value in self._state():
            if (name, key) in self.entries or self._placement(name).optimizer_on_host != on_host:
                continue
            entry = self._entry(name, key, value)
            entry.offset = nbytes
            if entry.kind in _TENSORS:
                nbytes += _align(torch.Size(entry.shape).numel() * value.element_size())
            found.append(entry)
        text = json.dumps([entry.described() for entry in found]).encode()
        self._planned.append((text, found))
        return _HEAD_BYTES + _align(len(text)) + _align(16 * len(found)) + nbytes if found else 0

    def _entry(self, name: str, key: str, value: Any) -> Entry:
        kind = type(value).__name__
        if kind in _NUMBERS:
            return Entry(name, key, kind, "", [], 0, False)
        values = value.read_local() if isinstance(value, ShardedTensor) else value
        if isinstance(values, torch.Tensor):
            if values.layout == torch.strided and not values.is_complex():
                kind = "part" if values is not value else "tensor" if value.dim() else "scalar"
                return Entry(name, key, kind, str(values.dtype)[6:], list(values.shape), 0,
                             values.device == self._placement(name).torch_device(self.environment))
            kind = f"{value.layout} tensor of {value.dtype}"
        raise self._error(s.Status.UNSUPPORTED, f"the optimizer's {key} of {name} is a {kind}: dense real tensors and "
                          "numbers can be committed")

    def store(self) -> None:
        """Copies the optimizer's state into the slabs, inside of an update. Tensors over a slab are already there."""
        for number, nbytes in enumerate(self.agreed_bytes):
            if nbytes:
                self._make_slab(number, _align(nbytes))
        self.agreed_bytes = []
        numbers = {self.entries[each]: self._number(self.entries[each]) for each in self.unclaimed}  # as the last commit has them
        for name, key, value in self._state():
            entry = self.entries[name, key]
            if entry.kind in _TENSORS:
                self._store_tensor(entry, value)
            numbers[entry] = 0.0 if entry.kind in _TENSORS else float(value)
        for slab in self.slabs:
            rows = [[float(entry in numbers) for entry in slab.entries], [numbers.get(entry, 0.0) for entry in slab.entries]]
            slab.values.copy_(torch.tensor(rows, dtype=torch.float64))

    def _store_tensor(self, entry: Entry, value: Any) -> None:
        assert entry.tensor is not None
        if isinstance(value, ShardedTensor) != (entry.kind == "part"):
            raise self._error(s.Status.MISMATCH, f"the optimizer's {entry.key} of {entry.parameter} is a {type(value).__name__} "
                              f"now, it was a {entry.kind}")
        values = value.read_local() if isinstance(value, ShardedTensor) else value
        if values is entry.tensor:
            return
        if list(values.shape) != entry.shape or str(values.dtype)[6:] != entry.dtype:
            raise self._error(s.Status.MISMATCH, f"the optimizer's {entry.key} of {entry.parameter} is {list(values.shape)} of "
                              f"{str(values.dtype)[6:]} now, it was {entry.shape} of {entry.dtype}")
        with torch.no_grad():
            entry.tensor.copy_(values)
        if entry.beside:
            state = self.owners[entry.parameter].state[self.parameters[entry.parameter]]
            state[entry.key] = self._value(entry)

    def _make_slab(self, number: int, nbytes: int) -> None:
        """`number`: of its placement."""
        text, entries = self._planned[number]
        placement = self.placements[number]
        index = len(self.slabs)
        if _FIRST_SLAB + index >= _RECORD_NUMEL:
            raise self._error(s.Status.LIMIT, f"parameters have got their first state in {index} different steps, and no "
                              "more are possible")
        self._note(_FIRST_SLAB + index, nbytes if number == 0 else -nbytes)
        unit, memory = self._register(index, nbytes, placement)
        self.group.update_begin([unit])
        memory[_HEAD_BYTES:_HEAD_BYTES + len(text)].copy_(_bytes(text))
        memory[:8].view(torch.int64).fill_(len(text))
        self._add(unit, placement, memory, len(text), entries)
