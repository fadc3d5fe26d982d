# SPDX-License-Identifier: Apache-2.0
"""A unit of a model, and the block that gathers its units together.

A FlatUnit has the parameters of one block with one dtype and requires_grad. For each it knows the sharded
parameter, which the module shows outside a forward, and the leaf: the whole parameter, which stands in its place
while the block is held. A leaf keeps its identity; its data is the gathered buffer, wherever that is now.

A Block holds its units in the daemon by uses of one lease: one of a forward that runs, one of a backward, one that
was asked for ahead. The buffers go with the last of them.
"""
from __future__ import annotations

from ctypes import c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Optional

import torch
from torch import nn

import zerod
from zerod import structs as s
from zerod.library import calls

from .environment import DTYPES, MOST_UNIT_BYTES, short_name
from .layout import BlockPlan, Member, UnitPlan
from .parameter import ShardedGradient, ShardedParameter
from .tensors import Places, tensor_at

if TYPE_CHECKING:
    from .model import Model

# The unit of each gathered buffer, by the identity of the storage that stands for the buffer.
storages: "dict[int, FlatUnit]" = {}

_gather_begin, _wait, _release, _cork, _uncork = (calls.gather_begin, calls.wait, calls.release, calls.cork,
                                                  calls.uncork)
_DETACHED = s.ReleaseOptions(flags=s.ReleaseFlags.DETACHED)
_NO_SLOT = s.GatherOptions(flags=s.GatherFlags.NO_SLOT)


