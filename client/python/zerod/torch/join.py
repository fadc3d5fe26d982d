# SPDX-License-Identifier: Apache-2.0
"""Ranks that leave the training loop after different numbers of steps: join().

Before the first backward of each step all ranks agree on whether any rank is still in the loop. A rank that has left it then
skips that step's backwards, and steps. The loop ends for all ranks when all have left it, or when one fails. Every rank then
abandons a window, because ranks that were about to begin a backward also do.
"""
from __future__ import annotations

import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from torch import nn
from torch.optim import Optimizer

import zerod

from .steps import StepAbandoned, StepTorn

if TYPE_CHECKING:
    from .model import Model


class Join:
    """join() of one model, on one rank."""

    def __init__(self, model: "Model", module: nn.Module, steppers: Sequence[Any], step: Optional[Callable[[], Any]],
                 backwards: int) -> None:
        if not steppers:
            raise ValueError("join() without an optimizer: give those that the loop steps, and its schedulers")
        for other in model.environment.sharded:
            if other.gradients.announce is not None:
                raise NotImplementedError("join() inside of another one: ranks that have left the loop follow one model")
        self.model, self.module, self.steppers, self.step, self.backwards = model, module, steppers, step, backwards
        self.over = model.gradients.alone  # no other rank takes part
        if not self.over:
            model.gradients.announce = self._announce

    # ---- In the loop ----

    def _announce(self, raises: bool) -> None:
        """Called when a window begins on this rank."""
        failure = self._agree(inside=True)[1]
        if failure is not None and raises:
            raise failure

    def _agree(self, inside: bool, failed: int = 0) -> "tuple[bool, Optional[Exception]]":
        """Returns whether any rank is in the loop, and the reason why the loop ends for all ranks.

        failed: 1 + the number of a rank whose exception leaves the loop.
        """
        context, replicas = self.model.context, self.model.replicas
        rates = [float(group.get("lr", 0)) for each in self.steppers for group in getattr(each, "param_groups", ())]
        digest = zlib.crc32(repr(rates).encode())
        values = [int(inside), failed, digest, -digest, 0]  # an odd number, as in all agreements of this package
        told = [-int(value) for value in context.agree([-float(value) for value in values], zerod.AgreeOp.MIN)]  # the maxima
        if replicas is not None:
            told = replicas.exchange(told)
        some, failed, high, low, _ = told
        failure: Optional[Exception] = None
        if failed:
            failure = StepAbandoned(failed - 1, "has left the loop inside of join() by an exception")
        elif high != -low:
            failure = RuntimeError(f"join(): ranks have different learning rates, this one {rates}: give the scheduler that the loop "
                                   "steps as well, as in join(model, optimizer, scheduler)")
        if failure is not None or not some:
            self._end()
        return bool(some), failure

    def _end(self) -> None:
        self.over = True
        self.model.gradients.announce = None

    # ---- After it ----

    def follow(self) -> None:
        """Called when this rank has left the loop: it takes part in the others' steps."""
        model, gradients = self.model, self.model.gradients
        if self.over:
            return
        model.settle()
        if gradients.window or gradients.local:
            raise RuntimeError("the loop inside of join() has ended between a backward and its step: step, or call abandon(model)")
        gradients.announce = None
        torn: Optional[StepTorn] = None
        while True:
            some, failure = self._agree(inside=False)
            if failure is not None:
                gradients.abandon()
                raise torn or failure
            if not some:
                if torn is not None:
                    raise torn
                return
            self.module.zero_grad()
            for each in self.steppers:
                if isinstance(each, Optimizer):
                    each.zero_grad()
            try:
                for _ in range(self.backwards):
                    model.skip()
                self._step()
            except StepAbandoned:  # on all ranks: those in the loop continue, or leave it
                pass
            except StepTorn as other:
                torn = other

    def _step(self) -> None:
        if self.step is not None:
            self.step()
        else:
            for each in self.steppers:
                each.step()
        if self.model.gradients.window:
            raise RuntimeError("join(): neither the optimizers that it was given nor its step= step the model")

    def fail(self, failure: BaseException) -> None:
        """Called for an exception that leaves the loop, or the steps after it. The other ranks leave the loop with the number of
        the first such rank."""
        if self.over:
            return
        self.model.gradients.announce = None
        with suppress(Exception):
            self.model.settle()
        with suppress(Exception):
            if self.model.gradients.window:
                self.model.gradients.abandon()
            self.model.settle()
        with suppress(zerod.ZerodError):
            context, replicas = self.model.context, self.model.replicas
            own = context.rank if replicas is None else replicas.members[context.rank]
            self._agree(inside=False, failed=1 + (failure.rank if isinstance(failure, (StepAbandoned, StepTorn)) else own))
            self.model.gradients.abandon()
        self._end()
