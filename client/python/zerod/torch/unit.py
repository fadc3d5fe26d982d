# SPDX-License-Identifier: Apache-2.0
"""A unit of a model: the parameters of one block with one dtype and requires_grad.

For each parameter it has the sharded parameter, which the module shows outside of a forward, and the leaf: the whole parameter,
which replaces it while the block is held. A leaf is always the same object. Its data is the gathered buffer, at its present
address.
"""
from __future__ import annotations

import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

import torch
from torch import nn

import zerod
from zerod import structs as s
from zerod.memory import KDLCPU

from .context import Context
from .environment import DTYPES, MOST_UNIT_BYTES, dtype_of_sums, short_name
from .layout import Member, UnitPlan
from .sharded import Part, ShardedParameter, ShardedTensor, ShardedWrite, as_plain, become
from .tensors import Places, tensor_at

if TYPE_CHECKING:
    from .halves import Halves
    from .model import Model

# The unit of each gathered buffer, by the identity of the storage that represents the buffer.
storages: "dict[int, weakref.ref[FlatUnit]]" = {}

uses_of_storage = torch._C._storage_Use_Count  # type: ignore[attr-defined]
_alone = torch.empty(1, device="cpu")
USES_BY_LOOKING = uses_of_storage(_alone.untyped_storage()._cdata) - 1  # in this torch
_TAKES_LISTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)  # increment_version()


def _references_from_torch() -> int:
    """How many more references of Python a tensor has while this torch also holds it, for example in .grad."""
    parameter, gradient = nn.Parameter(torch.zeros(())), torch.zeros(())
    before = sys.getrefcount(gradient)
    parameter.grad = gradient
    return sys.getrefcount(gradient) - before


def unit_of(tensor: torch.Tensor) -> "Optional[FlatUnit]":
    """The unit of the gathered buffer over which a tensor is."""
    known = storages.get(tensor.untyped_storage()._cdata)
    return None if known is None else known()


references_from_torch = _references_from_torch()


def weakly(method: Callable) -> Callable:
    """The method, without a reference to its object. It does nothing if the object is freed."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        found = reference()
        return None if found is None else found(*args)

    return call


class Leaf(nn.Parameter):
    """The whole parameter in a forward. Writes by `.data` count like other writes in place."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, requires_grad: bool) -> "Leaf":
        return torch.Tensor._make_subclass(cls, data, requires_grad)

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, _: torch.Tensor) -> None:
        raise ShardedWrite("the parameter of a sharded model was written in a forward, by `.data = `: the write would be lost")