class FlatUnit:
    """See the file's beginning. `address` is where the leaves' data is now; `version` counts steps."""

    def __init__(self, block: "Block", plan: UnitPlan, index: int, flags: int) -> None:
        self.block = block
        self.index = index
        self.name = plan.name
        self.dtype = plan.dtype
        self.source_dtype = plan.source_dtype
        self.trainable = plan.trainable
        self.placement = plan.placement
        self.members: list[Member] = plan.members
        self.persistent = bool(flags & s.UnitFlags.PERSISTENT)
        self.numel = max(plan.numel, 1)
        model = block.model
        names = {member.name for member in plan.members}
        named = len(plan.members) <= s.MAX_VIEWS and all(len(name.encode()) <= MOST_UNIT_BYTES for name in names)
        self.has_views = named and len(plan.members[0].shape) <= s.MAX_DIMS and all(
            len(member.shape) <= s.MAX_DIMS for member in plan.members)
        views = [s.view(m.name, m.offset, tuple(m.shape)) for m in plan.members] if self.has_views else None
        if not plan.trainable or not plan.source_dtype.is_floating_point:
            flags |= s.UnitFlags.FROZEN
        self.unit = model.environment.with_room(model.group.register, plan.name, DTYPES[plan.dtype], self.numel, views,
                                                flags=flags | plan.placement.shard_flags, slot=model.slot(block, index))
        self.shard = self.unit.shard()
        self.device = model.client.dlpack_device  # of gathered buffers
        self.master: Optional[torch.Tensor] = None
        self.master_unit: Optional[zerod.Unit] = None  # of a durable job: the masters' memory
        self.staging: Optional[torch.Tensor] = None  # in host memory: masters on their way to shards on a device
        self.fetched: Optional[torch.Tensor] = None  # in host memory: a copy of the reduced gradient
        self.slice = tensor_at(self.shard.data or 0, self.shard.true_numel, self.dtype,
                               self.placement.shard_device(model.environment))
        self.address = 0
        self.version = 0
        self.scope = 0
        self.wants = [plan.trainable] * len(self.members)  # which leaves take part in backwards
        self.expected = sum(self.wants)
        self.leaves = [self._leaf(i, member, model) for i, member in enumerate(self.members)]
        self.flat: Places[torch.Tensor] = Places(self._flat, self._forget)
        self.views: Places[list[torch.Tensor]] = Places(self._views)
        self.entries: Places[list[torch.Tensor]] = Places(self._entry)
        self.targets: Places[torch.Tensor] = Places(self._target)
        self.gradients: Places[list[torch.Tensor]] = Places(lambda address: self._parts(self.targets(address)))
        self.holders: list[torch.Tensor] = []
        self.first_flag = 0  # of its members' places in the model's unit of usage
        # Of a backward: how many leaves have their gradient, and whether the unit was handed over.
        self.arrived = 0
        self.submitted = False
        self.missing: tuple[int, ...] = ()

    # ---- Making ----

    def _leaf(self, index: int, member: Member, model: "Model") -> nn.Parameter:
        blank = torch.empty((), dtype=self.dtype, device=model.device).expand(member.shape)
        leaf = nn.Parameter(blank, requires_grad=self.trainable)
        if self.trainable:
            leaf.register_post_accumulate_grad_hook(model.arrival(self))
        return leaf

    def follow_requires_grad(self) -> bool:
        """Takes over what the program has set on the parameters; True where the unit is frozen or unfrozen by it."""
        with torch._C.DisableTorchFunctionSubclass():
            wants = [member.parameter.requires_grad for member in self.members]
        if wants == self.wants:
            return False
        for leaf, want in zip(self.leaves, wants):
            if want and not leaf._post_accumulate_grad_hooks:
                leaf.requires_grad_(True)
                leaf.register_post_accumulate_grad_hook(self.block.model.arrival(self))
            leaf.requires_grad_(want)
        self.wants, self.expected = wants, sum(wants)
        before, self.trainable = self.trainable, any(wants)
        if before != self.trainable:
            self.unit.set_frozen(before)
        return before != self.trainable

    def _flat(self, address: int) -> torch.Tensor:
        flat = tensor_at(address, self.numel, self.dtype, self.device)
        storages[flat.untyped_storage()._cdata] = self
        return flat

    def _forget(self, flat: torch.Tensor) -> None:
        storages.pop(flat.untyped_storage()._cdata, None)

    def _split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return [flat[m.offset:m.offset + m.numel].view(m.shape) for m in self.members]

    def _views(self, address: int) -> list[torch.Tensor]:
        return self._split(self.flat(address))

    def _entry(self, address: int) -> list[torch.Tensor]:
        return self._split(tensor_at(address, self.numel, self.block.model.gradient_dtype(self), self.device))

    def _target(self, address: int) -> torch.Tensor:
        return tensor_at(address, self.shard.true_numel, torch.float32,
                         self.placement.shard_device(self.block.model.environment))

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The members' parts of something that is as long as this rank's slice."""
        return [flat[first:last] for first, last in map(self.bounds, self.members)]

    def host_gradient(self) -> Optional[torch.Tensor]:
        """Where the reduced gradient is copied for the CPU's optimizer; None: the optimizer reads the target."""
        if not self.placement.optimizer_on_host or self.placement.shards_on_host and self.source_dtype == torch.float32:
            return None
        if self.fetched is None:
            self.fetched = self.block.model.offload.allocate(f"{self.name}:gradient", self.shard.true_numel,
                                                             self.source_dtype, copied=True)
        return self.fetched

    def reduced(self) -> list[torch.Tensor]:
        """The parameters' parts of the reduced gradient, where the optimizer reads it."""
        if self.fetched is not None:
            return self._parts(self.fetched)
        return self.gradients(self.unit.target().data or 0)

    def bounds(self, member: Member) -> tuple[int, int]:
        """The member's elements in this rank's slice, counted from the slice's beginning; may be none."""
        begin, end = self.shard.offset_numel, self.shard.offset_numel + self.shard.true_numel
        first = min(max(member.offset, begin), end)
        last = min(max(member.offset + member.numel, begin), end)
        return first - begin, max(first, last) - begin

    def make_master(self) -> None:
        """Room for the masters, where they have another dtype or another place than the shards.

        It is torch's, the daemon's host memory, or a unit of a durable job.
        """
        model = self.block.model
        placement = self.placement
        if self.dtype == self.source_dtype and not placement.apart:
            return
        if placement.apart and self.dtype != self.source_dtype:
            self.staging = model.offload.allocate(f"{self.name}:staging", self.shard.true_numel, self.dtype, copied=True)
        if model.durable is None and placement.optimizer_on_host:
            self.master = model.offload.allocate(f"{self.name}:master", self.shard.true_numel, self.source_dtype,
                                                 copied=self.dtype == self.source_dtype)
            return
        if model.durable is None:
            self.master = torch.empty(self.shard.true_numel, dtype=self.source_dtype, device=model.device)
            return
        name = short_name(f"{self.name}:master", MOST_UNIT_BYTES)
        self.master_unit = model.environment.with_room(model.group.register, name, DTYPES[self.source_dtype],
                                                       self.shard.padded_numel, flags=s.UnitFlags.FROZEN | placement.own_flags)
        shard = self.master_unit.shard()
        if shard.shard_numel != self.shard.shard_numel:
            raise zerod.errors.error(s.Status.UNSUPPORTED, f"unit {self.name!r}: a durable job has no masters of "
                                     f"{str(self.source_dtype)[6:]} for {str(self.dtype)[6:]}")
        self.master = tensor_at(shard.data or 0, self.shard.true_numel, self.source_dtype,
                                placement.own_device(model.environment))

    # ---- Content ----

    def fill(self, parameters: list[torch.Tensor], loads: bool) -> None:
        """Gives the shards of all ranks what rank 0's parameters hold (or, without loads, this rank's own).

        Parameters on the meta device count as zeros. All ranks call it for the same units.
        """
        model = self.block.model
        gives = not loads or model.rank == 0
        whole = self._whole(parameters) if gives else None
        self.begin_update()
        if self.dtype == self.source_dtype:
            self._load(self.unit, whole, self.slice, loads)
            if self.master is not None:
                self.master.copy_(self.slice)
        else:
            self._load_master(whole, loads)
        if model.replicas is not None:
            model.replicas.broadcast([self.own])
        self.publish()

    def _whole(self, parameters: list[torch.Tensor]) -> torch.Tensor:
        whole = torch.zeros(self.shard.padded_numel, dtype=self.source_dtype, device=self.block.model.device)
        with torch.no_grad():
            for view, parameter in zip(self._split(whole), parameters):
                if not parameter.is_meta:
                    view.copy_(parameter)
        return whole

    def _load(self, unit: zerod.Unit, whole: Optional[torch.Tensor], into: torch.Tensor, loads: bool) -> None:
        model = self.block.model
        if loads:
            stream = model.environment.stream()
            unit.load(None if whole is None else whole.data_ptr(), stream)
            if stream is not None:
                stream.synchronize()
        elif whole is not None:
            begin = self.shard.offset_numel
            into.copy_(whole[begin:begin + into.numel()])

    def _load_master(self, whole: Optional[torch.Tensor], loads: bool) -> None:
        """The slices of the source dtype come by a unit of that dtype, which lasts for this call."""
        assert self.master is not None
        if not loads or self.master_unit is not None:
            return self._load(self.master_unit or self.unit, whole, self.master, loads)
        group, environment = self.block.model.group, self.block.model.environment
        unit = environment.with_room(group.register, self.block.model.passing_name(self), DTYPES[self.source_dtype],
                                     self.shard.padded_numel, flags=s.UnitFlags.FROZEN | self.placement.own_flags)
        shard = unit.shard()
        assert shard.shard_numel == self.shard.shard_numel, (shard, self.shard)
        group.update_begin([unit])
        self._load(unit, whole, self.master, loads)
        if shard.true_numel:
            source = tensor_at(shard.data, shard.true_numel, self.source_dtype, self.placement.own_device(environment))
            self.master.copy_(source[:self.shard.true_numel])
        group.publish([unit], self.placement.own_stream(environment))
        unit.unregister()

    @property
    def own(self) -> torch.Tensor:
        """This rank's slice as the optimizer writes it."""
        return self.slice if self.master is None else self.master

    def begin_update(self) -> None:
        self.block.model.release_kept()
        self.block.model.offload.wait()
        self.block.model.group.update_begin([self.unit] if self.master_unit is None else [self.unit, self.master_unit])

    def publish(self) -> None:
        """Ends an update: what the optimizer's slices hold becomes the next version."""
        model = self.block.model
        model.publish([self])
        if self.master_unit is not None:
            model.group.publish([self.master_unit], self.placement.own_stream(model.environment))

    def next_version(self) -> None:
        """Invalidates the views of the leaves that autograd has saved."""
        self.version += 1
        if self.block.model.in_place:  # autograd itself has saved them, and compares the numbers of their versions
            for leaf in self.leaves:
                torch.autograd.graph.increment_version(leaf)

    def shard_parameters(self) -> None:
        """Gives the module's parameter objects this rank's slices as data, and makes them sharded."""
        for index, member in enumerate(self.members):
            first, last = self.bounds(member)
            part = self.own[first:last]
            parameter = member.parameter
            if parameter.is_meta:
                parameter = member.parameter = nn.Parameter(part, requires_grad=self.trainable)
            else:
                parameter.grad = None
                parameter.data = part
            parameter._zerod = (self, index)
            parameter.__class__ = ShardedParameter
            self.holders.append(self._holder(part))

    def _holder(self, part: torch.Tensor) -> torch.Tensor:
        blank = torch.empty((), dtype=part.dtype, device=part.device).expand(part.numel())
        holder = blank.as_subclass(ShardedGradient)
        holder._unit = self
        return holder

    def forget(self) -> None:
        """The leaves have no data, and no tensor stands for a buffer."""
        for leaf in self.leaves:
            leaf.grad = None
            leaf.data = torch.empty((), dtype=self.dtype, device=leaf.device).expand(leaf.shape)
        for places in (self.flat, self.views, self.entries, self.gradients):
            places.clear()
        self.holders.clear()

    # ---- Use ----

    def place(self, address: int) -> None:
        """The leaves' data is the buffer at the address from now on."""
        if address != self.address:
            self.address = address
            for leaf, view in zip(self.leaves, self.views(address)):
                leaf.data = view


