# SPDX-License-Identifier: Apache-2.0
"""What users call: shard() and no_sync()."""
from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Optional

import torch
from torch import nn

import zerod
from zerod import structs as s

from . import optimizer
from .environment import DTYPES, environment, job_name, rank_and_world
from .layout import Policy, check_same, plan
from .model import Model, Settings


def shard(module: nn.Module, policy: Policy = None, param_dtype: Optional[torch.dtype] = None,
          reduce_dtype: Optional[torch.dtype] = None, persist_below: int = 0, prefetch: int = 1, slots: bool = False,
          stage: int = 3, op: str = "mean", job: Optional[str] = None, name: Optional[str] = None,
          deadline_ms: int = 0) -> nn.Module:
    """Shards the module's parameters over all ranks, in place, and returns it. Every rank calls it.

    policy: which modules are gathered as a whole: classes, names, modules, or a function of (name, module). None:
    every module in a ModuleList or Sequential. param_dtype: what is gathered and computed with; the optimizer then
    works on masters of the parameters' own dtype. reduce_dtype: of gradients on their way. persist_below: units of
    fewer elements stay gathered. prefetch: how many blocks are gathered ahead. stage: 3; 2 keeps the weights between
    forward and backward. op: "mean" or "sum" over ranks.

    All ranks get the weights of rank 0. Mismatch where ranks have different models; ConnectionFailed without a
    daemon; OutOfMemory with the sizes.
    """
    if stage not in (2, 3):
        raise ValueError(f"stage is {stage}: 2 or 3 are possible")
    if getattr(module, "_zerod_model", None) is not None:
        raise ValueError("the module is sharded already")
    settings = Settings(reduce_dtype, persist_below, prefetch, slots, stage, s.ReduceOp[op.upper()])
    plans = plan(module, policy, param_dtype)
    env = environment()
    for dtype in {unit.dtype for block in plans for unit in block.units}:
        if dtype not in DTYPES:
            raise ValueError(f"parameters of {dtype} cannot be sharded")
    rank, world = rank_and_world()
    group = env.client.join(job=job or job_name(), group=name or f"model{env.models}", world_size=world, rank=rank,
                            deadline_ms=deadline_ms, **env.place(rank))
    env.models += 1
    check_same(group, plans)
    optimizer.register()
    model = Model(module, plans, env, group, settings)
    object.__setattr__(module, "_zerod_model", model)
    return module


def model_of(module: nn.Module) -> Model:
    """ValueError for a module that shard() has not seen."""
    found = getattr(module, "_zerod_model", None)
    if found is None:
        raise ValueError(f"{type(module).__name__} is not sharded: zerod.torch.shard() has not returned it")
    return found


@contextmanager
def no_sync(module: nn.Module) -> Iterator[None]:
    """Backwards inside keep their gradients on this rank, whole; the next one outside reduces the sum."""
    model = model_of(module)
    before, model.sync = model.sync, False
    try:
        yield
    finally:
        model.sync = before
