# SPDX-License-Identifier: Apache-2.0
"""A strategy for lightning's Trainer. Tried with lightning 2.6.

The processes and samplers are those of its DDPStrategy, without DistributedDataParallel. Checkpoints hold whole tensors, as
those of one process do: all ranks take part in them, and rank 0 writes.
"""
from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from ..torch import api, state


def sharded_part(module: nn.Module) -> nn.Module:
    """The sharded module in a LightningModule. ValueError where there is none."""
    for each in module.modules():
        if api.is_sharded(each):
            return each
    raise ValueError(f"no module of {type(module).__name__} is sharded: call zerod.torch.shard() in configure_model()")


class ZerodStrategy(DDPStrategy):
    """Trainer(strategy=ZerodStrategy()), for a LightningModule whose configure_model() calls zerod.torch.shard()."""

    strategy_name = "zerod"

    def configure_ddp(self) -> None:
        assert self.model is not None
        sharded_part(self.model)

    def model_to_device(self) -> None:
        """shard() has put the parameters there; the rest of the LightningModule follows."""
        assert self.model is not None
        self.model.to(self.root_device)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        assert self.lightning_module is not None
        with self.precision_plugin.train_step_context():
            return self.lightning_module.training_step(*args, **kwargs)

    def block_backward_sync(self) -> AbstractContextManager[None]:  # type: ignore[override]
        assert self.lightning_module is not None
        return api.no_sync(sharded_part(self.lightning_module))

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        assert self.lightning_module is not None
        model = api.model_of(sharded_part(self.lightning_module))
        return state.optimizer_state(model, getattr(optimizer, "_optimizer", optimizer), full=True)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        assert self.lightning_module is not None
        model = api.model_of(sharded_part(self.lightning_module))
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"]):
            state.load_optimizer_state(model, optimizer, saved)