class Block:
    """See the file's beginning. `held` counts uses of the lease that this process has."""

    def __init__(self, model: "Model", plan: BlockPlan, index: int) -> None:
        self.model = model
        self.index = index
        self.name = plan.name
        self.module = plan.module
        self.parent = plan.parent
        self.has_blocks = False
        self.nbytes = 0  # that a release frees
        self.units: list[FlatUnit] = []
        self.trainable: list[FlatUnit] = []
        self.places: list[tuple[dict[str, Any], str, nn.Parameter, nn.Parameter]] = []
        self.depth = 0  # forwards of the module that run
        self.held = 0
        self.pushed = False
        self.tickets: Optional[list[int]] = None  # of a use that was asked for ahead
        self.in_backward = False  # one use is the backward's
        self.keeps_forward = False  # stage 2: the forward's use lasts until the backward has ended
        self.raw = False  # tensors may have been saved without our hooks: only the boundary or the end releases
        self.node: Any = None  # the autograd node that last unpacked a weight of the block
        self.next_forward: Optional[Block] = None
        self.next_backward: Optional[Block] = None

    def finish(self) -> None:
        """Called when all units are filled."""
        self.trainable = [unit for unit in self.units if unit.trainable]
        self.nbytes = sum(unit.shard.padded_numel * unit.dtype.itemsize for unit in self.units
                          if not unit.persistent and (self.model.world > 1 or unit.placement.shards_on_host))
        for unit in self.units:
            unit.shard_parameters()
            for member, leaf in zip(unit.members, unit.leaves):
                for module, name in member.owners:
                    self.places.append((module._parameters, name, leaf, member.parameter))
                    module._parameters[name] = member.parameter

    def encloses(self, other: "Block") -> bool:
        return not self.name or other.name.startswith(self.name + ".")

    # ---- The lease ----

    def ask(self) -> None:
        """Asks for one use ahead: acquire() then waits for it."""
        if self.tickets is not None or self.held:
            return
        tickets = []
        for unit in self.units:
            ticket = c_uint64()
            status = _gather_begin(unit.unit.handle, None, ticket)
            if status:
                raise self.model.client.error(status)
            tickets.append(ticket.value)
        self.tickets = tickets

    def acquire(self, ahead: "tuple[Block, ...]" = ()) -> None:
        """Takes one use of all units, and asks for one of each block in `ahead`, in one packet.

        The daemon knows of the first use and the last; uses between are counted here.
        """
        model = self.model
        if model.settings.slots:
            for block in model.blocks:  # what was asked for and not needed would be in the way
                if block.tickets is not None and block is not self and block not in ahead:
                    block.forget_ahead()
        if model.pace is not None:
            model.pace.keep()
        if self.tickets is None and not self.held:
            model.counts.waited += len(self.units)
        _cork(model.client.handle)
        try:
            self.ask()
            for block in ahead:
                block.ask()
        finally:
            status = _uncork(model.client.handle)
        if status:
            raise model.client.error(status)
        if self.held:
            self.held += 1
            return
        tickets, self.tickets = self.tickets, None
        assert tickets is not None
        stream = model.environment.stream()
        handle = None if stream is None else stream.handle
        for unit, ticket in zip(self.units, tickets):
            data = c_void_p()
            status = _wait(model.client.handle, ticket, handle, data)
            if status == s.Status.SLOT_CONFLICT:  # more blocks are held at once than there are slots
                data.value = unit.unit.gather(stream, _NO_SLOT)
            elif status == s.Status.NO_MEMORY:
                model.environment.again(model.client.error(status))
                data.value = unit.unit.gather(stream)
            elif status:
                raise model.client.error(status)
            unit.place(data.value or 0)
        self.held += 1
        model.counts.gathers += len(self.units)

    def release(self) -> None:
        """Gives one use back; the last one behind what is in torch's stream now."""
        self.held -= 1
        if self.held:
            return
        stream = self.model.environment.stream()
        array, count = (None, 0) if stream is None else (stream.array, 1)
        for unit in self.units:
            status = _release(unit.unit.handle, array, count, _DETACHED, None)
            if status:
                raise self.model.client.error(status)
        if self.model.pace is not None and self.nbytes:
            self.model.pace.released(self.nbytes)

    def forget_ahead(self) -> None:
        """Gives back a use that was asked for ahead and not needed."""
        tickets, self.tickets = self.tickets, None
        if tickets is None:
            return
        stream = self.model.environment.stream()
        for unit, ticket in zip(self.units, tickets):
            try:
                self.model.client.wait(ticket, stream)
            except zerod.InvalidState as error:
                if error.status != s.Status.SLOT_CONFLICT:
                    raise
            else:
                unit.unit.release(stream)

    # ---- The module's parameters ----

    def show_leaves(self) -> None:
        for parameters, name, leaf, _ in self.places:
            parameters[name] = leaf

    def show_shards(self) -> None:
        for parameters, name, _, sharded in self.places:
            parameters[name] = sharded

    # ---- Backward ----

    def hold_backward(self) -> None:
        """Holds the block for the backward that runs, and asks for the one that came next last time."""
        if self.in_backward:
            return
        model = self.model
        ahead: tuple[Block, ...] = ()
        last = model.last_backward
        if last is not None and last is not self:
            last.next_backward = self
        model.last_backward = self
        if model.prefetch:
            ahead = tuple(block for block in model.following(self, "next_backward") if not block.in_backward)
        self.acquire(ahead)
        self.in_backward = True
        model.backward_blocks.append(self)

    def leave_backward(self) -> None:
        if self.in_backward:
            self.in_backward = False
            self.raw = False
            self.node = None
            self.model.backward_blocks.remove(self)
            self.release()
        if self.keeps_forward:
            self.keeps_forward = False
            self.release()
