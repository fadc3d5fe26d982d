# SPDX-License-Identifier: Apache-2.0
"""Optimizers with float32 masters in two halves (halves.py), which update a unit with one kernel.

A unit's state is two flat tensors. The values that `state` has for each parameter are ranges of them, so that checkpoints are
those of torch.optim. In a durable job the state is where durable.py stores it, and the masters are a float32 unit.
docs/optimizer.md in the repository has the formulas.
"""
from __future__ import annotations

import os
from ctypes import pointer
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, Callable, Iterator, Optional

import torch
from torch import nn

from zerod import structs as s

from .context import Context
from .fetcher import Worker
from .gradients import scaled_values
from .halves import Halves
from .overlap import UnitOptimizer, install
from .sharded import ShardedTensor, as_plain, part_of
from .unit import FlatUnit

_PIECE = 1 << 20  # elements that one thread of the CPU updates at once, at least
_thread_count = torch.get_num_threads
_STATE = {"exp_avg": "m", "momentum_buffer": "m", "exp_avg_sq": "v"}  # by torch's names


class _Run:
    """Neighbours of a unit, up to member `index`, with one parameter group and one step: elements first to last. Each of
    `addresses` is that of contiguous float32 values: gradients, which are to be multiplied by `scale`, and the state."""

    def __init__(self, unit: FlatUnit, index: int, first: int, last: int, addresses: dict[str, int], group: int, step: int,
                 scale: Optional[torch.Tensor]) -> None:
        self.unit, self.index, self.first, self.last = unit, index, first, last
        self.addresses, self.group, self.step, self.scale = addresses, group, step, scale

    def pieces(self, numel: int) -> "Iterator[_Run]":
        for first in range(self.first, self.last, numel):
            yield _Run(self.unit, self.index, first, min(first + numel, self.last), self._from(first), self.group, self.step, self.scale)

    def _from(self, element: int) -> dict[str, int]:
        return {name: address + 4 * (element - self.first) for name, address in self.addresses.items()}

    def takes(self, other: "_Run") -> bool:
        """Whether it can include the next one. Between two members is padding, whose gradients are zeros in a sum's memory. In a
        durable job the distances between the members' states differ from those between the members."""
        context = self.unit.context
        follows = other.unit is self.unit and other.index == self.index + 1 and context.durable is None and \
            (other.first == self.last or context.world > 1) and \
            (other.group, other.step) == (self.group, self.step) and other.scale is self.scale and \
            other.addresses == self._from(other.first)
        if follows:
            self.index, self.last = other.index, other.last
        return follows


def _update(parts: list[s.OptimizerPart], numbers: s.OptimizerStep, context: Context) -> None:
    for begin in range(0, len(parts), s.MOST_PARTS):
        context.group.optimizer_update(parts[begin:begin + s.MOST_PARTS], numbers, context.stream())


def _update_by_cpu(parts: list[s.OptimizerPart], numbers: s.OptimizerStep, context: Context) -> None:
    """In host memory, with as many threads as torch's own kernels use. No thread uses the memory when this returns or raises."""
    ended: "list[Optional[BaseException]]" = []
    wakes: "SimpleQueue[None]" = SimpleQueue()
    raised: Optional[BaseException] = None

    def run(some: list[s.OptimizerPart]) -> None:
        failure: Optional[BaseException] = None
        try:
            for begin in range(0, len(some), s.MOST_PARTS):
                context.group.optimizer_update(some[begin:begin + s.MOST_PARTS], numbers)
        except BaseException as error:
            failure = error
        ended.append(failure)
        wakes.put(None)

    width = _thread_count()
    shares = [parts[number::width] for number in range(min(width, len(parts)))]
    for worker, share in zip(_workers(os.getpid(), width - 1), shares[1:]):
        worker.put(partial(run, share))
    if shares:
        run(shares[0])
    while len(ended) < len(shares):
        try:
            wakes.get()
        except BaseException as error:  # a signal handler's
            raised = error
    for failure in (raised, *ended):
        if failure is not None:
            raise failure


