# SPDX-License-Identifier: Apache-2.0
"""Progress and summary."""
from __future__ import annotations

import math
import time
from typing import Any, Optional

from .common import MIB, Bar, memory_bar
from .model import Plan, write
from .ranks import Outcome


class Progress(Bar):
    """The progress of one run. `seconds` are since its first step began."""

    def __init__(self, plan: Plan, title: str, quiet: bool) -> None:
        super().__init__(title, plan.steps, quiet)
        self.plan = plan
        self.began = self.seconds = 0.0

    def heard(self, outcome: Outcome) -> None:
        """Called when a rank, or the unsharded run, has finished a step, and once before the first step."""
        now, step = time.monotonic(), outcome.step
        self.began = self.began or now
        if step == self.step:
            return
        self.seconds = now - self.began
        if not self.due(step):
            return
        text = f"loss {outcome.losses[step - 1].mean():.4f} {tokens_per_second(self.plan, step, self.seconds):6.0f} tokens/s"
        if outcome.states:
            live = max(state.live_bytes for state in outcome.states)
            text += f", live {live / MIB:.2f} of {self.plan.unsharded_bytes / MIB:.2f} MiB"
        self.show(text)


def tokens_per_second(plan: Plan, steps: int, seconds: float) -> float:
    return steps * plan.ranks * plan.batch / seconds if seconds else 0.0


def figures(plan: Plan, outcome: Outcome, seconds: float, same: Optional[tuple[bool, bool]]) -> dict[str, Any]:
    """The figures of a sharded run. `same`: whether (losses, parameters) equal those of the unsharded run; None without one."""
    return {
        "schema": 2, "ranks": plan.ranks, "steps": plan.steps, "batch": plan.batch, "seed": plan.seed,
        "parameters": plan.numel, "text_bytes": len(plan.tokens),
        "loss_first": outcome.losses[0].mean(), "loss_last": outcome.losses[-1].mean(),
        "skipped_steps": outcome.states[0].skipped, "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens_per_second(plan, plan.steps, seconds)),
        "gathers": sum(state.gathers for state in outcome.states), "unsharded_bytes": plan.unsharded_bytes,
        "peak_device_bytes": max(state.peak_bytes for state in outcome.states),
        **dict(zip(("same_losses", "same_parameters"), same or ())),
    }


def show(plan: Plan, outcome: Outcome, shown: dict[str, Any]) -> None:
    """Prints the figures, text of the model before and after the training, and a bar of each rank's device."""
    lines = {
        "text": f"{len(plan.tokens)} bytes, {len(plan.alphabet)} of them distinct",
        "model": f"{plan.numel} parameters in {len(plan.layers)} layers",
        "run": f"{plan.ranks} ranks, {plan.steps} steps of {plan.ranks} x {plan.batch} samples",
        "loss": f"{shown['loss_first']:.4f} -> {shown['loss_last']:.4f} (of {math.log(len(plan.alphabet)):.4f} by guessing)",
        "writes before": write(plan, plan.initial()),
        "writes after": write(plan, outcome.values),
        "time": f"{shown['seconds']:.1f} s, {shown['tokens_per_second']} tokens/s",
        "gathers": shown["gathers"],
    }
    if "same_losses" in shown:
        losses, parameters = ("" if shown[key] else " DIFFER" for key in ("same_losses", "same_parameters"))
        lines["equal to unsharded"] = f"{'NO' if losses or parameters else 'yes'}, bit for bit " \
            f"({plan.steps * plan.ranks} losses{losses}, {plan.numel} parameters{parameters})"
    if shown["skipped_steps"]:
        lines["overflow"] = f"{shown['skipped_steps']} steps without an update"
    print("", *(f"  {name:<20} {text}" for name, text in lines.items()), sep="\n")
    print(f"\n  memory at its peak   of {plan.unsharded_bytes / MIB:.2f} MiB that an unsharded process needs")
    for rank, state in enumerate(outcome.states):
        shards = sum(each.shard_bytes for each in outcome.states if each.device == state.device)
        parts = [("P", shards), ("A", 3 * shards), ("+", state.peak_bytes)]
        print(f"  {f'device of rank {rank}':<20} {memory_bar(parts, plan.unsharded_bytes)}")
    print("  P: shards of the parameters, A: of Adam's moments, +: gathered layers and gradients, for a moment", flush=True)
