# SPDX-License-Identifier: Apache-2.0
"""A checkpoint engine of verl, with which rollouts load the weights of a training job. Tried with verl 0.9.

    actor_rollout_ref.rollout.checkpoint_engine.backend=zerod
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=zerod.verl
    actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.zerod={job: J, group: G}   # zerod.torch.share()'s result

Before each update of verl the actor calls zerod.torch.commit(model, global_steps + 1). The number is one higher, because verl's
first update has step 0, and a commit has at least step 1.
"""
from __future__ import annotations

from typing import Any, AsyncGenerator, Optional

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from .reader import Reader

DEADLINE_MS = 60000


@CheckpointEngineRegistry.register("zerod")
class ZerodCheckpointEngine(CheckpointEngine):
    """The engine of an actor, which does nothing, or of a rollout's worker. address: the arguments of Reader()."""

    def __init__(self, bucket_size: int, is_master: bool = False, **address: Any) -> None:
        self.address = address
        self.reader: Optional[Reader] = None

    def prepare(self) -> "dict[str, Any]":
        return {}

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int, metadata: "list[dict]") -> "tuple[dict, dict]":
        return {"reads": [False] * actor_wg_world_size}, {"reads": [True] * rollout_world_size}

    def init_process_group(self, reads: bool) -> None:
        self.finalize()  # the daemon can have been restarted
        if reads:
            self.reader = Reader(**self.address)

    def finalize(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader = None

    async def send_weights(self, weights: Any, global_steps: Optional[int] = None) -> None:
        """Does not read the weights, because that would gather them."""

    async def receive_weights(self, global_steps: Optional[int] = None) -> "AsyncGenerator[tuple[str, Any], None]":
        """(name, tensor) of the commit global_steps + 1. None: of the last commit. RuntimeError: the last commit is another one.
        Deadline: there is no commit.

        The actor must wait meanwhile. If the next update begins, this raises NotHeld.
        """
        if self.reader is None:
            raise RuntimeError("receive_weights() before init_process_group(reads=True)")
        committed = await self.reader.wait_async(deadline_ms=DEADLINE_MS)
        try:
            if global_steps is not None and committed.step != global_steps + 1:
                raise RuntimeError(f"verl's step is {global_steps}, and the last commit of job '{self.address['job']}' is of step "
                                   f"{committed.step}, not {global_steps + 1}")
            for pair in self.reader.tensors(committed):
                yield pair
        finally:
            self.reader.release()
