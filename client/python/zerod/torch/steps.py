# SPDX-License-Identifier: Apache-2.0
"""Gradients and optimizer steps of a sharded model.

The backwards between two steps form a window of the daemon's. `submit()` hands a unit's gradient over while the
backward runs. The optimizer's step, by torch's global hooks, begins the daemon's step: `.grad` is then this rank's
slice of what all ranks have contributed, and the slices may be written. When all parameters have been stepped, or
the next forward begins, the slices are published and the gradients' memory goes.

Where a rank had no gradient for a parameter, it says so in the unit of usage: a sum over all ranks. A parameter for
which no rank had a gradient has no `.grad`, as in one process.
"""
from __future__ import annotations

import warnings
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Optional

import torch
from torch import nn

import zerod
from zerod import structs as s

from .durable import Durable
from .environment import DTYPES
from .fetcher import Fetcher
from .offload import Offload
from .overlap import Overlap
from .parameter import ShardedGradient, ShardedParameter
from .replicas import Replicas
from .tensors import tensor_at

if TYPE_CHECKING:
    from .model import Model
    from .unit import FlatUnit

_local = torch._C.DisableTorchFunctionSubclass

# Flags of usage are so small that they vanish in the norm of the gradients, and powers of two, so that sums are exact.
_FLAG = 2.0**-60
_SKIP_REST = s.BackwardEndOptions(flags=s.BackwardEndFlags.SKIP_REST)


