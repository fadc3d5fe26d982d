# SPDX-License-Identifier: Apache-2.0
"""The state that all parts of a sharded model share."""
from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

import zerod
from zerod import structs as s

from .durable import Durable
from .environment import MOST_UNIT_BYTES, Environment, agree, short_name
from .offload import Offload
from .replicas import Replicas


@dataclass
class Counts:
    """Counts since shard(), for summary()."""

    steps: int = 0
    backwards: int = 0
    abandoned: int = 0
    gathers: int = 0
    waited: int = 0  # gathers that were not prefetched
    unplanned: int = 0


@dataclass
class Settings:
    """The arguments of shard()."""

    reduce_dtype: Optional[torch.dtype] = None
    persist_below: int = 0
    prefetch: int = 1
    slots: bool = False
    stage: int = 3
    op: s.ReduceOp = s.ReduceOp.MEAN
    input_dtype: Optional[torch.dtype] = None  # to which blocks' floating inputs are cast
    output_dtype: Optional[torch.dtype] = None  # to which the module's floating outputs are cast


class Context:
    """The context of one model. `device`: of computation."""

    def __init__(self, environment: Environment, group: zerod.Group, settings: Settings, offload: Offload,
                 replicas: Optional[Replicas] = None, durable: Optional[Durable] = None) -> None:
        self.environment = environment
        self.client = environment.client
        self.device = environment.device
        self.group = group
        self.beside: Optional[zerod.Group] = None  # the group of share()
        self.rank, self.world = group.rank, group.world_size
        self.settings = settings
        self.offload = offload
        self.replicas = replicas
        self.durable = durable
        self.counts = Counts()
        self.gathered: Callable[[Any], torch.Tensor] = lambda unit: unit.buffer  # a unit's buffer, for an unpack hook
        self.in_place = False  # the gathered buffers are the shards
        self._passing = 0

    def stream(self) -> Optional[zerod.Stream]:
        return self.environment.stream()

    def agree(self, values: "list[float]", op: zerod.AgreeOp) -> "list[float]":
        return agree(self.group, op, values)

    def leave(self) -> None:
        """Called when the model is freed: frees the group's memory and the host memory."""
        with suppress(zerod.ZerodError):  # the daemon or the connection can have ended
            if self.beside is not None:
                self.beside.leave()
            if self.durable is None:
                self.group.leave()
            else:
                self.durable.leave()
            self.offload.free()

    def passing_group(self) -> zerod.Group:
        """The group for units that last for one call."""
        return self.group if self.durable is None else self.durable.passing_group()

    def passing_name(self, name: str) -> str:
        """A name for a unit that lasts for one call. It is new each time, because ranks unregister at different moments."""
        self._passing += 1
        return short_name(f"{name}:{self._passing}", MOST_UNIT_BYTES)
