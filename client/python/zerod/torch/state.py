# SPDX-License-Identifier: Apache-2.0
"""Sharded state for torch.distributed.checkpoint, of a model and of its optimizer.

A FlatShard stands for a whole tensor of which this rank has a flat range. The range is described as boxes of the
true shape, so that a checkpoint is read by any number of ranks, and by programs without zerod.
"""
from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from .model import Model
from .parameter import ShardedParameter
from .whole import assemble, loading


def boxes(shape: tuple[int, ...], begin: int, end: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offsets, sizes) of boxes that are, one behind the other, the elements begin to end of a row-major tensor."""
    if begin >= end:
        return []
    if not shape:
        return [((), ())]
    row = 1
    for extent in shape[1:]:
        row *= extent
    found = []
    first, last = begin // row, end // row  # rows that are begun, rows that are complete
    if begin % row:
        stop = min(end, (first + 1) * row)
        found += [((first, *offsets), (1, *sizes)) for offsets, sizes in
                  boxes(shape[1:], begin - first * row, stop - first * row)]
        first += 1
    if last > first:
        found.append(((first,) + (0,) * (len(shape) - 1), (last - first,) + tuple(shape[1:])))
    if end % row and last >= first:
        found += [((last, *offsets), (1, *sizes)) for offsets, sizes in boxes(shape[1:], 0, end - last * row)]
    return found


class FlatShard(torch.Tensor):
    """A tensor of the whole's size, of which only `local` exists here: elements `begin` and following."""

    local: torch.Tensor
    begin: int

    @staticmethod
    def __new__(cls, local: torch.Tensor, begin: int, shape: tuple[int, ...]) -> "FlatShard":
        made = torch.Tensor._make_wrapper_subclass(cls, torch.Size(shape), dtype=local.dtype, device=local.device)
        made.local = local
        made.begin = begin
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} on a FlatShard, which is for torch.distributed.checkpoint: its values here "
                                  "are in `.local`")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"FlatShard({tuple(self.shape)}, elements {self.begin} to {self.begin + self.local.numel()})"

    def _boxes(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        return boxes(tuple(self.shape), self.begin, self.begin + self.local.numel())

    def __create_write_items__(self, fqn: str, _: Any) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        return [WriteItem(index=MetadataIndex(fqn, torch.Size(offsets), i), type=WriteItemType.SHARD,
                          tensor_data=TensorWriteData(
                              chunk=ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)),
                              properties=TensorProperties.create_from_tensor(self.local), size=self.size()))
                for i, (offsets, sizes) in enumerate(self._boxes())]

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in self._boxes()]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        at = 0
        for offsets, sizes in self._boxes():
            count = 1
            for extent in sizes:
                count *= extent
            if index.offset is None or tuple(index.offset) == offsets:
                return self.local[at:at + count].view(sizes)
            at += count
        raise ValueError(f"{self} has no part at {tuple(index.offset)}")


def _shard(parameter: torch.Tensor, local: torch.Tensor) -> FlatShard:
    unit, index = parameter._zerod
    member = unit.members[index]
    first, _ = unit.bounds(member)
    return FlatShard(local, max(first + unit.shard.offset_numel - member.offset, 0), tuple(member.shape))


def checkpointable() -> bool:
    """Whether this torch's distributed checkpoints ask a tensor for its parts; 2.4's do not."""
    return importlib.util.find_spec("torch.distributed._checkpointable") is not None


def sharded_state(model: Model, module: nn.Module) -> dict[str, Any]:
    """{name: FlatShard} over this rank's slices themselves, and the buffers."""
    if not checkpointable():
        raise NotImplementedError(f"sharded checkpoints need a newer torch than {torch.__version__}: full=True works")
    model.settle()
    state: dict[str, Any] = {}
    for unit in model.units:
        for member in unit.members:
            state[member.name] = _shard(member.parameter, member.parameter.data)
    for prefix, owner in module.named_modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None and name not in owner._non_persistent_buffers_set:
                state[f"{prefix}.{name}" if prefix else name] = buffer
    return state


