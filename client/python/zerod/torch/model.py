# SPDX-License-Identifier: Apache-2.0
"""A sharded model: its forwards and backwards.

Forward. A pre-hook of each block gathers it, puts the leaves in place, and asks for the block that came next last
time; a hook releases it. The outermost forward runs under the hooks of hooks.py.

Backward. An unpack hook, or a forward that runs again, holds a block. When all leaves of a unit have their
gradient, the unit is handed over; torch calls the last of a leaf's gradients once in a backward, so nothing can come
later. `finish_backward`, which torch calls when the backward has ended, hands over the units of which some leaves
had none, and releases everything. A backward that raises never ends: its callback is dropped, and that abandons it.

In place. At world size 1 the gathered buffers are the shards: a release frees no memory, and no address changes. From
the second forward on, a forward then holds all blocks, by one packet, until its backward has ended, and autograd saves
the leaves themselves. Not where some units are in host memory: a gather of those takes memory.

Steps are in steps.py, which this class inherits.
"""
from __future__ import annotations

import sys
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional

import torch
from torch import nn
from torch.autograd import Variable

import zerod
from zerod import structs as s

from . import hooks
from .durable import Durable
from .environment import MOST_UNIT_BYTES, Environment, short_name
from .layout import BlockPlan
from .offload import Offload
from .pace import Pace
from .recovery import Recovery
from .replicas import Replicas
from .steps import Steps
from .unit import Block, FlatUnit

_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node


@dataclass
class Counts:
    """Since shard(): what summary() shows."""

    gathers: int = 0
    waited: int = 0
    unplanned: int = 0
    backwards: int = 0
    steps: int = 0
    abandoned: int = 0


@dataclass
class Settings:
    """The arguments of shard()."""

    reduce_dtype: Optional[torch.dtype] = None
    persist_below: int = 0
    prefetch: int = 1
    slots: bool = False
    stage: int = 3
    op: s.ReduceOp = s.ReduceOp.MEAN


def _flatten_nothing() -> None:
    """Takes the place of RNNBase.flatten_parameters(): cuDNN copies the weights in each forward instead."""


