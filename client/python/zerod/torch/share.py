# SPDX-License-Identifier: Apache-2.0
"""For readers (zerod.reader): the places of the model's weights, and commits."""
from __future__ import annotations

import json
import time
import warnings
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
from torch import nn

import zerod
from zerod import DType
from zerod import structs as s
from zerod.reader import WEIGHTS, weights_job

from ..integrations.checkpoint import places
from .tensors import tensor_at

if TYPE_CHECKING:
    from .model import Model

Names = Callable[[str], Optional[str]]
_REFUSALS = 1000


def describe(model: Model, module: nn.Module, names: Names, checkpoint: bool) -> bytes:
    """[name, unit, offset in bytes, shape, dtype] of each parameter under each of its names that `names` does not leave out."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    found: dict[str, tuple[str, list[Any]]] = {}
    for name, path, offset, shape in places(module) if checkpoint else ((p, p, 0, of.shape) for p, of in parameters.items()):
        part = getattr(parameters[path], "part", None)
        published = names(name)
        if part is not None and published is not None:
            unit, index = part.place
            row = [published, unit.name, (unit.members[index].offset + offset) * unit.dtype.itemsize, list(shape),
                   str(unit.dtype).removeprefix("torch.")]
            other, before = found.setdefault(published, (name, row))
            if before != row:  # two names of a tied weight may become one
                raise ValueError(f"share(): names gives the name {published!r} to {other} and {name}")
    return json.dumps([row for _, row in found.values()]).encode()


def share(model: Model, module: nn.Module, names: Names, checkpoint: bool) -> dict[str, str]:
    """See zerod.torch.share()."""
    context = model.context
    main = context.group
    model.settle()
    text = describe(model, module, names, checkpoint)
    if model.shared is not None and not model.shared[0].closed:
        model.shared[0].leave()
        main.barrier()  # the former group of that name has no rank left
    group = context.client.join(job=weights_job(main.job), group=main.name, world_size=main.world_size, rank=main.rank,
                                **context.environment.place(main.rank))
    unit = context.environment.register(group, WEIGHTS, DType.UINT8, len(text))
    shard = unit.shard()
    own = text[shard.offset_numel:shard.offset_numel + shard.true_numel]
    group.update_begin([unit])
    if own:
        device = context.client.dlpack_device
        tensor_at(shard.data, len(own), torch.uint8, device).copy_(torch.frombuffer(bytearray(own), dtype=torch.uint8))
    group.publish([unit], context.stream())
    group.barrier()
    group.commit(1)
    model.shared = group, names, checkpoint
    context.beside = group
    address = {"job": main.job, "group": main.name}
    private = context.client.socket_path
    return address if private is None else {**address, "socket_path": private}


def commit(model: Model, step: Optional[int]) -> int:
    """See zerod.torch.commit()."""
    context = model.context
    model.settle()
    last = int(context.group.info().committed_step)
    number = last + 1 if step is None else step
    if number <= last:
        raise ValueError(f"step {number} is not after step {last}, which is committed")
    stream = context.stream()
    if stream is not None:
        stream.synchronize()
    for _ in range(_REFUSALS):  # publishes end a moment after the streams; the daemon rejects the commit of all ranks at once
        try:
            context.group.commit(number)
            return number
        except zerod.InvalidState:
            time.sleep(0.01)
    context.group.commit(number)
    return number


class Saving:
    """A copy of a commit into host memory, for readers: zerod.torch.save_commit()."""

    def __init__(self, group: zerod.Group, step: int) -> None:
        self.step = step
        self._group = group
        self._ticket: Optional[int] = group.commit_save_begin(step)
        self._failed: Optional[BaseException] = None

    def wait(self) -> int:
        """The step, when it is copied whole. Harmless when repeated. NotHeld: an update overtook it. OutOfMemory, PeerLost."""
        ticket, self._ticket = self._ticket, None
        if self._failed is not None:
            raise self._failed
        if ticket is not None:
            try:
                self._complete(ticket)
            except BaseException as failed:
                self._failed = failed
                raise
        return self.step

    def _complete(self, ticket: int) -> None:
        try:
            self._group.client.complete(ticket)
        except zerod.NotHeld as failed:
            if failed.status != s.Status.STALE:
                raise
            self._group.commit_save(self.step)  # the library has forgotten the ticket; this asks for the copy that there is

    def end(self) -> None:
        """wait() that warns."""
        try:
            self.wait()
        except zerod.ZerodError as failed:
            warnings.warn(f"zerod.torch: step {self.step} was not copied to host memory: {failed}", RuntimeWarning, stacklevel=4)


def save_commit(model: Model) -> Saving:
    """See zerod.torch.save_commit()."""
    model.settle()
    if model.saving is not None:
        model.saving.end()
    step = int(model.context.group.info().committed_step)
    if step == 0:
        raise ValueError("save_commit() before the first commit(): there is nothing to copy")
    model.saving = Saving(model.context.group, step)
    return model.saving