class StepAbandoned(RuntimeError):
    """A rank gave up its forward or backward: no rank takes this step.

    `rank` says which: in the group that shards the model, or in a mesh of two dimensions as torch.distributed counts.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} has abandoned its forward or backward: this step is not taken by any rank")
        self.rank = rank


_TORN_WINDOW = ("has abandoned its forward or backward, and the optimizer has run in the backward: some units are those of "
                "this step, the others those of the step before")


class StepTorn(RuntimeError):
    """The optimizer of rank `rank` raised or was not called: its slices of this step are written in part or not at all.

    All other slices are. `rank` counts as in StepAbandoned.
    """

    def __init__(self, rank: int, text: str = "has not finished its optimizer's step: its slices are not those of this "
                 "step, or in part; the other ranks' are") -> None:
        super().__init__(f"rank {rank} {text}")
        self.rank = rank


class Steps:
    """The part of Model that is about gradients."""

    bucket_bytes = 32 << 20  # of a slot, of two

    group: zerod.Group
    client: zerod.Client
    units: "list[FlatUnit]"
    trainable: "list[FlatUnit]"
    rank: int
    world: int
    replicas: Optional[Replicas]
    durable: Optional[Durable]
    offload: Offload
    fetcher: Optional[Fetcher]  # with offload
    overlap: Optional[Overlap]  # the same, where the optimizer runs in the backward

    def _init_steps(self) -> None:
        self.reducing = False  # between backward_begin and backward_end
        self.window = 0  # backwards that the open window has
        self.local = False  # leaves hold gradients of no_sync()
        self.end_ticket = 0
        self.step_open = False
        self.updating = False
        self.raised = False  # an optimizer has raised inside its step
        self.skips = False  # all ranks have seen the overflow
        self.stepped: set[int] = set()
        self.deferred_failure: Optional[Exception] = None
        self.usage: Optional[zerod.Unit] = None
        self.load_depth = 0  # of load_state_dict()s that run: slices may be written
        self.unused: list[set[int]] = []
        self._info: Optional[s.StepInfo] = None
        self.fetcher = self.overlap = None
        self._buckets: dict[tuple[torch.dtype, bool], zerod.Bucket] = {}

    def _init_gradients(self: "Model") -> None:
        count = 0
        for unit in self.units:
            unit.first_flag = count
            count += len(unit.members)
        self.flags = count
        self.fetcher = None if self.offload.value is None else Fetcher(self)
        self._entry = s.Entry()
        self._reserve = s.ReserveOptions(flags=s.ReserveFlags.ZERO_HOLES)
        self._submit = s.ReduceOptions(op=self.settings.op, flags=s.ReduceFlags.DETACHED)
        once = self.settings.stage == 1
        self._backward = s.BackwardOptions(stage=1 if once else 3, boundary=int(once))
        if self.world > 1 and count:
            self.usage = self.group.register("(usage)", zerod.DType.FLOAT32, count, flags=s.UnitFlags.ALL_REDUCE)
            self._usage_bucket = self.group.bucket(zerod.DType.FLOAT32, slot_bytes=4 * count, nslots=1)

    # ---- Reduce ----

    def begin_reduce(self: "Model") -> None:
        if self.reducing:
            return
        if self.step_open:
            raise RuntimeError("a backward began while a step is open: its gradients were read, but no optimizer "
                               "has taken them. Call step(), or zero_grad() and a forward")
        self.complete_end()
        if self.window and self.overlap is not None:
            raise RuntimeError("optimizer_in_backward() has run the optimizer in the backward before: call step() behind "
                               "each backward, or accumulate inside `with zerod.torch.no_sync(model):`")
        if self.fetcher is not None:
            self.fetcher.drain()
            self.fetcher.clear()
            self.fetcher.ahead = self.fetcher.ahead and not self.window
        if self.window and not self._wanted():
            self._abandon_window()
            self._tell_rows(self.rank)
        if self.window and self.settings.stage == 1:
            raise RuntimeError("stage 1 sums gradients once a step, in its last backward: run the others inside "
                               "`with zerod.torch.no_sync(model):`")
        self.environment.with_room(self.group.backward_begin, self._backward)
        self.reducing = True

    def _wanted(self: "Model") -> bool:
        """Whether a program still holds gradients of the open window: zero_grad() takes all of them away."""
        with _local():
            return any(member.parameter.grad is not None for unit in self.trainable for member in unit.members)

    def complete_end(self: "Model") -> None:
        ticket, self.end_ticket = self.end_ticket, 0
        if ticket:
            self.client.complete(ticket)

    def _bucket(self: "Model", dtype: torch.dtype, beside: bool = False) -> zerod.Bucket:
        """The bucket for gradients of a dtype; or one whose slots are so small that each has a buffer of its own."""
        bucket = self._buckets.get((dtype, beside))
        if bucket is None:
            whole = sum(unit.shard.padded_numel for unit in self.units) * dtype.itemsize
            bucket = self.group.bucket(DTYPES[dtype], slot_bytes=256 if beside else min(self.bucket_bytes, whole))
            self._buckets[dtype, beside] = bucket
        return bucket

    def submit(self: "Model", unit: "FlatUnit") -> None:
        """Hands over the gradients that the unit's leaves have; the leaves then have none."""
        self.begin_reduce()
        bucket = self._bucket(self.gradient_dtype(unit))
        stream = self.environment.stream()
        entry = self._entry
        self._reserve.stream = None if stream is None else stream.handle
        try:
            address = self.environment.with_room(bucket.reserve, unit.unit, entry, self._reserve)
        except zerod.InvalidState as error:
            if error.status != s.Status.CAPACITY:
                raise
            # Ranks use different units, and each waits for the other to say which it skips: room outside of the slots.
            bucket = self._bucket(self.gradient_dtype(unit), beside=True)
            address = bucket.reserve(unit.unit, entry, self._reserve)
        views = unit.entries(address)
        into, given, absent = [], [], []
        for index, leaf in enumerate(unit.leaves):
            gradient = leaf.grad
            if gradient is None or not unit.wants[index]:
                absent.append(index)
            else:
                into.append(views[index])
                given.append(gradient)
        with torch.no_grad():
            torch._foreach_copy_(into, given)
            if absent and not unit.has_views:
                torch._foreach_zero_([views[index] for index in absent])
        options = self._submit
        if absent and unit.has_views:
            options = s.ReduceOptions(op=self.settings.op, flags=s.ReduceFlags.DETACHED, **zerod.absent(absent))
        bucket.submit(entry.id, stream, options)
        for leaf in unit.leaves:
            leaf.grad = None
        unit.submitted = True
        if absent:
            unit.missing = tuple(absent)
        if unit.placement.optimizer_on_host and not (absent and self.overlap is not None):
            assert self.fetcher is not None
            self.fetcher.ready(unit)

    def end_reduce(self: "Model") -> None:
        """Ends the backward: hands over what is left, and says which parameters had no gradient."""
        if not self.sync:
            self.local = self.local or any(unit.arrived for unit in self.trainable)
            return
        rest = [unit for unit in self.trainable
                if not unit.submitted and any(leaf.grad is not None for leaf in unit.leaves)]
        if not (self.reducing or rest):
            return
        self.begin_reduce()
        for unit in rest:
            self.submit(unit)
        self._submit_usage()
        with nullcontext() if self.fetcher is None else self.fetcher.lock:
            self.end_ticket = self.group.backward_end_begin(_SKIP_REST)
        self.reducing = False
        self.local = False
        self.window += 1
        if self.fetcher is not None:
            self.fetcher.start()
        with _local():
            for unit in self.trainable:
                if self.overlap is not None and unit in self.overlap.taken:
                    continue
                for member, holder, wanted in zip(unit.members, unit.holders, unit.wants):
                    if wanted:
                        member.parameter.grad = holder

    def _submit_usage(self: "Model") -> None:
        unused = []
        for unit in self.trainable:
            missing = unit.missing if unit.submitted else range(len(unit.members))
            unused += [unit.first_flag + index for index in missing if unit.wants[index]]
            unit.missing = ()
        if self.window == 0:
            self.unused = [set(unused)]
        else:
            self.unused.append(set(unused))
        if not unused or self.usage is None:
            return
        stream = self.environment.stream()
        entry = self._entry
        self._reserve.stream = None if stream is None else stream.handle
        address = self._usage_bucket.reserve(self.usage, entry, self._reserve)
        flags = tensor_at(address, self.usage.numel, torch.float32, self.client.dlpack_device)
        flags.zero_()
        flags[torch.tensor(unused, device=flags.device)] = _FLAG
        self._usage_bucket.submit(entry.id, stream, s.ReduceOptions(op=s.ReduceOp.SUM, flags=s.ReduceFlags.DETACHED))

    def abandon(self: "Model") -> None:
        """Gives up the window for all ranks."""
        self.counts.abandoned += 1
        if self.fetcher is not None:
            self.fetcher.stop()
        try:
            self.complete_end()
            if not self.reducing and not self.window:
                self.group.backward_begin(self._backward)
            self._abandon_window()
        finally:
            self._tell_rows(self.rank)
            self.reducing = self.local = False
            self.window = 0
            self._clear_gradients()

    def _abandon_window(self: "Model") -> None:
        self.window = 0
        self.group.backward_abandon(self.environment.stream())
        with suppress(zerod.Mismatch):  # a detached gradient's, which is abandoned with the window
            self.client.wait_many([])

    def _tell_rows(self: "Model", rank: int) -> None:
        """The other rows take no step of this window, either, since a rank of this one has given it up."""
        if self.replicas is not None:
            self.replicas.send([1 + self.replicas.members[rank], 0, 0] + [0] * self.flags)

    def _clear_gradients(self: "Model") -> None:
        with _local():
            for unit in self.trainable:
                for leaf, member in zip(unit.leaves, unit.members):
                    leaf.grad = None
                    member.parameter.grad = None

    def drop_gradients(self: "Model") -> None:
        """zero_grad() on gradients that no optimizer has taken."""
        for unit in self.trainable:
            for member in unit.members:
                member.parameter.grad = None

    # ---- Step ----

    def begin_step(self: "Model") -> None:
        """Makes `.grad` this rank's slices. Every rank calls it. StepAbandoned where a rank has given up."""
        if self.step_open:
            return
        if self.local:
            self.sync, before = True, self.sync
            self.end_reduce()
            self.sync = before
        if not self.window or self.overlap is None and not self._wanted():
            return
        self.end_scope()
        if self.overlap is not None:
            self.release_kept()
        if self.fetcher is not None:
            self.fetcher.drain()
        backwards = self.window
        none = self._close_window()
        if self.replicas is not None:
            none = self._sum_rows(backwards, none)
        with _local():
            if self.offload.optimizer:
                self._fetch_gradients()
            for unit in self._unstepped():
                self._show_target(unit, none)
        self.step_open = True
        self.counts.steps += 1

    def _close_window(self: "Model") -> set[int]:
        """Begins the daemon's step; returns the flags of parameters for which no rank of the group had a gradient."""
        try:
            ended, self.end_ticket = self.end_ticket, 0  # the step's ticket waits for the end of the backward
            try:
                self.client.complete(self.group.step_begin_ticket(), self.environment.stream())
            except zerod.InvalidState:
                if ended:
                    self.client.complete(ended)  # if the end of the backward has failed, its error says why
                raise
            backwards, self.window = self.window, 0
            if self.fetcher is not None:
                self.fetcher.ahead = backwards == 1
            self._info = None
            self._check_abandoned()
            return self._unused_everywhere(backwards)
        except StepAbandoned as abandoned:
            self._tell_rows(abandoned.rank)
            if self.overlap is not None and self.overlap.mend():
                raise StepTorn(abandoned.rank, _TORN_WINDOW) from None
            if self.replicas is not None:
                raise StepAbandoned(self.replicas.members[abandoned.rank]) from None
            raise
        except BaseException:
            if self.overlap is not None:
                self.overlap.stop()
            if self.replicas is not None:
                with suppress(zerod.ZerodError):
                    self._abandon_window()
                self._tell_rows(self.rank)
            raise

    def _check_abandoned(self: "Model") -> None:
        try:
            self.trainable[0].unit.target()
        except zerod.InvalidState:
            info = self.step_info()
            if not info.abandoned:
                raise
            self._leave_step()
            raise StepAbandoned(info.abandoned_rank) from None

    def settle_overlap(self: "Model") -> None:
        """Behind this, no thread writes slices. This rank has had its own exception: it is warned alone."""
        assert self.overlap is not None
        if not self.overlap.mends:
            self.overlap.drain()
        elif self.overlap.mend():
            warnings.warn(f"zerod.torch: rank {self.rank} {_TORN_WINDOW}", RuntimeWarning, stacklevel=2)

    def _leave_step(self: "Model") -> None:
        self._clear_gradients()
        self.group.step_end(self.environment.stream())

    def _sum_rows(self: "Model", backwards: int, none: set[int]) -> set[int]:
        """Sums the targets over the rows; returns the flags of parameters for which no row had a gradient."""
        assert self.replicas is not None
        used = [int(flag not in none) for flag in range(self.flags)]
        given_up, most, least, *used = self.replicas.exchange([0, backwards, -backwards] + used)
        if given_up:
            self._leave_step()
            raise StepAbandoned(given_up - 1)
        if most != -least:
            self._leave_step()
            raise zerod.errors.error(zerod.Status.MISMATCH, f"rows of the mesh have run {-least} and {most} backwards "
                                     f"since the last step, this one {backwards}")
        targets = [(unit.unit.target().data, unit.shard.true_numel) for unit in self.trainable]
        self.replicas.sum([tensor_at(data, numel, torch.float32, self.client.dlpack_device) for data, numel in targets
                           if numel], self.settings.op == s.ReduceOp.MEAN)
        return {flag for flag, found in enumerate(used) if not found}

    def _fetch_gradients(self: "Model") -> None:
        """Copies what is left of the targets to host memory, for an optimizer on the CPU, and waits for all copies."""
        assert self.fetcher is not None
        stream = self.environment.stream()
        if self.offload.shards and stream is not None:
            stream.synchronize()  # the targets are in host memory
        for unit in self._unstepped():
            gradient = unit.host_gradient()
            if gradient is not None and unit not in self.fetcher.fetched:
                self.offload.fetch([(gradient, unit.targets(unit.unit.target().data or 0))])
        self.offload.wait()

    def _unstepped(self: "Model") -> "list[FlatUnit]":
        return self.trainable if self.overlap is None else self.overlap.left()

    def _show_target(self: "Model", unit: "FlatUnit", none: set[int]) -> None:
        gradients = unit.reduced()
        for index, (gradient, holder, member) in enumerate(zip(gradients, unit.holders, unit.members)):
            if unit.first_flag + index in none or not unit.wants[index]:
                member.parameter.grad = None
                holder.data = holder.new_zeros(holder.shape)  # a program may have taken it before the step began
                continue
            holder.data = gradient if gradient.dtype == holder.dtype else gradient.to(holder.dtype)
            member.parameter.grad = holder

    def _unused_everywhere(self: "Model", backwards: int) -> set[int]:
        """The flags of parameters for which no rank had a gradient in any backward of the window."""
        here = set.intersection(*self.unused)
        if not here or self.usage is None:
            return here
        stream = self.environment.stream()
        if stream is not None:
            stream.synchronize()
        target = self.usage.target()
        sums = tensor_at(target.data, self.usage.numel, torch.float32, self.client.dlpack_device)
        everywhere = float(backwards * self.world) * _FLAG
        return {flag for flag in here if float(sums[flag]) == everywhere}

    def step_info(self: "Model") -> s.StepInfo:
        """The last step's result, equal on all ranks; blocks until it is known."""
        if self._info is None:
            self._info = self.group.step_get()
        return self._info

    def overflow(self: "Model", found: torch.Tensor) -> bool:
        """Whether a gradient of any rank is infinite or NaN; `found` says it of this rank's slices."""
        if self.replicas is None:
            self.skips = bool(self.step_info().overflow)
        else:  # slices are the same in all rows
            self.skips = self.group.agree(zerod.AgreeOp.MAX, [float(found)])[0] > 0
        return self.skips

    def before_step(self: "Model", parameters: list[nn.Parameter]) -> None:
        """The optimizer is about to write these sharded parameters."""
        self.begin_step()
        if self.step_open:
            if self.overlap is not None:
                self.overlap.raise_failure()
            self.begin_update()
        with _local():
            for parameter in parameters:
                parameter.__class__ = nn.Parameter
                gradient = parameter.grad
                if gradient is not None:
                    gradient.__class__ = torch.Tensor

    def begin_update(self: "Model") -> None:
        """Has the slices of all units that may be stepped, but those that are published already."""
        if not self.updating:
            self.release_kept()
            units = [unit for unit in self.trainable if self.overlap is None or unit not in self.overlap.begun]
            for stream, some in self._by_stream(units):
                self.client.complete(self.group.update_begin_ticket([unit.unit for unit in some]), stream)
            if self.durable is not None:
                self.durable.begin_update()
            self.updating = True

    def after_step(self: "Model", parameters: list[nn.Parameter]) -> None:
        self.restore(parameters)
        self.stepped.update(map(id, parameters))
        if all(id(member.parameter) in self.stepped for unit in self.trainable for member in unit.members):
            self.finish_step()

    def restore(self: "Model", parameters: list[nn.Parameter]) -> None:
        with _local():
            for parameter in parameters:
                gradient = parameter.grad
                if gradient is not None:
                    gradient.__class__ = ShardedGradient
                parameter.__class__ = ShardedParameter

    def finish_step(self: "Model") -> None:
        """Publishes what was updated; the gradients' memory goes. StepTorn where another rank's optimizer failed."""
        if not self.step_open:
            return
        for unit in self.trainable:
            for member in unit.members:
                if member.parameter.__class__ is nn.Parameter:
                    self.restore([member.parameter])
                    self.raised = True
        fails = self.raised or not self.updating
        torn = self._agree_on_update(fails)
        commits = self.durable is not None and torn is None and (self.updating or self.skips)
        if commits and self.updating:
            self.durable.store()
        self.step_open = self.raised = self.skips = False
        self.stepped.clear()
        stream = self.environment.stream()
        self.end_update()
        self.group.step_end(stream)
        self._clear_gradients()
        if commits:
            self.durable.commit()
        if self.fetcher is not None:
            self.fetcher.clear()
        if torn is not None and not fails:
            raise StepTorn(torn)

    def end_update(self: "Model") -> None:
        if self.updating:
            self.updating = False
            self.publish([unit for unit in self.trainable if self.overlap is None or unit not in self.overlap.published],
                         ticket=self.durable is None)
            if self.durable is not None:
                self.durable.publish()

    def _agree_on_update(self: "Model", fails: bool) -> Optional[int]:
        """Where any rank has begun to update its slices, all do; returns a rank that has failed to, if there is one.

        Between rows of a mesh, the slices of ranks that have failed are taken from a row where they are whole.
        """
        if self.skips and not self.updating:
            return None
        number = self.rank if self.replicas is None else self.replicas.members[self.rank]
        begins = self.updating or self.overlap is not None and bool(self.overlap.stepped)
        values = [int(begins), number if fails else -1]
        if self.durable is not None:
            values += self.durable.wanted_bytes()
        if self.world > 1:
            values = [int(value) for value in self.group.agree(zerod.AgreeOp.MAX, values)]
        if self.replicas is not None:
            values = self.replicas.exchange(values)
        if self.durable is not None:
            self.durable.agreed_bytes = values[2:]
        begun, failed = values[:2]
        if not begun or failed < 0:
            return None
        self.begin_update()
        if self.replicas is not None:
            self.replicas.mend([unit.own for unit in self.trainable], not fails)
        return failed

    def publish(self: "Model", units: "list[FlatUnit]", ticket: bool = False, early: bool = False,
                on_device: bool = False) -> None:
        """Ends the units' update: what the optimizer's slices hold becomes the next version.

        early: in the backward, where blocks that are still held keep the former version.
        on_device: the GPU reads the masters in host memory and rounds them, behind torch's current stream.
        """
        options = {"flags": s.PublishFlags.FORCE} if early else {}
        plain: "list[FlatUnit]" = []
        by_dtype: "dict[torch.dtype, list[FlatUnit]]" = {}
        for unit in units:
            unit.next_version()
            if unit.master is None or unit.placement.optimizer_on_host and not on_device:
                plain.append(unit)
            else:
                by_dtype.setdefault(unit.source_dtype, []).append(unit)
        if self.offload.optimizer:
            self.offload.write_shards((unit for unit in plain if unit.master is not None), note=not early)
        for stream, some in self._by_stream(plain):
            self.group.publish([unit.unit for unit in some], stream, ticket=ticket, **options)
        for dtype, masters in by_dtype.items():
            self.group.publish_from([(unit.unit, unit.master.data_ptr()) for unit in masters], DTYPES[dtype],
                                    self.environment.stream(), ticket=ticket, **options)

    def _by_stream(self: "Model", units: "list[FlatUnit]") -> "list[tuple[Optional[zerod.Stream], list[FlatUnit]]]":
        """The units whose shards torch's stream writes, with that stream, and those whose shards the CPU writes."""
        found = [(self.environment.stream(), [unit for unit in units if not unit.placement.shards_on_host]),
                 (None, [unit for unit in units if unit.placement.shards_on_host])]
        return [(stream, some) for stream, some in found if some]
