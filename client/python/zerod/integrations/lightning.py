# SPDX-License-Identifier: Apache-2.0
"""A strategy for lightning's Trainer. Tried with lightning 2.5 and 2.6.

The processes and samplers are those of its DDPStrategy, without DistributedDataParallel. Checkpoints have whole tensors, like
those of one process. All ranks take part in making them, and rank 0 writes.
"""
from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy

from .accelerate import check_batches
from .fabric import load_optimizer_state, name_rank, no_sync, optimizer_state, sharded_in


class ZerodStrategy(DDPStrategy):
    """Trainer(strategy=ZerodStrategy()), for a LightningModule whose configure_model() calls zerod.torch.shard()."""

    strategy_name = "zerod"

    def setup_environment(self) -> None:
        super().setup_environment()
        name_rank(self)

    def configure_ddp(self) -> None:
        assert self.model is not None
        sharded_in(self.model)

    def on_train_start(self) -> None:
        super().on_train_start()
        assert self.lightning_module is not None
        trainer, batches = self.lightning_module.trainer, [0] * self.world_size
        torch.distributed.all_gather_object(batches, trainer.num_training_batches)
        if not 0 < trainer.max_steps * trainer.accumulate_grad_batches <= min(batches):  # it ends before an epoch does
            check_batches(batches)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        assert self.lightning_module is not None
        with self.precision_plugin.train_step_context():
            return self.lightning_module.training_step(*args, **kwargs)

    def block_backward_sync(self) -> AbstractContextManager[Any]:  # type: ignore[override]
        assert self.lightning_module is not None
        return no_sync(self.lightning_module)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return optimizer_state(optimizer)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"]):
            load_optimizer_state(optimizer, saved)
