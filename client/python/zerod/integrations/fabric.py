# SPDX-License-Identifier: Apache-2.0
"""A strategy for lightning's Fabric, and the parts that it shares with the Trainer's. Tried with lightning 2.5 and 2.6.

The processes and samplers are those of Fabric's DDPStrategy, without DistributedDataParallel. Checkpoints have whole tensors,
like those of one process. All ranks take part in making them, and rank 0 writes.
"""
from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
from lightning.fabric.strategies import DDPStrategy
from lightning.fabric.strategies.strategy import _BackwardSyncControl
from torch import nn

from ..torch import api, state, whole
from ..torch.sharded import part_of
from .accelerate import bare, is_sharded, owner_of


def name_rank(strategy: Any) -> None:
    """Sets the rank for shard(), because lightning's own launcher and Slurm do not set the variables of torchrun."""
    os.environ.update(RANK=str(strategy.global_rank), WORLD_SIZE=str(strategy.world_size), LOCAL_RANK=str(strategy.local_rank))


def sharded_in(module: nn.Module) -> list[nn.Module]:
    """The sharded modules in it. ValueError if there is none, or if a parameter outside of them is trained."""
    found = [each for each in module.modules() if api.is_sharded(each)]
    if not found:
        raise ValueError(f"no module of {type(module).__name__} is sharded: call zerod.torch.shard() in configure_model(), or before "
                         "fabric.setup()")
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and part_of(parameter) is None:
            raise ValueError(f"{name} of {type(module).__name__} is trained, but not sharded, so its gradients would not be summed: shard "
                             "a module that contains it")
    return found


def no_sync(module: nn.Module) -> ExitStack:
    """zerod.torch.no_sync() of all sharded modules in it."""
    with ExitStack() as stack:
        for each in sharded_in(module):
            stack.enter_context(api.no_sync(each))
        return stack.pop_all()


def optimizer_state(optimizer: Any) -> dict[str, Any]:
    """The state with whole tensors. If the optimizer steps sharded parameters, every rank must call it."""
    return state.optimizer_state(owner_of(optimizer), bare(optimizer), full=True) if is_sharded(optimizer) else optimizer.state_dict()


def load_optimizer_state(optimizer: Any, saved: dict[str, Any]) -> None:
    """Each rank copies its part of the whole tensors."""
    if is_sharded(optimizer):
        state.load_optimizer_state(owner_of(optimizer), bare(optimizer), saved)
    else:
        optimizer.load_state_dict(saved)


class _NoSync(_BackwardSyncControl):
    def no_backward_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        return no_sync(module) if enabled else nullcontext()


class ZerodStrategy(DDPStrategy):
    """Fabric(strategy=ZerodStrategy()), for modules that zerod.torch.shard() returned after fabric.launch()."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._backward_sync_control = _NoSync()  # type: ignore[assignment]

    def setup_environment(self) -> None:
        super().setup_environment()
        name_rank(self)

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        sharded_in(module)
        return module

    def get_module_state_dict(self, module: nn.Module) -> dict[str, Any]:
        with whole.states_on_cpu(self.is_global_zero):
            return module.state_dict()

    def get_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return optimizer_state(optimizer)

    def load_checkpoint(self, path: Any, state: Any = None, *args: Any, **kwargs: Any) -> dict[str, Any]:
        given = state.values() if isinstance(state, dict) else (state,)
        optimizers = [each for each in given if isinstance(each, torch.optim.Optimizer) and is_sharded(each)]
        for each in optimizers:
            each.load_state_dict = partial(load_optimizer_state, each)  # type: ignore[method-assign]
        try:
            return super().load_checkpoint(path, state, *args, **kwargs)
        finally:
            for each in optimizers:
                del each.load_state_dict
