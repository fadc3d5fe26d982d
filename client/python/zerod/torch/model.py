# SPDX-License-Identifier: Apache-2.0
"""A sharded model: its forwards and backwards.

Forward. A pre-hook of each block gathers it, sets the leaves, and prefetches the block that came next in the last forward. A hook
releases it. The outermost forward runs under the hooks of hooks.py.

Backward. An unpack hook, or a forward that runs again, holds a block. When all leaves of a unit have their last gradient, the
unit is submitted. Counters detect that. A forward without a graph will run again, in a backward (a reentrant checkpoint):
`block.pending`. A forward with a graph has one backward, in the task that belongs to it: the outermost one, or one nested in a
checkpoint's: `block.graphs`. Each task produces one gradient for each leaf: `unit.fired`. If the counters do not show the end of
a unit, `finish_backward` submits it. Torch calls that function when the outermost backward has ended, and it releases all blocks.
A backward that raises never ends: torch drops its callback, which then abandons the backward.

In place. At world size 1 the gathered buffers are the shards: a release frees no memory, and no address changes. From the second
forward on, a forward therefore holds all blocks, with one packet, until its backward has ended, and autograd saves the leaves
themselves. This does not apply if some units are in host memory, because a gather of those needs memory.
"""
from __future__ import annotations

import sys
import weakref
from functools import partial
from typing import Any, Optional, Sequence

import torch
from torch import nn
from torch.autograd import Variable

import zerod
from zerod import structs as s

from . import hooks, sharded, whole
from .block import Block, Use
from .context import Context
from .gradients import Gradients
from .kept import Kept
from .layout import BlockPlan
from .overlap import UnitOptimizer
from .pace import Pace
from .recovery import Recovery
from .rules import ViewOf
from .sharded import Part, ShardedWrite
from .steps import Steps
from .unit import FlatUnit, weakly
from .updates import Updates

_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_FORWARD, _KEPT, _BACKWARD = Use.FORWARD, Use.KEPT, Use.BACKWARD
_CALL = nn.Module._call_impl.__code__
_OPS = {"sum": zerod.AgreeOp.SUM, "max": zerod.AgreeOp.MAX, "min": zerod.AgreeOp.MIN}


def _flatten_nothing() -> None:
    """Replaces RNNBase.flatten_parameters(): cuDNN then copies the weights in each forward."""


