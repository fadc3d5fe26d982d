# SPDX-License-Identifier: Apache-2.0
"""The places of a transformers checkpoint's tensors in a module's parameters, and a check that an engine has the same tensors.

When transformers 5 reads a checkpoint, it merges weights, such as those of a layer's experts. Engines read checkpoints. Tried
with transformers 5.19 and 5.24.
"""
from __future__ import annotations

from collections import Counter
from typing import Any, Iterator

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..reader import Weight


class _Views(TorchDispatchMode):
    """A copy is the tensor itself, so that its place in the parameter remains known."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is torch.ops.aten.clone.default else func(*args, **(kwargs or {}))


def places(module: nn.Module) -> "Iterator[tuple[str, str, int, torch.Size]]":
    """(name in the checkpoint, parameter, offset in elements, shape). ValueError: a tensor is not contiguous in one parameter."""
    from transformers import PreTrainedModel
    from transformers.core_model_loading import revert_weight_conversion

    if not isinstance(module, PreTrainedModel):
        raise ValueError(f"share(checkpoint=True) of a {type(module).__name__}, which is no model of transformers")
    parameters = dict(module.named_parameters(remove_duplicate=False))
    wholes = {path: torch.empty(parameter.shape, device="meta") for path, parameter in parameters.items()}
    paths = {tensor.untyped_storage()._cdata: path for path, tensor in wholes.items()}
    names_of = Counter(map(id, parameters.values()))
    untied = {path: whole for path, whole in wholes.items() if names_of[id(parameters[path])] == 1}
    conversions = getattr(module, "_weight_conversions", None)
    further: "dict[tuple[Any, int], str]" = {}

    def reverted(values: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        with _Views():
            return revert_weight_conversion(module, values)

    try:
        tensors = reverted(wholes)
        if conversions is not None:  # of the checkpoint that transformers has read, which has one name of a tied weight
            names = reverted(untied).keys()
            module._weight_conversions = None
            if names == reverted(untied).keys():
                further = {(tensor.untyped_storage()._cdata, tensor.storage_offset()): name for name, tensor in reverted(wholes).items()}
    except RuntimeError as failed:  # a view of a transposed tensor
        raise ValueError(f"share(checkpoint=True): a tensor of the checkpoint is not a contiguous part of one parameter: {failed}") from failed
    finally:
        if conversions is not None:
            module._weight_conversions = conversions
    for name, tensor in tensors.items():
        place = tensor.untyped_storage()._cdata, tensor.storage_offset()
        path = paths.get(place[0])
        if path is None or not tensor.is_contiguous():
            raise ValueError(f"share(checkpoint=True): the checkpoint's tensor {name} is not a contiguous part of one parameter")
        yield name if path in untied else further.get(place, name), path, place[1], tensor.shape


def check(weights: "list[Weight]", config: Any) -> None:
    """ValueError if the job's weights differ from the model of this configuration, as transformers makes it, or if other ones are
    tied.

    Loaders of engines cut a larger weight, and leave out a bias. None, and a model that transformers does not have: no check.
    """
    import transformers

    kind = getattr(transformers, next(iter(getattr(config, "architectures", None) or [""])), None)
    if kind is None or not isinstance(config, kind.config_class):
        return
    with torch.device("meta"):
        model = kind(config)
    ours = dict(model.named_parameters(remove_duplicate=False))
    wanted = {name: ((ours[path], offset), list(shape)) for name, path, offset, shape in places(model)}
    found = {weight.name: weight for weight in weights}
    # For a tied weight the job can share one name alone, or further ones of an older checkpoint that transformers has read.
    both = wanted.keys() & found.keys()
    alike = {wanted[name][0] for name in both}, {(found[name].unit, found[name].offset_bytes) for name in both}
    tied: dict[Any, tuple[str, Any]] = {}
    for name in sorted(wanted.keys() | found.keys()):
        place = (found[name].unit, found[name].offset_bytes) if name in found else None
        if name not in found and wanted[name][0] in alike[0] or name not in wanted and place in alike[1]:
            continue
        if name not in found:
            raise ValueError(f"the engine's model has the weight {name}, which the job does not share")
        if name not in wanted:
            raise ValueError(f"the job shares {name}, which the engine's model does not have. zerod.torch.share(checkpoint=True) "
                             "gives the names of checkpoints")
        of, shape = wanted[name]
        if list(found[name].shape) != shape:
            raise ValueError(f"{name} has the shape {list(found[name].shape)} in the job and {shape} in the engine's model")
        if tied.setdefault(of, (name, place))[1] != place:
            raise ValueError(f"the engine's model ties {name} to {tied[of][0]}, and the job's does not")