def make_state(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Has the optimizer make its state, by a step of rate zero; for an optimizer that a checkpoint is read into."""
    if model.durable is not None:
        model.durable.take(optimizer, _parameters(optimizer))
    if optimizer.state:
        return
    rates = []
    for group in optimizer.param_groups:
        rates.append(group["lr"])
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
    with loading(model):
        for parameter in _parameters(optimizer):
            parameter.__class__ = nn.Parameter
            parameter.grad = torch.zeros_like(parameter)
        before = [(parameter, parameter.data.clone()) for parameter in _parameters(optimizer)]
        optimizer.step()
        for parameter, values in before:
            parameter.data.copy_(values)
            parameter.grad = None
            parameter.__class__ = ShardedParameter
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]
            if "_zerod" in parameter.__dict__]


def _name(parameter: torch.Tensor) -> str:
    unit, index = parameter._zerod
    return unit.members[index].name


def optimizer_state(model: Model, optimizer: torch.optim.Optimizer, full: bool) -> dict[str, Any]:
    """{"state": {name: {key: value}}, "param_groups": [...]}: by names, so that it does not depend on an order.

    Tensors of a parameter's size are FlatShards, or with full whole tensors, for which every rank takes part.
    """
    state: dict[str, Any] = {}
    if model.durable is not None:
        model.durable.take(optimizer, _parameters(optimizer))
    for parameter in _parameters(optimizer):
        kept = state[_name(parameter)] = {}
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor) and value.dim() == 1 and value.numel() == parameter.data.numel():
                kept[key] = _whole(parameter, value) if full else _shard(parameter, value)
            else:
                kept[key] = value
    groups = [{**{key: value for key, value in group.items() if key != "params"},
               "params": [_name(p) for p in group["params"] if "_zerod" in p.__dict__]}
              for group in optimizer.param_groups]
    return {"state": state, "param_groups": groups}


def _whole(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    unit, index = parameter._zerod
    member = unit.members[index]
    first, last = unit.bounds(member)
    part = torch.zeros(unit.shard.true_numel, dtype=value.dtype, device=value.device)
    part[first:last].copy_(value)
    return assemble(unit, part)[member.offset:member.offset + member.numel].view(member.shape).clone()


def planner() -> Any:
    """For reading: asks for no optimizer state of parameters of which the checkpoint has none."""
    from torch.distributed.checkpoint import DefaultLoadPlanner

    class Planner(DefaultLoadPlanner):
        def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
            for name, kept in state_dict.get("optimizer", {"state": {}})["state"].items():
                if not any(f"optimizer.state.{name}.{key}" in metadata.state_dict_metadata for key in kept):
                    kept.clear()
            super().set_up_planner(state_dict, metadata, is_coordinator)

    return Planner()


def load_optimizer_state(model: Model, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Takes what optimizer_state() gave, whole tensors or FlatShards (whose values are in place already)."""
    make_state(model, optimizer)
    with nullcontext() if model.durable is None else loading(model):  # its state is in units
        _copy_state(optimizer, state)


def _copy_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    for parameter in _parameters(optimizer):
        unit, index = parameter._zerod
        member = unit.members[index]
        first, last = unit.bounds(member)
        begin = first + unit.shard.offset_numel - member.offset
        saved = state["state"].get(_name(parameter), {})
        if not saved:  # the parameter had no gradient before it was saved
            optimizer.state.pop(parameter, None)
        for key, value in saved.items():
            mine = optimizer.state[parameter].get(key)
            if isinstance(value, FlatShard):
                if mine is not value.local:
                    mine.copy_(value.local)
            elif isinstance(value, torch.Tensor) and value.dim() > 0 and value.numel() == member.numel:
                mine.copy_(value.reshape(-1)[begin:begin + last - first])
            else:
                optimizer.state[parameter][key] = value.clone() if isinstance(value, torch.Tensor) else value
    for group, saved in zip(optimizer.param_groups, state["param_groups"]):
        group.update({key: value for key, value in saved.items() if key != "params"})