class Model:
    """The state that shard() attaches to a module. It owns the module's sharded tensors."""

    def __init__(self, module: nn.Module, plans: list[BlockPlan], context: Context, recovery: Recovery,
                 ignored: dict[nn.Parameter, str]) -> None:
        self.module = weakref.ref(module)
        self.ignored = ignored  # parameters that are not sharded, with their names
        self.context = context
        self.recovery = recovery
        self.removable: list[Any] = []  # hooks of the module
        self.environment, self.client, self.group = context.environment, context.client, context.group
        self.rank, self.world, self.device = context.rank, context.world, context.device
        self.replicas, self.durable, self.offload = context.replicas, context.durable, context.offload
        self.settings, self.counts = context.settings, context.counts
        context.environment.sharded.add(self)  # from here on the model is taken apart when the daemon has ended
        self.device_index = context.environment.device_index(self.rank)
        self.prefetch = self.settings.prefetch if self.world > 1 or self.offload.shards else 0
        self.kept = Kept()
        self.updates = Updates(context, self.kept, self.release_kept)
        self.units = self.updates.units
        self.gradients = Gradients(context, self.updates)
        self.steps = Steps(context, self.updates, self.gradients)
        self.gradients.begin_step, self.gradients.finish_step = self.steps.begin, self.steps.finish
        context.gathered = weakly(self.backward_flat)
        self._leaves = weakref.finalize(self, context.leave)
        self._leaves.atexit = False  # the end of the connection does this
        self.outermost: Optional[Block] = None
        self.pushed = False
        self.failure: Optional[BaseException] = None
        self.deferred_failure: Optional[Exception] = None
        self.last_forward: Optional[Block] = None
        self.last_backward: Optional[Block] = None
        self.backward_blocks: list[Block] = []
        self.ending: Optional[weakref.ref[_Ending]] = None
        self.scope = 0
        self.refreeze = False
        self.saving: Any = None  # the last save_commit()
        self.shared: Any = None  # after share(): the group of the weights' names, and its arguments
        self.assigned: dict[Part, sharded.Assigned] = {}  # parameters' .data
        self.changed: list[tuple[nn.Module, str]] = []  # parameters and modules that were registered after shard()
        self.own_slots = 0
        self.holds_all = False  # in place: all blocks are held
        self.keeps_all = False  # and a backward may follow
        self.turning: tuple[Block, ...] = ()  # the blocks at the end of the last forward, with which its backward starts
        self.blocks = [Block(context, plan, i, self.kept) for i, plan in enumerate(plans)]
        for block in self.blocks[1:]:
            self.blocks[block.parent].has_blocks = True
        self._block_of: dict[FlatUnit, Block] = {}
        self._make_units(plans)
        for owner in module.modules():
            if isinstance(owner, nn.RNNBase):  # would move gathered weights into memory of its own, and leave them there
                owner.flatten_parameters = _flatten_nothing  # type: ignore[method-assign]
        for block in self.blocks:
            self._hook(block, block.module)

    @property
    def trainable(self) -> list[FlatUnit]:
        return self.updates.trainable

    def _make_units(self, plans: list[BlockPlan]) -> None:
        arrived = weakly(self.arrived)
        self.gradients.start(sum(len(unit.members) for plan in plans for unit in plan.units))
        for block, plan in zip(self.blocks, plans):
            for unit_plan in plan.units:
                numel = sum(member.numel for member in unit_plan.members)
                small = numel < self.settings.persist_below or self.settings.stage == 1
                flags = s.UnitFlags.PERSISTENT if small else 0
                unit = FlatUnit(self.context, plan.name, unit_plan, flags, self._slot(block, len(block.units)), arrived)
                unit.make_master()
                if unit.trainable:
                    unit.host_gradient()
                if self.durable is None or not self.durable.adopts:
                    self.updates.fill(unit, [member.parameter for member in unit_plan.members])
                block.units.append(unit)
                self.units.append(unit)
                self._block_of[unit] = block
                unit.shard_parameters(self)
            block.finish()
        self.updates.follow()
        listed = [block for block in self.blocks[1:] if not block.single] or self.blocks
        self.gradients.slot_numel = max((unit.shard.padded_numel for block in listed for unit in block.units), default=0)
        if (self.world > 1 or self.offload.shards) and not self.environment.host:
            pace = Pace(max(block.nbytes for block in listed))
            for block in self.blocks:
                block.pace = pace
        self.gradients.number()
        if self.durable is not None:
            self.durable.attach(self.units)

    def _slot(self, block: Block, index: int) -> int:
        """The slot of a block's unit. Blocks of the root alternate. Others, and those of stage 1, have their own slot."""
        if not self.settings.slots:
            return s.NO_SLOT
        turns, most = self.settings.prefetch + 2, 4
        turn = block.index and block.parent == 0 and not block.has_blocks and not block.single and index < most
        if turn and self.settings.stage > 1:
            return 1 + block.index % turns * most + index
        self.own_slots += 1
        slot = turns * most + self.own_slots
        return slot if slot <= 4096 else s.NO_SLOT

    def enter_by(self, part: nn.Module) -> None:
        """Calls of this part of the module are then also forwards of the whole, because it is used without the other modules."""
        root = self.blocks[0]
        if part not in root.entries:
            root.entries.append(part)
            self._hook(root, part)

    def _hook(self, block: Block, module: nn.Module) -> None:
        before, after = (torch.compiler.disable(partial(hook, block)) for hook in (self._pre_forward, self._post_forward))
        self.removable += [module.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
                           module.register_forward_hook(after, always_call=True)]
        if self.settings.input_dtype is not None:
            cast = torch.compiler.disable(partial(hooks.cast_inputs, self.settings.input_dtype))
            self.removable.append(module.register_forward_pre_hook(cast, prepend=True, with_kwargs=True))
        if self.settings.output_dtype is not None and not block.index:
            cast = torch.compiler.disable(partial(hooks.cast_outputs, self.settings.output_dtype))
            self.removable.append(module.register_forward_hook(cast))

    # ---- Forward ----

    def _pre_forward(self, block: Block, module: nn.Module, args: Any, kwargs: Any) -> Any:
        block.depth += 1
        if block.depth > 1:
            if _calls(block.entries) > 1:
                return None
            self._forget_forward()
            block.depth = 1
        task = _task()
        again = task != -1 and self.outermost is None  # in a backward
        if again:
            self.enter_backward()
        elif self.outermost is None:
            self._begin_forward(block)
        self._count(block, task)
        if self.context.in_place:
            self._hold_all()
            block.show_leaves()
            return None
        if again:
            block.raw = True
            self._hold_backward(block)
            block.show_leaves()
            bounded = torch.is_grad_enabled() and not hooks.ours_apply()
        else:
            last, self.last_forward = self.last_forward, block
            if last is not None and last is not block:
                last.next_forward = block
            self._acquire(block, _FORWARD, self._following(block, "next_forward"))
            block.show_leaves()
            if torch.is_grad_enabled() and not hooks.ours_apply():
                block.pushed = hooks.push()  # a program has pushed other hooks in between
            bounded = torch.is_grad_enabled() and (self.settings.slots or not hooks.ours_apply())
        return hooks.with_boundary(partial(self._passed, block), args, kwargs) if bounded else None

    def _count(self, block: Block, task: int) -> None:
        """Counts a forward: whether a graph of it will be run backward, and by which task."""
        if task != -1 and block.pending:
            block.pending -= 1
        if not torch.is_grad_enabled():
            block.pending += task == -1 and _in_function()
        elif task == -1 or not hooks.recomputes():
            block.graphs[task] = block.graphs.get(task, 0) + 1

    def _acquire(self, block: Block, use: int, ahead: tuple[Block, ...]) -> None:
        if self.settings.slots:
            for other in self.blocks:  # an unneeded prefetch would occupy a slot
                if other is not block and other not in ahead:
                    other.forget_ahead()
        block.acquire(use, ahead)

    def _hold_all(self) -> None:
        """In place: called before a forward, also before one that runs again in a backward."""
        if not self.holds_all:
            self.holds_all = True
            first, *others = self.blocks
            first.acquire(_KEPT, tuple(others))
            for other in others:
                other.acquire(_KEPT)

    def release_kept(self) -> None:
        """Releases the uses that a forward holds for its backward: an update begins, or the backward has ended."""
        held = [block for block in self.blocks if block.uses & _KEPT]
        self.holds_all = self.keeps_all = False
        if held:
            with self.client.corked():
                for block in held:
                    block.release(_KEPT)

    def _following(self, block: Block, direction: str) -> tuple[Block, ...]:
        """The blocks that came next last time, as many as are prefetched."""
        found: list[Block] = []
        while len(found) < self.prefetch:
            following = getattr(block, direction)
            if following is None or following in found or following.uses:
                break
            found.append(following)
            block = following
        return tuple(found)

    def _post_forward(self, block: Block, module: nn.Module, args: Any, output: Any) -> Any:
        if block.depth == 0:
            return None
        block.depth -= 1
        if block.depth:
            return None
        block.show_shards()
        _pop_hooks(block)
        if _task() != -1 and self.outermost is None:
            return None
        try:
            block.check_unwritten()
            if self.context.in_place:
                return hooks.without_views(output) if self.outermost is block else None
            copied = hooks.without_views(output)
            if self.settings.slots and torch.is_grad_enabled():
                for tensor in hooks.tensors_of(copied):
                    if tensor.requires_grad:
                        tensor.register_hook(partial(self._hold_raw, block))
            turns = self.settings.stage < 3 or block in self.turning
            if turns and torch.is_grad_enabled() and block.trainable and block.uses:
                block.uses |= _KEPT
            block.release(_FORWARD)
            return copied if copied is not output else None
        finally:
            if self.outermost is block:
                self._end_forward()

    def _hold_raw(self, block: Block, _: Optional[torch.Tensor] = None) -> None:
        """Holds the block in a backward that uses its weights directly. With slots, it is then in its slot again."""
        self.enter_backward()
        block.raw = True
        self._hold_backward(block)

    def _begin_forward(self, block: Block) -> None:
        self.settle(reads=not torch.is_grad_enabled())
        if self.changed:
            whole.check_registered(self.changed, self)
            self.changed.clear()
        self.outermost = block
        sharded.forwards += 1
        self.last_forward = None
        self.failure = sys.exc_info()[1]
        if not self.context.in_place and not self.offload.shards and not any(each.uses for each in self.blocks):
            self.context.in_place = any(unit.address == unit.shard.data for unit in self.units)
        self.pushed = not self.context.in_place and hooks.push()

    def _end_forward(self) -> None:
        self.outermost = None
        sharded.forwards -= 1
        _pop_hooks(self)
        self.end_scope()
        self.keeps_all = self.keeps_all or torch.is_grad_enabled()
        self._note_turn()
        if self.holds_all and not self.keeps_all:
            self.release_kept()
        for block in self.blocks:
            block.forget_ahead()
        failure = sys.exc_info()[1]
        if failure is not None and failure is not self.failure:
            self._forward_failed()

    def _note_turn(self) -> None:
        """Notes the root and the last block, and also the one before a head: a backward would gather them again at once."""
        last = self.last_forward
        if last is None or last in self.turning:
            return
        keeps_two = last.single and self.prefetch > 0  # not more than are held with a prefetched block
        before = [block for block in self.blocks if block.next_forward is last] if keeps_two else []
        self.turning = (self.blocks[0], last, *before[:1])

    def _forget_forward(self) -> None:
        """A KeyboardInterrupt has left a forward: torch does not run hooks then."""
        for block in self.blocks:
            block.depth = 0
            block.show_shards()
            _pop_hooks(block)
        _pop_hooks(self)
        if self.outermost is not None:
            self.outermost = None
            sharded.forwards -= 1
        self.end_scope()
        self._forward_failed()

    def _forward_failed(self) -> None:
        """An exception leaves the outermost forward: no rank's step may include this micro-batch."""
        self.release_kept()
        for block in self.blocks:
            block.release(_FORWARD)
            block.pending = 0
            block.graphs.clear()
        if torch.is_grad_enabled() and self.trainable:
            self.gradients.abandon()

    # ---- Unplanned use ----

    def leaf(self, part: Part) -> torch.Tensor:
        """The whole parameter, for code that no hook of a block has prepared.

        In the model's forward it is the leaf over the gathered buffer. Elsewhere it is a copy of the buffer, which can then be
        released.
        """
        unit, index = part.place
        block = self._block_of[unit]
        if self.steps.running:  # an optimizer, which has the masters; autograd records nothing
            return unit.members[index].parameter
        if self.updates.writing and torch.is_grad_enabled() and unit.wants[index] and _task() == -1:
            self.settle()
        if self.updates.writing or self.updates.updating:
            return self.weights(part).to(unit.dtype)
        if not block.uses:
            self.counts.unplanned += 1
            if self.outermost is None and _task() == -1:
                self.settle(reads=not torch.is_grad_enabled())
                self._use_unit(unit)
                copy = unit.leaves[index].clone()
                self.end_scope()
                return ViewOf.apply(copy, part)
            if self.outermost is None:
                self._hold_raw(block)
            else:
                self._use_unit(unit)
        if torch.is_grad_enabled() and not block.depth:
            block.graphs.setdefault(_task(), 1)
        return unit.leaves[index]

    def _use_unit(self, unit: FlatUnit) -> None:
        if unit.scope and unit.scope == self.scope:
            return
        stream = self.context.stream()
        if not self.scope:
            self.scope = self.group.forward_begin(0, stream)
        unit.place(self.environment.with_room(unit.unit.gather, stream, s.GatherOptions(scope=self.scope)))
        unit.scope = self.scope

    def end_scope(self) -> None:
        if not self.scope or self.outermost is not None:
            return
        scope, self.scope = self.scope, 0
        for unit in self.units:
            if unit.scope == scope:
                self.kept.keep(unit)
        self.client.forward_end(scope, False, self.context.stream())

    # ---- Backward ----

    @property
    def in_backward(self) -> bool:
        return self.ending is not None and self.ending() is not None

    def enter_backward(self) -> None:
        """Called by the first act of this model in a backward."""
        if self.in_backward:
            return
        ending = _Ending(self)
        self.ending = weakref.ref(ending)
        Variable._execution_engine.queue_callback(ending)
        self.last_backward = None
        if self.outermost is None:
            self.gradients.enter()

    def backward_flat(self, unit: FlatUnit) -> torch.Tensor:
        """The unit's gathered buffer, for an unpack hook."""
        block = self._block_of[unit]
        if _task() == -1:
            if not block.uses:
                self.counts.unplanned += 1
                self._use_unit(unit)  # a program reads a saved tensor
            return unit.flat(unit.address)
        if torch.is_grad_enabled() and not hooks.ours_apply():
            self.enter_backward()  # so that the other ranks are informed
            raise NotImplementedError("zerod.torch: backward with create_graph=True keeps views of gathered weights")
        node = _node()
        if not block.uses & _BACKWARD:
            self.enter_backward()
            self._hold_backward(block)
            self._release_passed(block, node)
        block.node = node
        return unit.flat(unit.address)

    def _hold_backward(self, block: Block) -> None:
        """Holds the block for the running backward, and prefetches the block that came next last time."""
        if block.uses & _BACKWARD:
            return
        last, self.last_backward = self.last_backward, block
        if last is not None and last is not block:
            last.next_backward = block
        self._acquire(block, _BACKWARD, self._following(block, "next_backward"))
        self.backward_blocks.append(block)

    def _release_backward(self, block: Block) -> None:
        if block.uses & _BACKWARD:
            block.raw = False
            block.node = None
            self.backward_blocks.remove(block)
            block.release(_BACKWARD | _KEPT)
        block.release(_KEPT)

    def _release_passed(self, block: Block, node: Any) -> None:
        """Releases blocks that wait for no gradient, when the backward has reached another block.

        A node can unpack weights of two blocks. Blocks of this node therefore remain.
        """
        for other in tuple(self.backward_blocks):
            if other is block or other.raw or other.node is node or other.node is None or other.depth:
                continue
            if not other.encloses(block) and all(unit.submitted for unit in other.trainable):
                self._release_backward(other)

    def _passed(self, block: Block) -> None:
        """Called when the backward of the block's module has ended."""
        if block.uses & _BACKWARD and block.raw and not block.depth:
            if all(unit.submitted or not unit.fired for unit in block.trainable):
                self._release_backward(block)

    def arrived(self, unit: FlatUnit, index: int) -> None:
        """Torch calls it when a leaf has its gradient of a task."""
        leaf = unit.leaves[index]
        gradient = leaf.grad
        if torch.is_grad_enabled() or self.outermost is not None or gradient is not None and gradient.layout is not torch.strided:
            self._refuse(unit, index)
        if self.ending is None:
            self.enter_backward()
        task, fired = _task(), unit.fired
        fired[task] = fired.get(task, 0) + 1
        if self.gradients.keeps:
            return self.gradients.keep(unit, index)
        if unit.submitted:
            leaf.grad = None
            raise RuntimeError(f"zerod.torch: a gradient of {unit.name} came when the unit had been handed over: one of its "
                               "forwards was not seen. Call the module, and not a function of it")
        if fired[task] == unit.expected and self._is_complete(unit):
            block = self._block_of[unit]
            with self.client.corked():  # the gradient and the release, in one packet
                self.gradients.submit(unit)
                if block.uses & _BACKWARD and not block.raw and len(block.trainable) == len(block.units):
                    if all(each.submitted for each in block.trainable):
                        self._release_backward(block)
            self.gradients.fetcher.start()

    def _refuse(self, unit: FlatUnit, index: int) -> None:
        unit.leaves[index].grad = None
        if torch.is_grad_enabled():
            raise NotImplementedError("zerod.torch: backward with create_graph=True: gradients of parameters have no graph")
        if self.outermost is not None:
            raise NotImplementedError("zerod.torch: backward() inside of the model's forward: use torch.autograd.grad() for the inputs")
        raise NotImplementedError(f"zerod.torch: the gradient of {unit.members[index].name} is sparse: construct the module with "
                                  "sparse=False")

    def _is_complete(self, unit: FlatUnit) -> bool:
        """Whether every graph of the block has produced all gradients, and no forward will run again."""
        block = self._block_of[unit]
        if block.pending:
            return False
        full = len(unit.fired)
        if full == 1 and len(block.graphs) == 1 and -1 in block.graphs:
            return True
        wanted = sum(count for task, count in block.graphs.items() if task != -1) + (-1 in block.graphs)
        return full >= wanted and all(count == unit.expected for count in unit.fired.values())

    def skip(self) -> None:
        """A backward in which no parameter has a gradient on this rank."""
        if self.outermost is not None or self.in_backward:
            raise RuntimeError("skip() in a forward or backward of the model: call it in place of both")
        self.settle()
        self.gradients.enter()
        self.finish_backward(skips=True)

    def finish_backward(self, skips: bool = False) -> None:
        """Torch calls it when the backward has ended."""
        self.ending = None
        try:
            self.gradients.end(skips)
        finally:
            self._release_all()
        self.counts.backwards += 1

    def finish_inside(self) -> None:
        """A backward inside of a forward has ended: torch.autograd.grad() for the inputs."""
        self.ending = None
        for block in tuple(self.backward_blocks):
            block.release(_BACKWARD)
        self.backward_blocks.clear()

    def _release_all(self) -> None:
        for block in tuple(self.backward_blocks):
            block.depth = 0
            self._release_backward(block)
        self.release_kept()
        for block in self.blocks:
            block.forget_ahead()
            block.pending = 0
            block.graphs.clear()
        for unit in self.trainable:
            unit.fired.clear()
            unit.submitted = False
        self.end_scope()
        self.kept.sweep()

    def backward_failed(self) -> None:
        """A backward raised: releases all that it held, and no rank makes its step."""
        self.ending = None
        for unit in self.trainable:
            for leaf in unit.leaves:
                leaf.grad = None
        try:
            self.gradients.abandon()
        finally:
            self._release_all()

    def settle(self, reads: bool = False) -> None:
        """Called before a forward: ends the remains of the last step or backward.

        reads: weights are only read. A step that a read of gradients has begun remains open. One rank alone can do that.
        """
        failure, self.deferred_failure = self.deferred_failure, None
        if failure is not None:
            raise failure
        for part, assigned in list(self.assigned.items()):
            if assigned.is_written():
                del self.assigned[part]
                raise ShardedWrite(f"x was written after {part.name}.data = x, which copies x to each rank's part: {part.name} has the "
                                   "former values. Assign x again")
        if not self.in_backward and (self.backward_blocks or self.gradients.reducing):
            self.backward_failed()
        self.end_scope()
        if not self.in_backward:
            self.steps.settle_overlap()
        if self.updates.updating or not reads:
            self.steps.finish()
        self.updates.end_writes()
        for unit in self.units:
            if unit.halves is not None and not self.in_backward:  # otherwise a thread can be stepping it
                unit.halves.close(writes=False)
        self.kept.sweep()
        if self.refreeze and not self.steps.open:
            self._follow_requires_grad()

    def _follow_requires_grad(self) -> None:
        """Parameters were frozen or unfrozen. Every rank does the same, but not inside a window of backwards."""
        keeps_any = self.gradients.keeps_any()
        for unit in self.units:
            if keeps_any or self.gradients.window and unit.summed_by_ranks:
                if unit.trainable != unit.wants_gradients():
                    raise zerod.errors.error(s.Status.STATE, f"all of unit {unit.name!r} is frozen or unfrozen between a backward and "
                                             "its step: call step() first")
        self.refreeze = False
        changed = [unit.follow_requires_grad() for unit in self.units]
        if any(changed):
            self.updates.follow()
            for block in self.blocks:
                block.follow()

    # ---- The end ----

    def take_apart(self) -> None:
        """Afterwards no tensor of the model is over the daemon's memory."""
        self._remove_hooks()
        self.recovery.take_apart(self.units)
        for optimizer in () if self.durable is None else self.durable.forget():
            if isinstance(optimizer, UnitOptimizer):
                optimizer.forget()
        module = self.module()
        if module is not None:
            object.__setattr__(module, "_zerod_recovery", self.recovery)

    def unshard(self) -> None:
        """Afterwards the parameters are plain ones, with whole values, and the daemon's memory is freed. Every rank calls it."""
        self.settle()
        values = [unit.split(whole.read(unit)) for unit in self.units]
        self.group.barrier()  # others read this rank's shards
        self._remove_hooks()
        for unit, parts in zip(self.units, values):
            unit.forget()
            unit.whole_parameters([part.clone() for part in parts])
        self._leaves()

    def _remove_hooks(self) -> None:
        for hook in self.removable:
            hook.remove()
        module = self.module()
        if module is not None:
            for owner in module.modules():
                whole.uninstall(owner)

    # ---- What its sharded tensors ask for ----

    def agree(self, values: Sequence[float], op: str) -> list[float]:
        """The "sum", "max" or "min" of each value across the ranks. Every rank calls it."""
        return self.steps.agree(list(values), _OPS[op])

    def overflow(self, parts: Sequence[Part], found: bool) -> bool:
        """Whether the gradients of these parameters overflow on any rank. `found`: on this rank. Every rank calls it."""
        return self.steps.overflow([part.place[0].members[part.place[1]].parameter for part in parts], found)

    gather = staticmethod(whole.gather)

    def weights(self, part: Part) -> torch.Tensor:
        """The whole parameter in its own dtype, in memory of torch."""
        unit, index = part.place
        if self.updates.writing or self.updates.updating:
            return whole.gather(part, unit.members[index].parameter.detach().read_local())
        self.settle(reads=True)
        return unit.split(whole.read(unit))[index].clone()

    def before_write(self, part: Part) -> None:
        """Called when this rank's part of the parameter is about to be written."""
        unit = part.place[0]
        if self.steps.open and unit in self.updates.published:
            self.updates.reopen(unit)
        if self.updates.writing or self.updates.updating or unit in self.gradients.fetcher.stepped:
            return
        if self.outermost is not None or self.in_backward:
            raise ShardedWrite(f"{part.name} is written in the model's forward or backward: the write would be lost. Write it "
                               "between two steps, or make it a buffer")
        if self.steps.open and unit.trainable:
            self.steps.begin_update()
        else:
            self.settle()
            self.updates.begin_writes()

    def set_requires_grad(self, part: Part, wanted: bool) -> None:
        unit, index = part.place
        self.refreeze = True
        if unit.wants[index]:  # a backward of an existing graph leaves a frozen one out, as with plain parameters
            unit.leaves[index].requires_grad_(wanted)


def _pop_hooks(owner: "Model | Block") -> None:
    if owner.pushed:
        owner.pushed = False
        hooks.pop()


def _calls(modules: Sequence[nn.Module]) -> int:
    """The number of calls of the modules that run in this thread."""
    found, frame = 0, sys._getframe(1)
    while frame is not None:
        found += frame.f_code is _CALL and frame.f_locals.get("self") in modules
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _in_function() -> bool:
    """Whether the forward of a torch.autograd.Function runs, for example a reentrant checkpoint's, not an evaluation."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_varnames[:1] not in ((), ("self",)) \
                and isinstance(frame.f_locals.get(code.co_varnames[0]), torch.autograd.function.FunctionCtx):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class _Ending:
    """The callback of a backward. If the backward raises, torch drops it without a call."""

    def __init__(self, model: Model) -> None:
        self.model = model
        inside = model.outermost is not None
        self.finish = model.finish_inside if inside else model.finish_backward
        self.fail = model.finish_inside if inside else model.backward_failed
        self.called = False

    def __call__(self) -> None:
        self.called = True
        self.finish()

    def __del__(self) -> None:
        if not self.called:
            try:
                self.fail()
            except Exception as failure:  # an exception cannot leave __del__
                self.model.deferred_failure = failure
