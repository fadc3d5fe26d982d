# SPDX-License-Identifier: Apache-2.0
"""Gradients of a sharded model: from the leaves to the daemon, and the sums that `.grad` shows.

The backwards between two steps form a window of the daemon. `submit()` submits a unit's gradient while the backward runs. A
window is closed when a sum is first used, by a step or by the program: that is Steps.begin().

`.grad` is a separate ShardedTensor for each parameter. It waits for its sum until it is used. From then on the values in it
count, as in one process. If the program sets it to None or to zeros, the gradient forgets its sum.

If the program has taken away or written some of the gradients when the next backward begins, the window is closed. The gradients
that are still shown copy their values to memory of torch, and the next sum is added to them. If the program has taken away all
gradients, the window is abandoned. If it has taken away none, the window continues. A step that has used a gradient frees its
memory. The tensor remains, without values: a use raises, even after another backward, until zeros or None replace them.

If a rank had no gradient for a parameter, it reports this in the unit of usage: a sum across all ranks. A parameter for which no
rank had a gradient shows None, as in one process.
"""
from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from typing import Callable, Optional, Sequence

import torch

import zerod
from zerod import structs as s

from .context import Context
from .environment import DTYPES
from .fetcher import Fetcher
from .sharded import Part, Scaled, ShardedTensor, as_plain
from .tensors import tensor_at
from .unit import USES_BY_LOOKING, FlatUnit, references_from_torch, storages, uses_of_storage
from .updates import Updates
from .whole import sum_of_ranks

# Flags of usage are so small that they vanish in the norm of the gradients. They are powers of two, so that sums are exact.
_FLAG = 2.0**-60
_SKIP_REST = s.BackwardEndOptions(flags=s.BackwardEndFlags.SKIP_REST)
_BUCKET_BYTES = 32 << 20  # of a slot, at least; there are two slots
_SHOWN = 2 + references_from_torch  # Python's references to a tensor that the asking code holds, and that C++ also has
_SPARE = 3  # Python's references to a holder without the program's: the unit's, and two of the asking code


class _Gone:
    """The source of gradients whose step has ended."""

    def __init__(self, text: str) -> None:
        self._text = text

    def fill(self, tensor: ShardedTensor) -> None:
        raise RuntimeError(f"the gradient of {tensor.part.name} went with the optimizer's step{self._text}")


_spent = _Gone(": read or clone it before")
_unzeroed = _Gone(", and a backward has followed, which would add to it: call zero_grad() after each step, or set it to None or to zeros")


class _Used(_Gone):
    """The source of gradients that an optimizer in the backward uses."""


used = _Used(" in the backward: clipping, GradScaler and programs that read gradients need an optimizer without "
             "optimizer_in_backward()")


class _Waiting:
    """The source of gradients whose sum is to come. Python's garbage collector does not see torch's .grad. A gradient must
    therefore not refer to an object that keeps the model alive."""

    def __init__(self, gradients: "Gradients") -> None:
        self._gradients = weakref.ref(gradients)

    def fill(self, tensor: ShardedTensor) -> None:
        found = self._gradients()
        if found is None:
            raise RuntimeError(f"the model of this gradient ({tensor.part.name}) has gone")
        found.fill(tensor)


def multiply(gradients: "Sequence[torch.Tensor]", factor: float, unread: set[int]) -> None:
    """Multiplies in place. Those with an id in `unread` are left to the optimizer: the program has no view of their memory."""
    for device in {gradient.device for gradient in gradients}:
        scale = torch.tensor(factor, dtype=torch.float32, device=device)
        rest = []
        for gradient in gradients:
            if gradient.device == device and id(gradient) in unread and gradient.dtype == torch.float32:
                gradient.wait_for(Scaled(gradient.read_local(), scale))  # type: ignore[attr-defined]
            elif gradient.device == device:
                rest.append(gradient)
        if rest:
            torch._foreach_mul_(rest, factor)


def scaled_values(gradient: ShardedTensor) -> "tuple[torch.Tensor, Optional[torch.Tensor]]":
    """This rank's values, and the scale by which they must still be multiplied."""
    source = gradient.source
    return (source.values, source.scale) if isinstance(source, Scaled) else (gradient.read_local(), None)


