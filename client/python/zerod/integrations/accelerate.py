# SPDX-License-Identifier: Apache-2.0
"""accelerate.Accelerator with sharded modules. Tried with accelerate 1.10 to 1.15.

prepare() does not change a sharded module: it adds no DistributedDataParallel, and does not move it to a device. accumulate() and
no_sync() are those of zerod.torch. save_state() and load_state() store the optimizers' state in a folder of
torch.distributed.checkpoint, in which every rank writes its own slices, next to accelerate's files.
"""
from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Iterator, Sequence

from ..torch import api
from ..torch.sharded import part_of

FOLDER = "zerod"


def bare(optimizer: Any) -> Any:
    """The object without the wrappers of accelerate."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def is_sharded(optimizer: Any) -> bool:
    return any(part_of(parameter) is not None for group in bare(optimizer).param_groups for parameter in group["params"])


def owner_of(optimizer: Any) -> Any:
    """The sharded model whose parameters the optimizer steps. ValueError if there is none, or more than one."""
    owners = {part.owner for group in bare(optimizer).param_groups for parameter in group["params"]
              if (part := part_of(parameter)) is not None}
    if len(owners) != 1:
        raise ValueError(f"an optimizer of {len(owners)} sharded modules: its state cannot be saved")
    return owners.pop()


def module_of(models: Any, optimizer: Any) -> Any:
    """The module of the model. ValueError if it is not one of them."""
    owner = owner_of(optimizer)
    for module in models:
        if api.is_sharded(module) and api.model_of(module) is owner:
            return module
    raise ValueError("an optimizer of a sharded module that was not given to prepare(): its state cannot be saved")


def check_batches(batches: Sequence[Any]) -> None:
    """ValueError if ranks have different numbers of batches: one rank's loop would end before the others'."""
    if len(set(batches)) > 1:
        found = ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(batches))
        raise ValueError(f"ranks have different numbers of training batches: {found}. A rank with more of them would wait for the others: "
                         "give all ranks as many")


def install() -> None:
    """Harmless when repeated."""
    from accelerate.accelerator import Accelerator

    prepare, prepare_one = Accelerator.prepare, Accelerator.prepare_model
    save, load = Accelerator.save_state, Accelerator.load_state
    if hasattr(prepare, "_zerod"):
        return

    @wraps(prepare)
    def prepare_all(self: Any, *args: Any, **kwargs: Any) -> Any:
        way = getattr(self.distributed_type, "value", str(self.distributed_type))
        if os.environ.get("ACCELERATE_USE_FSDP") == "true":  # accelerate itself does not do this on the CPU
            way = "FSDP"
        if way in ("FSDP", "DEEPSPEED", "MEGATRON_LM") and any(map(api.is_sharded, args)):
            raise ValueError(f"accelerate is configured for {way}, and shard() has sharded the module already: leave out fsdp=, "
                             "deepspeed= or the configuration for it")
        return prepare(self, *args, **kwargs)

    @wraps(prepare_one)
    def prepare_model(self: Any, model: Any, device_placement: Any = None, evaluation_mode: bool = False) -> Any:
        if not api.is_sharded(model):
            return prepare_one(self, model, device_placement, evaluation_mode)
        made = prepare_one(self, model, False, True)
        object.__setattr__(made, "no_sync", partial(api.no_sync, model))  # accelerate reads this attribute
        return made

    @wraps(save)
    def save_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _without_sharded(self) as sharded:
            location = save(self, *args, **kwargs)
        for number, optimizer in enumerate(sharded):
            api.save(os.path.join(location, f"{FOLDER}_{number}"), module_of(self._models, optimizer), bare(optimizer))
        return location

    @wraps(load)
    def load_state(self: Any, input_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        with _without_sharded(self) as sharded:
            if sharded and input_dir is None:
                raise ValueError("load_state() of a sharded module needs the folder that save_state() returned")
            made = load(self, input_dir, *args, **kwargs)
        for number, optimizer in enumerate(sharded):
            api.load(os.path.join(input_dir, f"{FOLDER}_{number}"), module_of(self._models, optimizer), bare(optimizer))
        return made

    prepare_all._zerod = True  # type: ignore[attr-defined]
    Accelerator.prepare, Accelerator.prepare_model = prepare_all, prepare_model
    Accelerator.save_state, Accelerator.load_state = save_state, load_state


@contextmanager
def _without_sharded(accelerator: Any) -> Iterator[list[Any]]:
    """accelerate sees only the other optimizers. Returns the sharded ones."""
    kept = accelerator._optimizers
    sharded = [optimizer for optimizer in kept if is_sharded(optimizer)]
    accelerator._optimizers = [optimizer for optimizer in kept if not is_sharded(optimizer)]
    try:
        yield sharded
    finally:
        accelerator._optimizers = kept