class Model(Steps):
    """The state that shard() attaches to a module."""

    def __init__(self, module: nn.Module, plans: list[BlockPlan], environment: Environment, group: zerod.Group,
                 settings: Settings, offload: Offload, recovery: Recovery, replicas: Optional[Replicas] = None,
                 durable: Optional[Durable] = None) -> None:
        self.module = weakref.ref(module)
        self.recovery = recovery
        self.removable: list[Any] = []  # hooks of the module
        self.environment = environment
        self.client = environment.client
        self.device = environment.device  # of computation
        self.offload = offload
        self.group = group
        self.rank, self.world = group.rank, group.world_size
        self.replicas = replicas
        self.durable = durable
        self.settings = settings
        self.device_index = environment.device_index(self.rank)
        self.prefetch = settings.prefetch if self.world > 1 or offload.shards else 0
        self.counts = Counts()
        self.outermost: Optional[Block] = None
        self.pushed = False
        self.failure: Optional[BaseException] = None
        self.last_forward: Optional[Block] = None
        self.last_backward: Optional[Block] = None
        self.backward_blocks: list[Block] = []
        self.ending: Optional[weakref.ref[_Ending]] = None
        self.scope = 0
        self.sync = True
        self.passing = 0
        self.refreeze = False
        self.own_slots = 0
        self.in_place = False
        self.holds_all = False  # in place: all blocks are held
        self.keeps_all = False  # and a backward may follow
        self._init_steps()
        self.blocks = [Block(self, plan, i) for i, plan in enumerate(plans)]
        for block in self.blocks[1:]:
            self.blocks[block.parent].has_blocks = True
        self.units: list[FlatUnit] = []
        self.trainable: list[FlatUnit] = []
        self._make_units(plans)
        for owner in module.modules():
            if isinstance(owner, nn.RNNBase):  # would move gathered weights into memory of its own, where they stay
                owner.flatten_parameters = _flatten_nothing  # type: ignore[method-assign]
            for name, buffer in owner._buffers.items():
                if buffer is not None and not buffer.is_meta:
                    owner._buffers[name] = buffer.to(self.device)
        for block in self.blocks:
            self._hook(block)

    def _make_units(self, plans: list[BlockPlan]) -> None:
        loads = self.group_loads()
        for block, plan in zip(self.blocks, plans):
            for unit_plan in plan.units:
                numel = sum(member.numel for member in unit_plan.members)
                small = numel < self.settings.persist_below or self.settings.stage == 1
                unit = FlatUnit(block, unit_plan, len(block.units), s.UnitFlags.PERSISTENT if small else 0)
                unit.make_master()
                if unit.trainable:
                    unit.host_gradient()
                if self.durable is None or not self.durable.adopts:
                    unit.fill([member.parameter for member in unit_plan.members], loads)
                block.units.append(unit)
                self.units.append(unit)
            block.finish()
        self.trainable = [unit for unit in self.units if unit.trainable]
        paced = (self.world > 1 or self.offload.shards) and not self.environment.host
        self.pace = Pace(max(block.nbytes for block in self.blocks)) if paced else None
        self._init_gradients()
        if self.durable is not None:
            self.durable.attach(self)

    def group_loads(self) -> bool:
        """Whether rank 0's weights are to be given to other ranks."""
        return self.world > 1

    def slot(self, block: Block, index: int) -> int:
        """The slot of a block's unit: blocks of the root take turns, others and those of stage 1 have their own."""
        if not self.settings.slots:
            return s.NO_SLOT
        turns, most = self.settings.prefetch + 2, 4
        turn = block.index and block.parent == 0 and not block.has_blocks and index < most
        if turn and self.settings.stage > 1:
            return 1 + block.index % turns * most + index
        self.own_slots += 1
        slot = turns * most + self.own_slots
        return slot if slot <= 4096 else s.NO_SLOT

    def passing_group(self) -> zerod.Group:
        """Where units are registered that last for a call."""
        return self.group if self.durable is None else self.durable.passing_group()

    def passing_name(self, unit: FlatUnit) -> str:
        """For a unit that lasts for a call: a new name each time, since ranks unregister at different moments."""
        self.passing += 1
        return short_name(f"{unit.name}:{self.passing}", MOST_UNIT_BYTES)

    def _hook(self, block: Block) -> None:
        disable = torch.compiler.disable
        register = block.module.register_forward_pre_hook
        self.removable.append(register(disable(self._pre_forward(block)), prepend=True, with_kwargs=True))
        register = block.module.register_forward_hook
        self.removable.append(register(disable(self._post_forward(block)), always_call=True))

    # ---- Forward ----

    def _pre_forward(self, block: Block) -> Callable:
        def pre_forward(module: nn.Module, args: Any, kwargs: Any) -> Any:
            block.depth += 1
            if block.depth > 1:
                return None
            again = _task() != -1  # in a backward
            if again:
                self.enter_backward()
            elif self.outermost is None:
                self._begin_forward(block)
            if self.in_place:
                self._hold_all()
                block.show_leaves()
                return None
            if again:
                block.raw = True
                block.hold_backward()
                block.show_leaves()
                if torch.is_grad_enabled() and not hooks.ours_apply():
                    return hooks.with_boundary(block, args, kwargs)
                return None
            last = self.last_forward
            if last is not None and last is not block:
                last.next_forward = block
            self.last_forward = block
            if block.keeps_forward:
                block.keeps_forward = False
            else:
                block.acquire(self.following(block, "next_forward") if self.prefetch else ())
            block.show_leaves()
            if torch.is_grad_enabled():
                if not hooks.ours_apply():
                    block.pushed = hooks.push()  # a program has put other hooks between
                if self.settings.slots or not hooks.ours_apply():
                    return hooks.with_boundary(block, args, kwargs)
            return None

        return pre_forward

    def _hold_all(self) -> None:
        """In place: before a forward, also one that runs again in a backward."""
        if not self.holds_all:
            self.holds_all = True
            first, *others = self.blocks
            first.acquire(tuple(others))
            for other in others:
                other.acquire()

    def release_kept(self) -> None:
        """Releases what a forward keeps for its backward: an update begins, or the backward has ended."""
        kept = [block for block in self.blocks if block.keeps_forward or self.holds_all]
        self.holds_all = self.keeps_all = False
        if not kept:
            return
        with self.client.corked():
            for block in kept:
                block.keeps_forward = False
                block.release()

    def following(self, block: Block, direction: str) -> tuple[Block, ...]:
        """The blocks that came next last time, as many as are to be asked for ahead."""
        found: list[Block] = []
        while len(found) < self.prefetch:
            following = getattr(block, direction)
            if following is None or following in found or following.held:
                break
            found.append(following)
            block = following
        return tuple(found)

    def _post_forward(self, block: Block) -> Callable:
        def post_forward(module: nn.Module, args: Any, output: Any) -> None:
            if block.depth == 0:
                return
            block.depth -= 1
            if block.depth:
                return
            block.show_shards()
            if block.pushed:
                block.pushed = False
                hooks.pop()
            if _task() != -1:
                return
            if self.in_place:
                if self.outermost is block:
                    self._end_forward()
                return
            if self.settings.slots and torch.is_grad_enabled():
                hooks.before_backward(output, self._before_backward(block))
            try:
                if block.held:
                    if self.settings.stage < 3 and torch.is_grad_enabled() and block.trainable:
                        block.keeps_forward = True
                    else:
                        block.release()
            finally:
                if self.outermost is block:
                    self._end_forward()

        return post_forward

    def _before_backward(self, block: Block) -> Callable[[torch.Tensor], None]:
        """With slots: a block is back in its slot before its backward, for whatever keeps views of its weights."""
        def before_backward(_: torch.Tensor) -> None:
            self.enter_backward()
            block.raw = True
            block.hold_backward()

        return before_backward

    def _begin_forward(self, block: Block) -> None:
        self.settle()
        self.outermost = block
        self.last_forward = None
        self.failure = sys.exc_info()[1]
        if not self.in_place and not self.offload.shards and not any(each.held for each in self.blocks):
            self.in_place = any(unit.address == unit.shard.data for unit in self.units)
        self.pushed = not self.in_place and hooks.push()

    def _end_forward(self) -> None:
        self.outermost = None
        if self.pushed:
            self.pushed = False
            hooks.pop()
        self.end_scope()
        self.keeps_all = self.keeps_all or torch.is_grad_enabled()
        if self.holds_all and not self.keeps_all:
            self.release_kept()
        for block in self.blocks:
            if block.tickets is not None:
                block.forget_ahead()
        failure = sys.exc_info()[1]
        if failure is not None and failure is not self.failure:
            self._forward_failed()

    def _forward_failed(self) -> None:
        """An exception leaves the outermost forward: no step of any rank may count this micro-batch."""
        self.release_kept()
        for block in self.blocks:
            while block.held and not block.in_backward:
                block.keeps_forward = False
                block.release()
        if torch.is_grad_enabled() and self.trainable:
            self.abandon()

    # ---- Unplanned use ----

    def unplanned(self, unit: FlatUnit, index: int) -> nn.Parameter:
        """The whole parameter, for code that no hook of a block has prepared."""
        block = unit.block
        if not block.held:
            self.counts.unplanned += 1
            if _task() != -1:
                self.enter_backward()
                block.raw = True
                block.hold_backward()
            elif not unit.scope or unit.scope != self.scope:
                if not self.scope:
                    self.scope = self.group.forward_begin(0, self.environment.stream())
                unit.place(self.environment.with_room(unit.unit.gather, self.environment.stream(),
                                                      s.GatherOptions(scope=self.scope)))
                unit.scope = self.scope
        return unit.leaves[index]

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Inside, autograd saves tensors by this package's hooks, unless hooks.push() declines."""
        pushed = hooks.push()
        try:
            yield
        finally:
            if pushed:
                hooks.pop()

    def end_scope(self) -> None:
        scope, self.scope = self.scope, 0
        if scope and self.outermost is None:
            self.client.forward_end(scope, False, self.environment.stream())

    # ---- Backward ----

    @property
    def in_backward(self) -> bool:
        return self.ending is not None and self.ending() is not None

    def enter_backward(self) -> None:
        """Called by whatever of this model happens first in a backward."""
        if self.in_backward:
            return
        ending = _Ending(self)
        self.ending = weakref.ref(ending)
        Variable._execution_engine.queue_callback(ending)
        self.last_backward = None

    def backward_flat(self, unit: FlatUnit) -> torch.Tensor:
        """The unit's gathered buffer, for an unpack hook."""
        block = unit.block
        if _task() == -1:
            return self._flat_outside(unit)
        if torch.is_grad_enabled():
            raise NotImplementedError("zerod.torch: backward with create_graph=True keeps views of gathered weights")
        node = _node()
        if not block.in_backward:
            self.enter_backward()
            block.hold_backward()
            self._leave_passed(block, node)
        block.node = node
        return unit.flat(unit.address)

    def _flat_outside(self, unit: FlatUnit) -> torch.Tensor:
        """For a program that looks at a saved tensor: held until the next forward, backward or step."""
        self.unplanned(unit, 0)
        return unit.flat(unit.address)

    def _leave_passed(self, block: Block, node: Any) -> None:
        """Releases blocks that wait for no gradient, now that the backward has come to another one.

        A node may unpack weights of two blocks, so blocks of this node stay.
        """
        for other in tuple(self.backward_blocks):
            if other is block or other.raw or other.node is node or other.node is None or other.depth:
                continue
            if not other.encloses(block) and all(unit.submitted for unit in other.trainable):
                other.leave_backward()

    def passed(self, block: Block) -> None:
        """The backward of the block's module is over."""
        if block.in_backward and block.raw and not block.depth:
            if all(unit.submitted or not unit.arrived for unit in block.trainable):
                block.leave_backward()

    def arrival(self, unit: FlatUnit) -> Callable[[torch.Tensor], None]:
        """The hook that torch calls when a leaf has its gradient."""

        def arrived(leaf: torch.Tensor) -> None:
            unit.arrived += 1
            if self.ending is None:
                self.enter_backward()
            if unit.arrived == unit.expected and self.sync:
                block = unit.block
                with self.client.corked():  # the gradient and the release, in one packet
                    self.submit(unit)
                    if block.in_backward and not block.raw and len(block.trainable) == len(block.units):
                        if all(each.submitted for each in block.trainable):
                            block.leave_backward()
                if self.fetcher is not None:
                    self.fetcher.start()

        return arrived

    def finish_backward(self) -> None:
        """Torch calls it when the backward has ended."""
        self.ending = None
        try:
            self.end_reduce()
        finally:
            self._leave_all()
        self.counts.backwards += 1

    def _leave_all(self) -> None:
        for block in tuple(self.backward_blocks):
            block.depth = 0
            block.leave_backward()
        self.release_kept()
        for block in self.blocks:
            if block.tickets is not None:
                block.forget_ahead()
        for unit in self.trainable:
            unit.arrived = 0
            unit.submitted = False
        self.end_scope()

    def backward_failed(self) -> None:
        """A backward raised: what it held goes, and no rank takes its step."""
        self.ending = None
        for unit in self.trainable:
            for leaf in unit.leaves:
                leaf.grad = None
        try:
            self.abandon()
        finally:
            self._leave_all()

    def settle(self) -> None:
        """Before a forward: whatever the last step or backward has left is ended."""
        failure, self.deferred_failure = self.deferred_failure, None
        if failure is not None:
            raise failure
        if not self.in_backward and (self.backward_blocks or self.reducing):
            self.backward_failed()
        if self.scope and self.outermost is None:
            self.end_scope()
        if self.overlap is not None and not self.in_backward:
            self.settle_overlap()
        self.finish_step()
        if self.refreeze:
            self._follow_requires_grad()

    def _follow_requires_grad(self) -> None:
        """Parameters were frozen or unfrozen. Every rank does the same, and not inside a window of backwards."""
        self.refreeze = False
        changed = [unit.follow_requires_grad() for unit in self.units]
        if any(changed):
            self.trainable = [unit for unit in self.units if unit.trainable]
            for block in self.blocks:
                block.trainable = [unit for unit in block.units if unit.trainable]

    def gradient_dtype(self, unit: FlatUnit) -> torch.dtype:
        return self.settings.reduce_dtype or unit.dtype


class _Ending:
    """The callback of a backward. Torch drops it without a call when the backward raises."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.called = False

    def __call__(self) -> None:
        self.called = True
        self.model.finish_backward()

    def __del__(self) -> None:
        if not self.called:
            try:
                self.model.backward_failed()
            except Exception as failure:  # an exception cannot leave __del__
                self.model.deferred_failure = failure