@cache
def _workers(_: int, count: int) -> list[Worker]:
    """The threads of this process. A forked process has none."""
    return [Worker("zerod-adam", torch.device("cpu")) for _ in range(count)]


class _Optimizer(UnitOptimizer):
    """Optimizes parameters of sharded models. `names`: of the state, as in torch; `counts`: whether it counts steps."""

    rule: s.Rule
    names: tuple[str, ...]
    counts = True

    def __init__(self, params: Any, defaults: dict[str, Any], in_backward: bool) -> None:
        self.forget()
        super().__init__(params, defaults)
        if in_backward:
            models = {parameter.part.owner for group in self.param_groups for parameter in group["params"]}
            if len(models) != 1:
                raise ValueError(f"in_backward=True with parameters of {len(models)} models: one optimizer for each")
            install(models.pop(), self)

    def forget(self) -> None:
        self._ranges: dict[FlatUnit, list[dict[str, ShardedTensor]]] = {}  # the state of each member

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():  # a checkpoint can be older than an argument
                group.setdefault(name, value)
        self.forget()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        try:
            for parameter in self.param_groups[-1]["params"]:
                self._check(parameter)
        except Exception:
            self.param_groups.pop()
            raise

    def _check(self, parameter: nn.Parameter) -> None:
        part, name = part_of(parameter), type(self).__name__
        if part is None:
            raise ValueError(f"zerod.torch.{name} is for the parameters of a sharded model, and one of shape {tuple(parameter.shape)} "
                             f"is none: call shard() first, or use torch.optim.{name}, as for ignored_params")
        unit = part.place[0]
        if unit in self._ranges:
            return
        if unit.source_dtype != torch.float32 or unit.dtype not in (torch.float32, torch.bfloat16):
            raise NotImplementedError(f"zerod.torch.{name}: {part.name} is {str(unit.source_dtype)[6:]}, and computed with as "
                                      f"{str(unit.dtype)[6:]}. Masters are float32 here, and weights float32 or bfloat16: use "
                                      f"torch.optim.{name}")

    @torch.no_grad()
    def step(self, closure: Optional[Callable] = None) -> Any:
        """The hooks of optimizer.py have run the closure and begun the units' update. They also publish it."""
        loss = None if closure is None else closure()
        shown: dict[Any, dict[FlatUnit, list[tuple[int, int, nn.Parameter]]]] = {}  # by model
        with as_plain():
            for number, group in enumerate(self.param_groups):
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._check(parameter)
                        unit, index = parameter.part.place
                        shown.setdefault(parameter.part.owner, {}).setdefault(unit, []).append((index, number, parameter))
            turns = [(model, some, list(model.steps.in_turn(some))) for model, some in shown.items()]
            for _, some, turn in turns:
                if turn:
                    self._check_numbers(turn[0][0], {number for each in some.values() for _, number, _ in each}, self.param_groups)
            for model, some, turn in turns:
                for units in turn:
                    self._apply([(unit, *each, *scaled_values(each[2].grad)) for unit in units for each in some[unit]], self.param_groups)
                    model.steps.after_units([unit for unit in units if len(some[unit]) == sum(unit.wants)])
        return loss

    def update(self, found: "list[tuple[FlatUnit, int, int, nn.Parameter, Optional[torch.Tensor]]]",
               groups: "list[dict[str, Any]]", terms: Optional[s.Terms] = None) -> None:
        """One step of parameters (unit, index, group, parameter, gradient) whose units are under update."""
        self._check_numbers(found[0][0], {number for _, _, number, _, _ in found}, groups)
        self._apply([(*each, None) for each in found], groups, terms)

    def _check_numbers(self, unit: FlatUnit, numbers: set[int], groups: "list[dict[str, Any]]") -> None:
        """Raises for invalid numbers on all ranks, before a weight changes, even if this rank has no elements."""
        for number in numbers:
            _update([s.OptimizerPart(unit=unit.written.handle)], self._numbers(groups[number], 1), unit.context)

    def _apply(self, found: "list[tuple[FlatUnit, int, int, nn.Parameter, Optional[torch.Tensor], Optional[torch.Tensor]]]",
               groups: "list[dict[str, Any]]", terms: Optional[s.Terms] = None) -> None:
        context = found[0][0].context
        runs: list[_Run] = []
        order = {unit: position for position, unit in enumerate(dict.fromkeys(unit for unit, *_ in found))}
        for unit in order:
            self.open(unit)
        for unit, index, group, parameter, gradient, scale in sorted(found, key=lambda each: (order[each[0]], each[1])):
            first, last = unit.bounds(unit.members[index])
            step = self._count(unit, index, parameter)
            unit.parts[index].writes += 1
            addresses = {_STATE[name]: values.writable_local().data_ptr() for name, values in self._ranges[unit][index].items()}
            if gradient is not None:
                addresses["values"] = gradient.data_ptr()
            run = _Run(unit, index, first, last, addresses, group, step, scale)
            if first < last and not (runs and runs[-1].takes(run)):
                runs.append(run)
        if self.counts:
            torch._foreach_add_([self.state[parameter]["step"] for _, _, _, parameter, _, _ in found], 1)
        alike: dict[tuple[int, int, int], list[_Run]] = {}
        for run in runs:
            alike.setdefault((run.group, run.step, id(run.scale)), []).append(run)
        for (group, step, _), some in alike.items():
            numbers, scale = self._numbers(groups[group], step), some[0].scale
            numbers.scale = None if scale is None else scale.data_ptr()
            on_host = [run for run in some if run.unit.placement.optimizer_on_host]
            numel = max(_PIECE, sum(run.last - run.first for run in on_host) // (4 * _thread_count()))
            _update([self._part(run, terms) for run in some if not run.unit.placement.optimizer_on_host], numbers, context)
            _update_by_cpu([self._part(piece) for run in on_host for piece in run.pieces(numel)], numbers, context)

    def _part(self, run: _Run, terms: Optional[s.Terms] = None) -> s.OptimizerPart:
        unit = run.unit
        low = None if unit.halves is None else unit.halves.low.data_ptr() + 2 * run.first
        return s.OptimizerPart(unit=unit.written.handle, offset_numel=run.first, numel=run.last - run.first, low=low,
                               terms=None if terms is None else pointer(terms), **run.addresses)

    def _numbers(self, group: dict[str, Any], step: int) -> s.OptimizerStep:
        raise NotImplementedError

    # ---- State ----

    def open(self, unit: FlatUnit) -> None:
        """The unit, which is under update, then has a state, and its masters are in halves."""
        if unit.halves is not None:
            unit.halves.close(writes=True)
        elif unit.dtype != unit.source_dtype and unit.context.durable is None:
            Halves(unit)
        if unit not in self._ranges:
            flat = {name: torch.zeros(unit.shard.true_numel, dtype=torch.float32, device=unit.blank.device) for name in self.names}
            self._ranges[unit] = [{name: ShardedTensor(values[slice(*unit.bounds(member))], part) for name, values in flat.items()}
                                  for member, part in zip(unit.members, unit.parts)]

    def _count(self, unit: FlatUnit, index: int, parameter: nn.Parameter) -> int:
        """The number of the parameter's next step. Its state is then in the unit's memory. A checkpoint's values are copied."""
        state, ranges = self.state[parameter], self._ranges[unit][index]
        first_step = not state
        for name, own in ranges.items():
            known = state.get(name)
            if known is None:  # the first step, or the program has cleared the state
                own.read_local().zero_()
            elif known is not own and unit.context.durable is not None and isinstance(known, ShardedTensor):
                own = ranges[name] = known  # the job's memory
            elif known is not own:
                values = known.read_local() if isinstance(known, ShardedTensor) else own.part.cut(known)
                own.write_local(values)
                if values.is_cuda:  # in the backward, another stream will use its memory again
                    values.record_stream(torch.cuda.current_stream(values.device))
            state[name] = own
        if not self.counts:
            return 1 if first_step else 2
        if first_step:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
        elif not isinstance(state["step"], torch.Tensor):  # torch's checkpoints before 1.12
            state["step"] = torch.tensor(float(state["step"]), device="cpu")
        return int(state["step"]) + 1


class _Adam(_Optimizer):
    names = ("exp_avg", "exp_avg_sq")

    def __init__(self, params: Any, lr: Any, betas: tuple[float, float], eps: float, weight_decay: float, maximize: bool,
                 in_backward: bool) -> None:
        if not (0 <= betas[0] < 1 and 0 <= betas[1] < 1 and eps >= 0 and weight_decay >= 0 and float(lr) >= 0):
            raise ValueError(f"lr={lr}, betas={betas}, eps={eps}, weight_decay={weight_decay}: betas are below 1, and none is negative")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": False,
                                  "maximize": maximize}, in_backward)

    def _numbers(self, group: dict[str, Any], step: int) -> s.OptimizerStep:
        if group.get("amsgrad"):
            raise NotImplementedError(f"zerod.torch.{type(self).__name__}: amsgrad is not supported: use torch.optim")
        return s.OptimizerStep(rule=self.rule, flags=s.OptimizerFlags.MAXIMIZE if group["maximize"] else 0, step=step,
                               lr=float(group["lr"]), weight_decay=group["weight_decay"], beta1=group["betas"][0],
                               beta2=group["betas"][1], eps=group["eps"])