class Gradients:
    """The gradients of one model. `window`: the backwards of the open window; `sync`: whether backwards are summed now."""

    def __init__(self, context: Context, updates: Updates) -> None:
        self.context = context
        self.updates = updates
        self.begin_step: Callable[..., None] = lambda: None  # Steps.begin() and Steps.finish()
        self.finish_step: Callable[[], None] = lambda: None
        self.fetcher = Fetcher(context)
        self._own = context.world == 1 and context.replicas is None and context.durable is None and context.offload.value is None
        self._source = _Waiting(self)
        self.sync = True
        self.reducing = False  # between backward_begin and backward_end
        self.window = 0
        self.announce: Optional[Callable[[bool], None]] = None  # in join(): before each window
        self.local = False  # leaves hold gradients of no_sync()
        self.slot_numel = 0  # of the largest unit that fits in a slot
        self.end_ticket = 0
        self._unused: set[int] = set()  # flags of parameters that had no gradient here in any backward of the window
        self.flags = 0
        self._waiting: list[tuple[FlatUnit, int, ShardedTensor]] = []  # gradients whose sum is to come
        self._awaited: dict[str, list[tuple[FlatUnit, int, ShardedTensor]]] = {}  # the same, in a step by units
        self.assigned: list[Part] = []  # whose `.grad` the program has assigned since the last backward
        self._settled: list[tuple[FlatUnit, int, ShardedTensor]] = []  # in the open step
        self._usage: Optional[zerod.Unit] = None
        self._buckets: dict[tuple[torch.dtype, bool], zerod.Bucket] = {}
        self._entry = s.Entry()
        self._reserve = s.ReserveOptions(flags=s.ReserveFlags.ZERO_HOLES)
        self._submit = s.ReduceOptions(op=context.settings.op, flags=s.ReduceFlags.DETACHED)
        self._submit_terms = s.ReduceOptions(op=context.settings.op, flags=s.ReduceFlags.DETACHED | s.ReduceFlags.TERMS)
        once = context.settings.stage == 1
        self._backward = s.BackwardOptions(stage=1 if once else 3, boundary=int(once))

    @property
    def alone(self) -> bool:
        """Whether gradients are this rank's own sums: they remain where autograd has written them."""
        return self._own and not self.fetcher.runs_optimizer

    @property
    def keeps(self) -> bool:
        """Whether backwards add up gradients here, without the daemon."""
        return not self.sync or self.alone

    def start(self, flags: int) -> None:
        """Called before the units are registered, with the number of their members. The unit of usage is first in the target,
        because the place of others can change."""
        self.flags = flags
        if self.context.world > 1 and flags:
            group = self.context.group
            self._usage = group.register("(usage)", zerod.DType.FLOAT32, flags, flags=s.UnitFlags.ALL_REDUCE)
            self._usage_bucket = group.bucket(zerod.DType.FLOAT32, slot_bytes=4 * flags, nslots=1)

    def number(self) -> None:
        """Called when all units are registered: gives their members flags."""
        first = 0
        for unit in self.updates.units:
            unit.first_flag = first
            first += len(unit.members)

    # ---- A backward ----

    def enter(self) -> None:
        """A backward begins. What the program shows determines what remains of the earlier backwards."""
        self.finish_step()  # the program has read gradients, and no optimizer has used all of them
        if self.assigned:
            self._check_assigned()
        if self.window and self.fetcher.runs_optimizer:
            raise RuntimeError("optimizer_in_backward() has run the optimizer in the backward before: call step() behind "
                               "each backward, or accumulate inside `with zerod.torch.no_sync(model):`")
        if not self._waiting:
            return
        with as_plain():
            shown = [unit.members[index].parameter.grad is holder and holder.source in (self._source, _unzeroed)
                     for unit, index, holder in self._waiting]
        if all(shown):
            return
        if self.alone:
            if any(shown) or self._are_held():
                self.begin_step()
                self.finish_step()
            else:  # the program has dropped all
                for unit, index, _ in self._waiting:
                    unit.kept[index] = None
                self._waiting.clear()
                self.local = False
            return
        for each, is_shown in zip(self._waiting, shown):  # a name for a holder would count as a reference of the program
            if not is_shown:
                each[0].kept[each[1]] = None
        self.complete_end()
        if not any(shown) and not self._are_held():
            if self.window:
                self.abandon_window()
            self._waiting.clear()
        elif self.window:
            local, self.local = self.local, False
            self.begin_step()
            self.finish_step()
            self.local = local
            if local:
                self._show(lambda unit, index: unit.kept[index] is not None)
        else:
            self._waiting = [each for each, is_shown in zip(self._waiting, shown) if is_shown]

    def _check_assigned(self) -> None:
        """RuntimeError if PyTorch would add to a tensor that the program can read other than by `.grad`."""
        with as_plain():
            for part in self.assigned:
                unit, index = part.place
                shown = unit.members[index].parameter.grad if unit.wants[index] else None
                if shown is None or isinstance(shown, ShardedTensor):
                    continue
                if sys.getrefcount(shown) > _SHOWN or uses_of_storage(shown.untyped_storage()._cdata) > 1 + USES_BY_LOOKING:
                    raise RuntimeError(f"{part.name}.grad was assigned a tensor that the program has still, or a view of one. In PyTorch "
                                       "this backward would add its gradient to that tensor; the daemon sums gradients elsewhere. "
                                       "Assign a clone(), or call zero_grad() before the backward")
        self.assigned.clear()

    def _are_held(self) -> bool:
        """Whether the program has gradients of this window that no parameter shows."""
        if not (self.window or self.alone):
            return False
        count = sys.getrefcount
        return any(count(holder) > _SPARE + 1 or holder.aliases and any(each() is not None for each in holder.aliases[1:])
                   for _, _, holder in self._waiting)

    def begin(self) -> None:
        """Called for the first gradient of a backward."""
        if self.reducing:
            return
        self.complete_end()
        self.fetcher.drain()
        self.fetcher.clear()
        self.fetcher.ahead = self.fetcher.ahead and not self.window
        if self.window and self.context.settings.stage == 1:
            raise RuntimeError("stage 1 sums gradients once a step, in its last backward: run the others inside "
                               "`with zerod.torch.no_sync(model):`")
        self._open(raises=True)
        self.reducing = True

    def _open(self, raises: bool) -> None:
        """Begins a backward in the daemon. raises: if join() ends before it."""
        if self.announce is not None and not self.window:
            self.announce(raises)
        self.context.environment.with_room(self.context.group.backward_begin, self._backward)

    def complete_end(self) -> None:
        ticket, self.end_ticket = self.end_ticket, 0
        if ticket:
            self.context.client.complete(ticket)

    def _bucket(self, dtype: torch.dtype, beside: bool = False) -> zerod.Bucket:
        """The bucket for gradients of a dtype. beside: one with slots so small that each gradient has a separate buffer."""
        bucket = self._buckets.get((dtype, beside))
        if bucket is None:
            whole = sum(unit.shard.padded_numel for unit in self.updates.units) * dtype.itemsize
            slot = min(max(_BUCKET_BYTES, self.slot_numel * dtype.itemsize), whole)
            bucket = self.context.group.bucket(DTYPES[dtype], slot_bytes=256 if beside else slot)
            self._buckets[dtype, beside] = bucket
        return bucket

    def submit(self, unit: FlatUnit) -> None:
        """Submits the gradients of the unit's leaves. Afterwards the leaves have none."""
        self.begin()
        if unit.summed_by_ranks:
            return self._keep_all(unit)
        bucket = self._bucket(unit.gradient_dtype)
        stream = self.context.stream()
        entry = self._entry
        self._reserve.stream = None if stream is None else stream.handle
        try:
            address = self.context.environment.with_room(bucket.reserve, unit.unit, entry, self._reserve)
        except zerod.InvalidState as error:
            if error.status != s.Status.CAPACITY:
                raise
            # Ranks use different units, and each waits until the other has reported which it skips: memory outside of the slots.
            bucket = self._bucket(unit.gradient_dtype, beside=True)
            address = bucket.reserve(unit.unit, entry, self._reserve)
        views = unit.entries(address)
        into, given, absent = [], [], []
        for index, leaf in enumerate(unit.leaves):
            gradient = leaf.grad
            if self.local:
                self.keep(unit, index)
                gradient, unit.kept[index] = unit.kept[index], None
            if gradient is None or not unit.wants[index]:
                absent.append(index)
            else:
                into.append(views[index])
                given.append(gradient)
        with torch.no_grad():
            if into:  # a leaf that was frozen after the forward has no gradient
                torch._foreach_copy_(into, given)
            if absent and not unit.named_views:
                torch._foreach_zero_([views[index] for index in absent])
        options = self._submit
        takes = self.fetcher.takes(unit, bool(absent))
        if absent and unit.named_views:
            options = s.ReduceOptions(op=self.context.settings.op, flags=s.ReduceFlags.DETACHED, **zerod.absent(absent))
        elif takes and self.fetcher.lends(unit):
            options = self._submit_terms
        bucket.submit(entry.id, stream, options)
        for leaf in unit.leaves:
            leaf.grad = None
        unit.submitted = True
        if absent:
            unit.missing = tuple(absent)
        if takes:
            if self.fetcher.runs_optimizer:
                self._show_used(unit)
            self.fetcher.ready(unit)

    def _keep_all(self, unit: FlatUnit) -> None:
        """Called instead of submitting the unit."""
        for index in range(len(unit.leaves)):
            self.keep(unit, index)
        unit.submitted = True
        unit.missing = tuple(index for index, kept in enumerate(unit.kept) if kept is None)

    def sum_kept(self) -> None:
        """The step has begun: computes the sums of units that the ranks sum. Every rank calls it."""
        for unit in self.updates.trainable:
            if unit.summed_by_ranks:
                unit.copied = sum_of_ranks(unit, unit.kept)
                unit.kept = [None] * len(unit.members)

    def keep(self, unit: FlatUnit, index: int) -> None:
        """A leaf has a gradient that is not submitted. It is added up here, in the wider of its own dtype and the masters'."""
        leaf, kept = unit.leaves[index], unit.kept[index]
        gradient, leaf.grad = leaf.grad, None
        if gradient is None:
            return
        is_weight = gradient.untyped_storage()._cdata in storages  # a function has returned it
        if kept is None and self.alone and not is_weight:
            unit.kept[index] = gradient
            return
        with torch.no_grad():
            if is_weight:
                gradient = gradient.clone()
            if not self.alone:
                wide = torch.promote_types(unit.dtype, unit.source_dtype)
                dtype = wide if wide.is_complex else self.context.settings.reduce_dtype or wide
                unit.kept[index] = gradient.to(dtype) if kept is None else kept.add_(gradient)
            elif kept is None:
                unit.kept[index] = gradient
            else:  # sums are float32, as between ranks
                unit.kept[index] = kept.to(torch.promote_types(kept.dtype, torch.float32)).add_(gradient)

    def end(self, skips: bool = False) -> None:
        """Ends the backward: submits the remaining units, and reports parameters without a gradient. skips: even if all are."""
        if not self.keeps:
            self.finish(skips=skips)
        elif skips or any(unit.fired for unit in self.updates.trainable):
            self.local = True
            alone = self.alone
            self._show(lambda unit, index: unit.wants[index] and not (alone and unit.kept[index] is None))

    def finish(self, shows: bool = True, skips: bool = False) -> None:
        """The same, also for backwards in no_sync() that no other backward has followed. Those already show their gradients."""
        trainable = self.updates.trainable
        rest = [unit for unit in trainable if not unit.submitted and
                (any(leaf.grad is not None for leaf in unit.leaves) or self.local and any(each is not None for each in unit.kept))]
        if not (self.reducing or rest or skips or self.local):
            return
        self.begin()
        for unit in rest:
            self.submit(unit)
            self.fetcher.start()  # the next unit can need the room of terms that the thread has to return
        self._submit_usage()
        with self.fetcher.lock:
            self.end_ticket = self.context.group.backward_end_begin(_SKIP_REST)
        self.reducing = self.local = False
        self.window += 1
        self.fetcher.start()
        self.fetcher.start_held()
        if shows:
            self._show(lambda unit, index: unit.wants[index])

    def _submit_usage(self) -> None:
        unused = []
        for unit in self.updates.trainable:
            missing = unit.missing if unit.submitted else range(len(unit.members))
            unused += [unit.first_flag + index for index in missing if unit.wants[index]]
            unit.missing = ()
        self._unused = self._unused.intersection(unused) if self.window else set(unused)
        if not unused or self._usage is None:
            return
        stream = self.context.stream()
        entry = self._entry
        self._reserve.stream = None if stream is None else stream.handle
        address = self._usage_bucket.reserve(self._usage, entry, self._reserve)
        flags = tensor_at(address, self._usage.numel, torch.float32, self.context.client.dlpack_device)
        flags.zero_()
        flags[torch.tensor(unused, device=flags.device)] = _FLAG
        self._usage_bucket.submit(entry.id, stream, s.ReduceOptions(op=s.ReduceOp.SUM, flags=s.ReduceFlags.DETACHED))

    def unused_everywhere(self, backwards: int) -> set[int]:
        """The flags of parameters for which no rank had a gradient in any backward of the window. Called in the open step."""
        here = self._unused
        if not here or self._usage is None:
            return here
        stream = self.context.stream()
        if stream is not None:
            stream.synchronize()
        target = self._usage.target()
        sums = tensor_at(target.data, self._usage.numel, torch.float32, self.context.client.dlpack_device)
        everywhere = float(backwards * self.context.world) * _FLAG
        return {flag for flag in here if float(sums[flag]) == everywhere}

    # ---- Giving up ----

    def abandon(self) -> None:
        """Gives up the window for all ranks."""
        self.context.counts.abandoned += 1
        if self.alone:
            self.clear()
            return
        self.fetcher.stop()
        try:
            self.complete_end()
            if not self.reducing and not self.window:
                self._open(raises=False)
            self.abandon_window()
        finally:
            self.reducing = False
            self.window = 0
            self.clear()

    def abandon_empty(self) -> None:
        """This rank steps without a backward: reports that to ranks that have had one."""
        self._open(raises=False)
        self.abandon_window()

    def abandon_window(self) -> None:
        self.window = 0
        try:
            self.context.group.backward_abandon(self.context.stream())
            with suppress(zerod.Mismatch):  # an error of a detached gradient, which is abandoned with the window
                self.context.client.wait_many([])
        finally:
            self.tell_rows(self.context.rank)

    def tell_rows(self, rank: int) -> None:
        """The other rows do not make this window's step either, because a rank of this row has given it up."""
        replicas = self.context.replicas
        if replicas is not None:
            replicas.send([1 + replicas.members[rank], 0, 0] + [0] * self.flags)

    def clear(self) -> None:
        """Removes everything of the window, from the leaves and from the gradients that wait for its sum."""
        self.local = False
        for unit in self.updates.trainable:
            unit.kept = [None] * len(unit.members)
            for leaf in unit.leaves:
                leaf.grad = None
        with as_plain():
            for unit, index, holder in self._take_waiting():
                parameter = unit.members[index].parameter
                if holder.source is not self._source:
                    continue
                if holder.stash is not None:
                    self._settle(holder, holder.stash)
                elif parameter.grad is holder:
                    parameter.grad = None
                    holder.wait_for(_spent)

    # ---- What the program sees ----

    def _show(self, contributes: Callable[[FlatUnit, int], bool]) -> None:
        """From now on `.grad` of these parameters waits for the sum."""
        with as_plain():
            for unit in self.updates.trainable:
                if unit in self.fetcher.taken:
                    continue
                for index, member in enumerate(unit.members):
                    if contributes(unit, index):
                        holder = self._shown(unit, index, member.parameter)
                        if holder is not None:
                            self._waiting.append((unit, index, holder))

    def _show_used(self, unit: FlatUnit) -> None:
        with as_plain():
            for index, member in enumerate(unit.members):
                if unit.wants[index]:
                    member.parameter.grad = holder = self._holder(unit, index)
                    holder.wait_for(used)

    def _shown(self, unit: FlatUnit, index: int, parameter: torch.nn.Parameter) -> Optional[ShardedTensor]:
        """The parameter's `.grad`, which now waits. None if it already waited."""
        shown = parameter.grad
        if shown is None:
            holder = parameter.grad = self._holder(unit, index)
            return holder
        if not isinstance(shown, ShardedTensor):  # the program's own
            shown = ShardedTensor(unit.parts[index].cut(shown).clone(), unit.gradient_parts[index])
            parameter.grad = shown
        if shown.source is self._source:
            return None
        if shown.source is None:
            shown.stash = shown.read_local()
        if shown.counter is not None:
            shown.counter.writes += 1
        source = self._source if shown.source is None else _unzeroed
        shown.aliases = shown.aliases or []
        shown.aliases[1:] = [reference for reference in shown.aliases[1:] if reference() is not None]
        for each in [shown, *(reference() for reference in shown.aliases)]:
            if each is not None:
                each.wait_for(source)
        return shown

    def _holder(self, unit: FlatUnit, index: int) -> ShardedTensor:
        holder = unit.holders[index]
        if holder is None or sys.getrefcount(holder) > _SPARE or holder.counter is not None:
            holder = ShardedTensor.__new__(ShardedTensor, unit.blank, unit.gradient_parts[index])
        unit.holders[index] = holder
        holder.wait_for(self._source)
        holder.stash, holder.aliases = None, []
        return holder

    def fill(self, tensor: ShardedTensor) -> None:
        """Called when a gradient, or a tensor over the same values, is first used. Every rank calls it."""
        self.begin_step(waits=True)
        self._await_unit(tensor.part.place[0])
        if tensor.source is self._source:
            raise RuntimeError(f"the gradient of {tensor.part.name} was taken away, by zero_grad() or otherwise, and its sum has "
                               "gone with the step or backward that followed")
        if tensor.source is not None:
            tensor.source.fill(tensor)

    def unread(self) -> set[int]:
        """The ids of the gradients that wait for their sum, and over which no other tensor exists."""
        with as_plain():
            return {id(holder) for unit, index, holder in self._waiting + [each for some in self._awaited.values() for each in some]
                    if holder.source is self._source and unit.members[index].parameter.grad is holder
                    and not any(reference() is not None for reference in (holder.aliases or ())[1:])}

    def settle(self, none: set[int], units: "list[FlatUnit]") -> None:
        """The step has begun: gradients that wait receive their sum, except those of the flags `none`."""
        self._settle_all(self._take_waiting(), none, units)

    def _take_waiting(self) -> "list[tuple[FlatUnit, int, ShardedTensor]]":
        waiting = self._waiting + [each for some in self._awaited.values() for each in some]
        self._waiting, self._awaited = [], {}
        return waiting

    def keeps_any(self) -> bool:
        """Whether a rank that is alone has gradients that are not stepped. Forgets those that the program has dropped."""
        if not (self.local and self.alone):
            return False
        with as_plain():
            if not any(unit.members[index].parameter.grad is holder for unit, index, holder in self._waiting):
                self.clear()
        return self.local

    def settle_own(self) -> None:
        """The same for a rank that is alone."""
        waiting, self._waiting, self.local = self._waiting, [], False
        with as_plain():
            for unit, index, holder in waiting:
                gradient, unit.kept[index] = unit.kept[index], None
                if gradient is not None and holder.source is self._source:
                    gradient = gradient.reshape(-1).to(holder.dtype)
                    self._settle(holder, gradient if holder.stash is None else holder.stash + gradient)
                self._settled.append((unit, index, holder))

    @property
    def all_used(self) -> bool:
        """Whether all parameters have had a gradient here in the window."""
        return not self._unused

    def await_units(self) -> None:
        """Makes the step run unit by unit. Returns when every rank has begun it. ZerodError if a rank will not begin it."""
        for each in self._waiting:
            self._awaited.setdefault(each[0].name, []).append(each)
        self._waiting = []
        if self._awaited:
            next(reversed(self._awaited.values()))[0][0].unit.reduce_wait()  # the sum that is ready first

    def await_none(self) -> None:
        """Called if the step is not begun."""
        self._waiting = self._take_waiting()

    def _await_unit(self, unit: FlatUnit) -> None:
        some = self._awaited.get(unit.name)
        if some is not None:
            unit.unit.reduce_wait()
            del self._awaited[unit.name]
            self._settle_all(some, set(), [some[0][0]])

    def _settle_all(self, waiting: "list[tuple[FlatUnit, int, ShardedTensor]]", none: set[int], units: "list[FlatUnit]") -> None:
        open_units = set(units)
        sums: dict[FlatUnit, list[torch.Tensor]] = {}
        with as_plain():
            for unit, index, holder in waiting:
                if holder.source is not self._source or unit not in open_units:
                    continue
                if unit.first_flag + index not in none:
                    parts = sums.get(unit)
                    if parts is None:
                        parts = sums[unit] = unit.reduced()
                    gradient = parts[index].to(holder.dtype)
                    self._settle(holder, gradient if holder.stash is None else holder.stash + gradient)
                elif holder.stash is not None:
                    self._settle(holder, holder.stash)
                else:
                    if unit.members[index].parameter.grad is holder:
                        unit.members[index].parameter.grad = None
                    first, last = unit.bounds(unit.members[index])
                    self._settle(holder, torch.zeros(last - first, dtype=unit.source_dtype, device=unit.blank.device))
                self._settled.append((unit, index, holder))

    def _settle(self, holder: ShardedTensor, values: torch.Tensor) -> None:
        holder.settle(values)
        holder.stash = None
        for reference in holder.aliases or ():
            alias = reference()
            if alias is not None:
                alias.settle(values)

    def end_step(self, stepped: set[int]) -> None:
        """Called before the gradients' memory is freed. Gradients of these parameters are spent. The others, and those that the
        program holds, are copied."""
        settled, self._settled = self._settled, []
        for unit in self.updates.trainable:
            if unit.summed_by_ranks:
                unit.copied = None
        count, shown_more = sys.getrefcount, references_from_torch
        with as_plain():
            for unit, index, holder in settled:
                parameter = unit.members[index].parameter
                is_shown = parameter.grad is holder
                is_held = count(holder) > _SPARE + 1 + shown_more * is_shown
                others = holder.aliases and any(reference() is not None for reference in holder.aliases[1:])
                is_spent = is_shown and not is_held and id(parameter) in stepped and not holder.zeroed
                if is_spent and not others:
                    holder.wait_for(_spent)
                elif (holder.source is None or isinstance(holder.source, Scaled)) and (others or is_held or is_shown):
                    self._settle(holder, holder.read_local().clone())
                    if is_spent:
                        holder.wait_for(_spent)

    def take(self, parameters: "Sequence[torch.nn.Parameter]") -> bool:
        """Called by an optimizer: uses the gradients that are shown. False: there are none. Whole tensors of the program are cut.

        RuntimeError for a gradient that ended with an earlier step.
        """
        some = False
        with as_plain():
            for parameter in parameters:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if isinstance(gradient, ShardedTensor) and gradient.source is used:
                    parameter.grad = None
                    continue
                some = True
                if gradient.__class__ is ShardedTensor:
                    if isinstance(gradient.source, _Gone):
                        gradient.source.fill(gradient)
                    gradient.zeroed = False
                    continue
                unit, index = parameter.part.place  # type: ignore[attr-defined]
                if gradient.layout != torch.strided:
                    raise NotImplementedError(f"zerod.torch: the gradient of {parameter.part.name} is {gradient.layout}, not dense")
                part = unit.gradient_parts[index]
                parameter.grad = ShardedTensor(part.cut(gradient).clone(), part)
        return some
