# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps of a sharded model.

Torch's global hooks call this when an optimizer steps. It begins the daemon's step: `.grad` then has this rank's part of all
ranks' sum, and the parameters may be written. When all parameters have been stepped, or the next forward begins, the slices are
published and the gradients' memory is freed.
"""
from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Iterable, Iterator, Optional

import torch
from torch import nn

import zerod
from zerod import structs as s

from .context import Context
from .gradients import Gradients
from .sharded import as_plain
from .unit import FlatUnit
from .updates import Updates, portions


class StepAbandoned(RuntimeError):
    """A rank gave up its forward or backward, or had no backward: no rank makes this step.

    `rank` is its number in the group that shards the model, or in torch.distributed for a mesh of two dimensions.
    """

    def __init__(self, rank: int, text: str = "has abandoned its forward or backward, or has called step() without a backward") -> None:
        super().__init__(f"rank {rank} {text}: this step is not taken by any rank")
        self.rank = rank


_TORN_WINDOW = ("has abandoned its forward or backward, and the optimizer has run in the backward: some units are those of "
                "this step, the others those of the step before")


class StepTorn(RuntimeError):
    """The optimizer of rank `rank` raised or was not called: its slices of this step are written in part or not at all.

    All other slices are complete. `rank` counts as in StepAbandoned.
    """

    def __init__(self, rank: int, text: str = "has not finished its optimizer's step: its slices are not those of this "
                 "step, or in part; the other ranks' are") -> None:
        super().__init__(f"rank {rank} {text}")
        self.rank = rank


class Steps:
    """The steps of one model. `open`: between the daemon's step_begin and step_end."""

    def __init__(self, context: Context, updates: Updates, gradients: Gradients) -> None:
        self.context = context
        self.updates = updates
        self.gradients = gradients
        self.open = False
        self._by_unit = False  # open, and the daemon's step has been called, but its sums are to come
        self._ticket = 0  # of that step
        self.raised = False  # an optimizer has raised inside its step
        self.running: set[int] = set()  # parameters whose optimizer has begun its step, but not ended it
        self._again: set[int] = set()  # those of them whose step is called again, because it has raised
        self._stepped: set[int] = set()
        self._skipped: set[int] = set()  # all ranks know that their gradients overflow

    # ---- Begin ----

    def begin(self, waits: bool = False, by_unit: bool = False) -> None:
        """Sets the gradients' values. Every rank calls it. StepAbandoned if a rank has given up.

        waits: the CPU waits for the sums, not torch's stream. This process makes its sums with kernels, and the driver can delay
        their launches until all streams are idle, for example while torch uses a kernel for the first time. by_unit: returns when
        every rank has called it, if possible. The first use of a unit's gradient then waits for its sum.
        """
        gradients, fetcher = self.gradients, self.gradients.fetcher
        if self.open:
            return
        if gradients.local and gradients.alone:
            gradients.settle_own()
            self.open = True
            self.context.counts.steps += 1
            return
        if gradients.local:
            gradients.finish(shows=False)
            for unit in self.updates.trainable:  # no end of a backward does this
                unit.submitted = False
        if not gradients.window:
            return
        if by_unit and self.publishes_early and self.context.offload.value is None and gradients.all_used:
            self._begin_by_unit()
            return
        if fetcher.runs_optimizer:
            self.updates.release_kept()
        fetcher.drain()
        fetcher.copy_rest()
        backwards = gradients.window
        none = self._close_window(waits)
        try:
            gradients.sum_kept()
        except BaseException:  # the other ranks receive Mismatch, or StepTorn if they have their sums
            gradients.clear()
            self.open = self.raised = self.context.replicas is None
            if not self.open:
                gradients.tell_rows(self.context.rank)
                self._leave()
            raise
        if self.context.replicas is not None:
            none = self._sum_rows(backwards, none)
        units = [unit for unit in self.updates.trainable if unit not in fetcher.stepped]
        if self.context.offload.optimizer:
            self._fetch(units)
        gradients.settle(none, units)
        self.open = True
        self.context.counts.steps += 1

    @property
    def publishes_early(self) -> bool:
        """Whether a unit can be published before the others are stepped, because no other operation uses all units."""
        context = self.context
        return context.world > 1 and context.replicas is None and context.durable is None \
            and not self.gradients.fetcher.runs_optimizer and not any(unit.summed_by_ranks for unit in self.updates.trainable)

    def _begin_by_unit(self) -> None:
        """A signal handler's exception gives the step up, unless all ranks have begun it."""
        self._ticket = self.context.group.step_begin_ticket()
        try:
            self.gradients.await_units()
        except Exception as failure:
            if isinstance(failure, zerod.ZerodError) and not isinstance(failure, zerod.Interrupted):
                self.open = True
                self._end_by_unit(waits=True)  # raises the reason
                return
            self._interrupted()
            raise
        except BaseException:
            self._interrupted()
            raise
        self.open = self._by_unit = True

    def _interrupted(self) -> None:
        if self._give_up():
            self.gradients.await_none()

    def _give_up(self) -> bool:
        """False: all ranks have begun the step. It is then open, with all of its sums."""
        ticket, self._ticket = self._ticket, 0
        if self.context.client.give_up(ticket):
            return True
        self.open, self.gradients.window = True, 0
        self._settle_all()
        return False

    def _settle_all(self) -> None:
        self._by_unit = False
        self.gradients.settle(set(), self.updates.trainable)
        self.context.counts.steps += 1

    def _end_by_unit(self, waits: bool) -> None:
        """Waits for all sums. If that fails, the step is removed completely."""
        try:
            self._close_window(waits)
        except Exception:
            self.open = self.raised = self._by_unit = False
            self._ticket = 0
            self._forget()
            self.gradients.clear()
            with suppress(zerod.ZerodError):
                self.updates.end()
            raise
        except BaseException:  # a signal handler's: the next call ends the step
            if self._ticket:
                self._give_up()
            raise
        self._settle_all()

    def _forget(self) -> None:
        for noted in (self._skipped, self._stepped, self.running):
            noted.clear()

    def _close_window(self, waits: bool) -> set[int]:
        """Begins the daemon's step. Returns the flags of parameters for which no rank of the group had a gradient."""
        gradients, fetcher, group = self.gradients, self.gradients.fetcher, self.context.group
        try:
            ended, gradients.end_ticket = gradients.end_ticket, 0  # the step's ticket also waits for the end of the backward
            try:
                self.context.client.complete(self._ticket or group.step_begin_ticket(), None if waits else self.context.stream())
                self._ticket = 0
            except zerod.InvalidState:
                if ended:
                    self.context.client.complete(ended)  # if the end of the backward has failed, its error has the reason
                raise
            backwards, gradients.window = gradients.window, 0
            fetcher.ahead = backwards == 1
            self._check_abandoned()
            return gradients.unused_everywhere(backwards)
        except StepAbandoned as abandoned:
            gradients.tell_rows(abandoned.rank)
            if fetcher.mend():
                raise StepTorn(abandoned.rank, _TORN_WINDOW) from None
            if self.context.replicas is not None:
                raise StepAbandoned(self.context.replicas.members[abandoned.rank]) from None
            raise
        except BaseException:
            if fetcher.runs_optimizer:
                fetcher.stop()
            if self.context.replicas is not None:
                with suppress(zerod.ZerodError):
                    gradients.abandon_window()
            raise

    def _check_abandoned(self) -> None:
        """A step of an abandoned window has no target. This check needs no message."""
        placed = next((unit for unit in self.updates.trainable if unit.placed and not unit.summed_by_ranks), None)
        with suppress(zerod.InvalidState):
            if placed is not None:
                placed.unit.target()
                return
        info = self.context.group.step_get()
        if info.abandoned:
            self._leave()
            raise StepAbandoned(info.abandoned_rank)

    def _leave(self) -> None:
        self.gradients.clear()
        self.context.group.step_end(self.context.stream())

    def _sum_rows(self, backwards: int, none: set[int]) -> set[int]:
        """Sums the targets across the rows. Returns the flags of parameters for which no row had a gradient."""
        replicas = self.context.replicas
        assert replicas is not None
        used = [int(flag not in none) for flag in range(self.gradients.flags)]
        given_up, most, least, *used = replicas.exchange([0, backwards, -backwards] + used)
        if given_up:
            self._leave()
            raise StepAbandoned(given_up - 1)
        if most != -least:
            self._leave()
            raise zerod.errors.error(zerod.Status.MISMATCH, f"rows of the mesh have run {-least} and {most} backwards "
                                     f"since the last step, this one {backwards}")
        replicas.sum([unit.target() for unit in self.updates.trainable if unit.shard.true_numel],
                     self.context.settings.op == s.ReduceOp.MEAN)
        return {flag for flag, found in enumerate(used) if not found}

    def _fetch(self, units: "list[FlatUnit]") -> None:
        """Copies the rest of the targets to host memory, for an optimizer on the CPU, and waits for all copies."""
        offload = self.context.offload
        stream = self.context.stream()
        if offload.shards and stream is not None:
            stream.synchronize()  # the targets are in host memory
        for unit in units:
            gradient = unit.host_gradient()
            if gradient is not None and unit not in self.gradients.fetcher.fetched:
                offload.fetch(gradient, unit.target())
        offload.wait()

    # ---- Agreements inside of a step ----

    def agree(self, values: "list[float]", op: zerod.AgreeOp) -> "list[float]":
        """Context.agree(), which raises StepTorn or StepAbandoned if another rank has given this step up meanwhile.

        The number of values is made even: agreements of this package have odd numbers. Ranks therefore never mistake one for the
        other.
        """
        try:
            return self.context.agree(values + [0.0] * (2 - len(values) % 2), op)[:len(values)]
        except zerod.Mismatch:
            if not self.open:
                raise
            begun, failed = self._tell(False, -1, waits=True)[:2]
            if failed < 0:  # no rank has given up: this one can still step, and the others wait for that
                raise
            if begun:
                self.finish(asks=True)
            else:
                self._close()
            raise StepAbandoned(failed) from None

    def overflow(self, parameters: "Iterable[torch.Tensor]", found: bool) -> bool:
        """Whether a gradient of these parameters is infinite or NaN on any rank."""
        overflown = self.agree([float(found)], zerod.AgreeOp.MAX)[0] > 0
        if overflown:
            self._skipped.update(map(id, parameters))
        return overflown

    # ---- The optimizer ----

    def before_optimizer(self, parameters: "list[nn.Parameter]", first: bool, by_unit: bool) -> None:
        """The optimizer is about to write these sharded parameters. first: it has not stepped them before. by_unit: it calls
        in_turn() and after_units()."""
        self.updates.end_writes()
        was_open = self.open
        self.begin(waits=first, by_unit=by_unit)
        failure = self.gradients.fetcher.take_failure() if self.open else None
        if failure is not None:
            self.raised = True
            raise failure
        uses = self.gradients.take(parameters)
        if not self.open and (self.context.world > 1 or self.context.replicas is not None):
            self.gradients.abandon_empty()  # informs ranks that have had a backward
        if uses and not self.open and not self.updates.updating and self.context.world > 1:
            self.context.group.barrier()  # no sum has waited for forwards, which can still read the former weights
        if self.open or uses:
            self.begin_update(agrees=was_open)
            ids = set(map(id, parameters))
            self._again = self.running & ids
            self.running |= ids

    def begin_update(self, agrees: bool = True) -> None:
        """The shards are about to be written. agrees: a read of gradients has begun the step. Since then other ranks can read
        weights, or can have given the step up: StepAbandoned."""
        if agrees and not self.updates.updating and (self.context.world > 1 or self.context.replicas is not None):
            begun, failed = self._tell(False, -1, waits=True)[:2]
            if failed >= 0 and not begun:
                self._close()
                raise StepAbandoned(failed)
        self.updates.begin()

    def in_turn(self, units: "Iterable[FlatUnit]") -> "Iterator[list[FlatUnit]]":
        """Units of this step in the order in which to step them, some together if they are small.

        The next forward needs the first ones first, but their sums come last. Meanwhile the other half is stepped.
        """
        place = {unit: number for number, unit in enumerate(self.updates.units)}
        first = sorted(units, key=lambda unit: place[unit])
        for unit in self.updates.published.intersection(first):
            if any(id(member.parameter) in self._again for member in unit.members):
                first.remove(unit)  # it was stepped before step() raised
            else:
                self.updates.reopen(unit)
        if not self._by_unit:
            return portions(first)
        half = sum(unit.shard.true_numel for unit in first) / 2
        later = []
        while half > 0:
            later.append(first.pop())
            half -= later[-1].shard.true_numel
        return portions(later + first)

    def after_units(self, units: "list[FlatUnit]") -> None:
        """All parameters of these units have been stepped, and nothing else will write them in this step."""
        if self.publishes_early and self.updates.updating and units:
            self.updates.publish(units, ticket=True)
            self.updates.published.update(units)

    def after_optimizer(self, parameters: "list[nn.Parameter]") -> None:
        ids = set(map(id, parameters))
        self.running -= ids
        self._stepped |= ids
        if all(id(member.parameter) in self._stepped for unit in self.updates.trainable for member in unit.members):
            self.finish()

    # ---- End ----

    def finish(self, asks: bool = False) -> None:
        """Publishes the updated units, and frees the gradients' memory. StepTorn if another rank's optimizer failed.

        asks: this rank has not failed, but waits in another call.
        """
        if not self.open:  # for gradients that the program had made itself
            self._stepped.clear()
            self.running.clear()
            self.updates.end()
            return
        if self._by_unit:
            self._end_by_unit(waits=False)
        durable = self.context.durable
        self.raised = self.raised or bool(self.running)
        fails = not asks and (self.raised or not self.updates.updating)
        torn = None if self.gradients.alone else self._agree(fails)
        commits = durable is not None and torn is None and (self.updates.updating or bool(self._skipped))
        if durable is not None and commits and self.updates.updating:
            durable.store()
        self._close()
        if durable is not None and commits:
            durable.commit()
        if torn is not None and not fails:
            raise StepTorn(torn)

    def _close(self) -> None:
        self.gradients.end_step(self._stepped)
        self.open = self.raised = False
        self._forget()
        self.updates.end()
        if not self.gradients.alone:
            self.context.group.step_end(self.context.stream())
        self.gradients.fetcher.clear()

    def _agree(self, fails: bool) -> Optional[int]:
        """If any rank has begun to update its slices, all ranks do. Returns a rank that has failed to, if there is one.

        Between rows of a mesh, the slices of ranks that have failed are copied from a row in which they are complete.
        """
        context, durable = self.context, self.context.durable
        if not self.updates.updating and self._skips_all():
            return None
        number = context.rank if context.replicas is None else context.replicas.members[context.rank]
        begins = self.updates.updating or bool(self.gradients.fetcher.stepped)
        waits = True
        while waits:  # for ranks that are about to write
            begun, failed, waits, *wanted = self._tell(begins, number if fails else -1)
            waits = waits and (begun or failed < 0)
        if durable is not None:
            durable.agreed_bytes = wanted
        if not begun or failed < 0:
            return None
        self.updates.begin()
        if context.replicas is not None:
            context.replicas.mend([unit.own for unit in self.updates.trainable], not fails)
        return failed

    def _tell(self, begins: bool, failed: int, waits: bool = False) -> "list[int]":
        """The maximum of each value across the ranks, and of the bytes that a durable job needs."""
        context = self.context
        values = [float(begins), float(failed), float(waits)]
        if context.durable is not None:
            values += context.durable.wanted_bytes()
        padded = values + [0.0] * (1 - len(values) % 2)
        try:
            told = context.agree(padded, zerod.AgreeOp.MAX)
        except zerod.Mismatch:  # other ranks were in another call; now they call this
            told = context.agree(padded, zerod.AgreeOp.MAX)
        found = [int(value) for value in told[:len(values)]]
        return found if context.replicas is None else context.replicas.exchange(found)

    def _skips_all(self) -> bool:
        """Whether all ranks know that no optimizer steps: the gradients of all parameters overflow."""
        if not self._skipped:
            return False
        with as_plain():
            return all(id(member.parameter) in self._skipped for unit in self.updates.trainable for member in unit.members
                       if member.parameter.grad is not None)

    def settle_overlap(self) -> None:
        """Afterwards no thread writes slices. This rank has had its own exception, and only receives a warning."""
        fetcher = self.gradients.fetcher
        if not fetcher.runs_optimizer:
            return
        if not fetcher.mends:
            fetcher.drain()
        elif fetcher.mend():
            warnings.warn(f"zerod.torch: rank {self.context.rank} {_TORN_WINDOW}", RuntimeWarning, stacklevel=2)