_set_data = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class FlatUnit:
    """See the file's first comment. `address` is that of the leaves' data; `version` counts steps."""

    def __init__(self, context: Context, block: str, plan: UnitPlan, flags: int, slot: int,
                 arrived: "Callable[[FlatUnit, int], None]") -> None:
        self.context = context
        self.block = block  # its name
        self.name = plan.name
        self.dtype = plan.dtype
        self.source_dtype = plan.source_dtype
        reduce_dtype = None if plan.dtype.is_complex else context.settings.reduce_dtype
        self.gradient_dtype = reduce_dtype or plan.dtype  # of the submitted gradients
        self.sum_dtype = dtype_of_sums(self.gradient_dtype)
        self.summed_by_ranks = self.sum_dtype.to_real() == torch.float64  # in a step, whole.sum_of_ranks()
        width = plan.dtype.itemsize // DTYPES[plan.dtype].itemsize  # elements of the daemon's in one
        self.trainable = self.planned = plan.trainable
        self.placement = plan.placement
        self.members: list[Member] = plan.members
        self.persistent = bool(flags & s.UnitFlags.PERSISTENT)
        self.numel = max(plan.numel, 1)
        names = {member.name for member in plan.members}
        named = width == 1 and len(plan.members) <= s.MAX_VIEWS and all(len(name.encode()) <= MOST_UNIT_BYTES for name in names)
        self.named_views = named and all(len(member.shape) <= s.MAX_DIMS for member in plan.members)
        views = [s.view(m.name, m.offset, tuple(m.shape)) for m in plan.members] if self.named_views else None
        floating = plan.source_dtype.is_floating_point or plan.source_dtype.is_complex
        if not plan.trainable or self.summed_by_ranks or not floating:
            flags |= s.UnitFlags.FROZEN
        if plan.placement.shards_on_host:
            flags |= s.UnitFlags.ON_HOST
        self.unit = context.environment.with_room(context.group.register, plan.name, DTYPES[plan.dtype], self.numel * width,
                                                  views, flags=flags, slot=slot)
        self.placed = True  # its sums have a place in the target
        self.shard = self.unit.shard()
        for field in ("shard_numel", "true_numel", "offset_numel", "padded_numel"):
            setattr(self.shard, field, getattr(self.shard, field) // width)
        self.device = context.client.dlpack_device  # of gathered buffers
        self.master: Optional[torch.Tensor] = None
        self.halves: "Optional[Halves]" = None  # if not None, the masters are in halves, and `master` exists only for a time
        self.master_unit: Optional[zerod.Unit] = None  # see make_master()
        self.staging: Optional[torch.Tensor] = None  # in host memory: masters to be copied to shards on a device
        self.fetched: Optional[torch.Tensor] = None  # in host memory: a copy of the reduced gradient
        self.copied: Optional[torch.Tensor] = None  # the same on the device, in a step, of a sum that is not in the target
        self.shard_device = (KDLCPU, 0) if self.placement.shards_on_host else self.device  # DLPack's
        self.slice = tensor_at(self.shard.data or 0, self.shard.true_numel, self.dtype, self.shard_device)
        self.address = 0
        self.buffer: Optional[torch.Tensor] = None  # flat, at the address
        self.version = 0
        self.scope = 0
        self.parts: list[Part] = []
        self.gradient_parts: list[Part] = []  # the same, but without references to the unit or the model
        self.wants = [plan.trainable] * len(self.members)  # which leaves take part in backwards
        self.expected = sum(self.wants)
        self._arrived = arrived  # called when a leaf has its gradient
        # Each leaf is of a separate tensor, because views of one tensor would share its version number.
        self.leaves = [Leaf(torch.empty((), dtype=self.dtype, device=context.device).expand(member.shape), self.trainable)
                       for member in self.members]
        if self.trainable:
            for index, leaf in enumerate(self.leaves):
                self._hook(index, leaf)
        self.own_references: list[int] = []  # of this package to each leaf, as count_references() finds them
        self.flat: Places[torch.Tensor] = Places(self._flat, self._forget)
        self.views: Places[list[torch.Tensor]] = Places(lambda address: self.split(self.flat(address)))
        self.entries: Places[list[torch.Tensor]] = Places(
            lambda address: self.split(tensor_at(address, self.numel, self.gradient_dtype, self.device)))
        self.targets: Places[torch.Tensor] = Places(
            lambda address: tensor_at(address, self.shard.true_numel, self.sum_dtype, self.shard_device))
        self.gradients: Places[list[torch.Tensor]] = Places(lambda address: self._cut(self.targets(address)))
        self.holders: list[Optional[ShardedTensor]] = [None] * len(self.members)  # spare ones of gradients
        self.first_flag = 0  # of its members' places in the model's unit of usage
        # For a backward: which leaves have their gradient, by autograd's task, and whether the unit was submitted.
        self.fired: dict[int, int] = {}
        self.submitted = False
        self.missing: tuple[int, ...] = ()
        self.kept: list[Optional[torch.Tensor]] = [None] * len(self.members)  # whole gradients of no_sync()

    # ---- Making ----

    def _hook(self, index: int, leaf: nn.Parameter) -> None:
        reference, arrived = weakref.ref(self), self._arrived

        def hook(_: torch.Tensor) -> None:
            unit = reference()
            if unit is not None:
                arrived(unit, index)

        leaf.register_post_accumulate_grad_hook(hook)

    def wants_gradients(self) -> bool:
        """Whether the program wants a gradient of any of its parameters."""
        with as_plain():
            return any(member.parameter.requires_grad for member in self.members)

    def follow_requires_grad(self) -> bool:
        """Applies the program's changes of requires_grad. True if they freeze or unfreeze the unit."""
        with as_plain():
            wants = [member.parameter.requires_grad for member in self.members]
        if wants == self.wants:
            return False
        for index, (leaf, want) in enumerate(zip(self.leaves, wants)):
            if want and not leaf._post_accumulate_grad_hooks:
                leaf.requires_grad_(True)
                self._hook(index, leaf)
            leaf.requires_grad_(want)
        self.wants, self.expected = wants, sum(wants)
        before, self.trainable = self.trainable, any(wants)
        if before != self.trainable and not self.summed_by_ranks:
            self.unit.set_frozen(before)
        return before != self.trainable

    def _flat(self, address: int) -> torch.Tensor:
        flat = tensor_at(address, self.numel, self.dtype, self.device)
        storages[flat.untyped_storage()._cdata] = weakref.ref(self)
        return flat

    def _forget(self, flat: torch.Tensor) -> None:
        storages.pop(flat.untyped_storage()._cdata, None)

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The whole members of a tensor with the length of the unit."""
        return [flat[m.offset:m.offset + m.numel].view(m.shape) for m in self.members]

    def _cut(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The members' parts of a tensor with the length of this rank's slice."""
        return [flat[first:last] for first, last in map(self.bounds, self.members)]

    def host_gradient(self) -> Optional[torch.Tensor]:
        """The copy of the reduced gradient for the CPU's optimizer. None: the optimizer reads the target."""
        if not self.placement.optimizer_on_host or self.placement.shards_on_host and self.source_dtype == self.sum_dtype:
            return None
        if self.fetched is None:
            self.fetched = self.context.offload.allocate(f"{self.name}:gradient", self.shard.true_numel, self.source_dtype,
                                                         copied=True)
        return self.fetched

    def target(self) -> torch.Tensor:
        """This rank's slice of the sum, in an open step."""
        return self.targets(self.unit.target().data or 0) if self.copied is None else self.copied

    def reduced(self) -> list[torch.Tensor]:
        """The parameters' parts of the reduced gradient that the optimizer reads."""
        if self.fetched is not None:
            return self._cut(self.fetched)
        if self.copied is not None:
            return self._cut(self.copied)
        return self.gradients(self.unit.target().data or 0)

    def bounds(self, member: Member) -> tuple[int, int]:
        """The member's elements in this rank's slice, counted from the slice's start. The range can be empty."""
        begin, end = self.shard.offset_numel, self.shard.offset_numel + self.shard.true_numel
        first = min(max(member.offset, begin), end)
        last = min(max(member.offset + member.numel, begin), end)
        return first - begin, last - begin

    def make_master(self) -> None:
        """Allocates the masters, if they have another dtype or another place than the shards.

        They are in torch's memory, in the daemon's host memory, or in a unit: of a durable job, or of an optimizer in host memory
        for a shard on the device. The latter unit has the future values of the shard: masters of its dtype, masters rounded in
        `staging`, or upper halves.
        """
        context, placement = self.context, self.placement
        casts, numel = self.dtype != self.source_dtype, self.shard.true_numel
        name = short_name(f"{self.name}:master", MOST_UNIT_BYTES)
        if casts and context.durable is not None:
            if placement.apart:
                self.staging = context.offload.allocate(f"{self.name}:staging", numel, self.dtype, copied=True)
            self.master_unit, self.master = self._register_beside(name, self.source_dtype)
            return
        if placement.apart:
            self.master_unit, values = self._register_beside(name, self.dtype)
            self.staging, self.master = (values, None) if casts else (None, values)
            if not context.environment.host and context.durable is None:  # then pinned, for copies to the GPU
                context.group.update_begin([self.master_unit])
                # With the padding: a rank without elements has an empty slice, whose address is NULL.
                context.group.publish_from([(self.master_unit, self.shard.data)], DTYPES[self.dtype], context.stream())
        if casts and placement.optimizer_on_host:
            self.master = context.offload.allocate(name, numel, self.source_dtype, copied=False)
        elif casts:
            self.master = torch.empty(numel, dtype=self.source_dtype, device=context.device)

    def _register_beside(self, name: str, dtype: torch.dtype) -> tuple[zerod.Unit, torch.Tensor]:
        """Registers a unit of another dtype or place, whose shards have as many elements. Returns it, and this rank's slice."""
        context, placement = self.context, self.placement
        width = dtype.itemsize // DTYPES[dtype].itemsize
        unit = context.environment.register(context.group, name, DTYPES[dtype], self.shard.padded_numel * width,
                                            placement.optimizer_on_host)
        shard = unit.shard()
        if shard.shard_numel != self.shard.shard_numel * width:
            raise zerod.errors.error(s.Status.UNSUPPORTED, f"unit {self.name!r}: a durable job has no masters of "
                                     f"{str(self.source_dtype)[6:]} for {str(self.dtype)[6:]}")
        return unit, tensor_at(shard.data or 0, self.shard.true_numel, dtype, placement.own_device(context.environment))

    @property
    def written(self) -> zerod.Unit:
        """The unit whose shard has the masters, or their upper halves."""
        return self.unit if self.master_unit is None else self.master_unit

    def places(self) -> "list[tuple[zerod.Unit, bool]]":
        """The units that an update writes, and whether the CPU writes each of them."""
        found = [(self.unit, self.placement.shards_on_host)]
        return found if self.master_unit is None else [*found, (self.master_unit, self.placement.optimizer_on_host)]

    # ---- Content ----

    @property
    def own(self) -> torch.Tensor:
        """This rank's slice that the optimizer writes."""
        if self.halves is not None:
            return self.halves.expand()
        return self.slice if self.master is None else self.master

    def own_parts(self) -> list[torch.Tensor]:
        """The parameters' parts of it."""
        return self._cut(self.own)

    def whole_of(self, parameters: "Sequence[Optional[torch.Tensor]]") -> torch.Tensor:
        """The padded unit on the device of computation. Parameters on the meta device, and None, count as zeros."""
        whole = torch.zeros(self.shard.padded_numel, dtype=self.source_dtype, device=self.context.device)
        with torch.no_grad():
            for view, parameter in zip(self.split(whole), parameters):
                if parameter is not None and not parameter.is_meta:
                    view.copy_(parameter)
        return whole

    def load(self, whole: Optional[torch.Tensor]) -> None:
        """Fills the slices of all ranks from one rank's values. Called inside an update. Every rank calls it, the others with
        None.

        At world size 1 the values are this rank's.
        """
        for part in self.parts:
            part.writes += 1
        if self.halves is not None:
            self.halves.expand()
        if self.dtype == self.source_dtype or self.dtype.itemsize > self.source_dtype.itemsize:  # it holds every master
            self._load(self.unit, None if whole is None else whole.to(self.dtype), self.slice)
            if self.master is not None:
                self.master.copy_(self.slice)
        else:
            self._load_master(whole)

    def _load(self, unit: zerod.Unit, whole: Optional[torch.Tensor], into: torch.Tensor) -> None:
        if self.context.world > 1:
            stream = self.context.stream()
            unit.load(None if whole is None else whole.data_ptr(), stream)
            if stream is not None:
                stream.synchronize()
        elif whole is not None:
            begin = self.shard.offset_numel
            into.copy_(whole[begin:begin + into.numel()])

    def _load_master(self, whole: Optional[torch.Tensor]) -> None:
        """The slices of the source dtype are loaded by a unit of that dtype, which lasts for this call."""
        assert self.master is not None
        if self.context.world == 1 or self.context.durable is not None:
            return self._load(self.written, whole, self.master)
        unit, values = self._register_beside(self.context.passing_name(self.name), self.source_dtype)
        self.context.group.update_begin([unit])
        self._load(unit, whole, self.master)
        self.master.copy_(values)
        self.context.group.publish([unit], self.placement.own_stream(self.context.environment))
        unit.unregister()

    def next_version(self) -> None:
        """Invalidates the views of the leaves that autograd has saved."""
        self.version += 1
        if self.context.in_place:  # autograd itself has saved them, and compares their version numbers
            for leaves in [self.leaves] if _TAKES_LISTS else self.leaves:
                torch.autograd.graph.increment_version(leaves)  # type: ignore[arg-type]

    def shard_parameters(self, owner: "Model") -> None:
        """Sets the module's parameter objects to this rank's slices, and makes them sharded."""
        self.blank = torch.empty(0, dtype=self.own.dtype, device=self.own.device)
        for index, member in enumerate(self.members):
            first, last = self.bounds(member)
            begin = max(first + self.shard.offset_numel - member.offset, 0) if last > first else 0
            part = Part(member.name, member.shape, begin, begin + last - first, owner, (self, index))
            made = ShardedParameter(self.own[first:last], part, self.trainable)
            made.own = made.guarded = True
            gradient, member.parameter.grad = member.parameter.grad, None
            become(member.parameter, made)
            if gradient is not None:
                member.parameter.grad = ShardedTensor(part.cut(gradient.to(made.device)).clone(), part)
            self.parts.append(part)
            self.gradient_parts.append(Part(member.name, member.shape, part.begin, part.end, weakref.proxy(owner),
                                            (weakref.proxy(self), index)))

    def whole_parameters(self, values: "Optional[list[torch.Tensor]]" = None) -> None:
        """Makes the parameter objects plain ones again: with these values, or without memory of their own."""
        for index, member in enumerate(self.members):
            blank = torch.zeros((), dtype=self.source_dtype, device=self.context.device)
            value = blank.expand(member.shape) if values is None else values[index]
            with as_plain():
                wanted = member.parameter.requires_grad
                member.parameter.grad = None
            if isinstance(member.parameter, ShardedParameter):
                become(member.parameter, nn.Parameter(value, requires_grad=wanted))

    def forget(self) -> None:
        """Afterwards the leaves have no data, and no tensor represents a buffer."""
        for leaf in self.leaves:
            leaf.grad = None
            _set_data(leaf, torch.empty((), dtype=self.dtype, device=leaf.device).expand(leaf.shape))
        for places in (self.flat, self.views, self.entries, self.gradients, self.targets):
            places.clear()
        self.holders = [None] * len(self.members)

    # ---- Use ----

    def place(self, address: int) -> None:
        """From now on the leaves' data is the buffer at the address."""
        if address != self.address:
            self.address = address
            self.buffer = self.flat(address)
            for leaf, view in zip(self.leaves, self.views(address)):
                _set_data(leaf, view)

    def has_views(self, flat: torch.Tensor) -> bool:
        """Whether the program, or autograd without our hooks, has a tensor over a buffer that is not a leaf."""
        own = 1 + len(self.members) * (2 if flat is self.buffer else 1)  # flat itself, its views, the leaves' data
        return uses_of_storage(flat.untyped_storage()._cdata) > own + USES_BY_LOOKING

    def is_aliased(self, flat: torch.Tensor) -> bool:
        """Whether the program has a tensor over a buffer: a view, or a leaf."""
        return self.has_views(flat) or flat is self.buffer and any(
            now > before for now, before in zip(self.count_references(), self.own_references))

    def count_references(self) -> list[int]:
        """How many objects of Python hold each leaf."""
        return [sys.getrefcount(leaf) - (leaf._use_count() > 1) * references_from_torch  # type: ignore[attr-defined]
                for leaf in self.leaves]

    def leave_buffer(self) -> None:
        """The leaves have no values until the unit is gathered again: NaN, if the dtype has one."""
        self.address, self.buffer = 0, None
        blank = torch.empty((), dtype=self.dtype, device=self.context.device)
        blank.fill_(float("nan") if self.dtype.is_floating_point or self.dtype.is_complex else 0)
        for leaf in self.leaves:
            _set_data(leaf, blank.expand(leaf.shape))