class AdamW(_Adam):
    """torch.optim.AdamW for a sharded model, in 12 bytes per parameter in addition to the gradient: see docs/optimizer.md.

    params: parameters of models that shard() has sharded, or parameter groups. ValueError for others; NotImplementedError for
    other dtypes than float32 computed with as float32 or bfloat16. State and checkpoints are those of torch.optim.AdamW.
    in_backward: as in optimizer_in_backward(), so that the whole model's gradient never exists. Every rank constructs it.
    """

    rule = s.Rule.ADAMW

    def __init__(self, params: Any, lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, *, maximize: bool = False, in_backward: bool = False) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, maximize, in_backward)


class Adam(_Adam):
    """torch.optim.Adam for a sharded model: like AdamW, but the decay is added to the gradient."""

    rule = s.Rule.ADAM

    def __init__(self, params: Any, lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0, *, maximize: bool = False, in_backward: bool = False) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, maximize, in_backward)


class SGD(_Optimizer):
    """torch.optim.SGD with momentum for a sharded model: like AdamW, in 8 bytes per parameter in addition to the gradient.

    Without momentum torch.optim.SGD has no state, and can be used as well.
    """

    rule = s.Rule.SGD
    names = ("momentum_buffer",)
    counts = False

    def __init__(self, params: Any, lr: Any = 1e-3, momentum: float = 0.9, dampening: float = 0, weight_decay: float = 0,
                 nesterov: bool = False, *, maximize: bool = False, in_backward: bool = False) -> None:
        if not (momentum > 0 and weight_decay >= 0 and float(lr) >= 0):
            raise ValueError(f"lr={lr}, momentum={momentum}, weight_decay={weight_decay}: momentum is above 0, and none is negative")
        if nesterov and dampening != 0:
            raise ValueError("nesterov needs a dampening of 0")
        super().__init__(params, {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
                                  "nesterov": nesterov, "maximize": maximize}, in_backward)

    def _numbers(self, group: dict[str, Any], step: int) -> s.OptimizerStep:
        flags = (s.OptimizerFlags.MAXIMIZE if group["maximize"] else 0) | (s.OptimizerFlags.NESTEROV if group["nesterov"] else 0)
        return s.OptimizerStep(rule=self.rule, flags=flags, step=step, lr=float(group["lr"]), weight_decay=group["weight_decay"],
                               beta1=group["momentum"], dampening=group["dampening"])
