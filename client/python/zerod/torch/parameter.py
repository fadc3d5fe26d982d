# SPDX-License-Identifier: Apache-2.0
"""The classes of sharded parameters and of their gradients.

A sharded parameter is the parameter object that the module had before, with this rank's slice of it, flat, as
data. Outside an optimizer's step its class is ShardedParameter, so that torch reports every use of it. A use that
reads values gets the whole parameter, gathered (unplanned use); a use that writes is refused. Inside a step the
class is nn.Parameter again, which foreach and fused optimizers ask for.

The gradient of a sharded parameter is a ShardedGradient: its values exist when the step has begun, which its
first use causes. A norm of it alone is wrong without the other ranks' slices, and is refused.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import nn

if TYPE_CHECKING:
    from .unit import FlatUnit

_local = torch._C.DisableTorchFunctionSubclass

# Of properties these compute; all others (shape, dtype, grad, data, ...) are the slice's own.
_COMPUTING_PROPERTIES = tuple(getattr(torch.Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "real", "imag")
                              if hasattr(torch.Tensor, name))

_LOCAL_NAMES = frozenset("""
    __get__ __set__ __delete__ __repr__ __hash__ __format__ __dir__ __reduce_ex__ __setstate__ __len__ size dim
    ndimension numel nelement stride is_contiguous data_ptr const_data_ptr detach requires_grad_ element_size
    untyped_storage storage _typed_storage storage_offset
    storage_type is_floating_point is_complex is_signed get_device is_set_to is_same_size is_shared is_pinned
    retain_grad zeros_like empty_like ones_like full_like rand_like randn_like new_empty new_zeros new_ones new_full
    new_tensor is_inference is_tensor result_type can_cast type cpu cuda
""".split())

_IN_PLACE_LOCAL = frozenset("requires_grad_ share_memory_ retain_grad".split())


def _writes(name: str) -> bool:
    if name.startswith("__i") and name.endswith("__") and name not in ("__iter__", "__invert__", "__index__", "__int__"):
        return True
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


class ShardedParameter(nn.Parameter):
    """This rank's slice of a parameter, flat; see the file's beginning. `_zerod` is (unit, index)."""

    _zerod: "tuple[FlatUnit, int]"

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _LOCAL_NAMES and func not in _COMPUTING_PROPERTIES or name.startswith(("_foreach_", "_fused_")):
            if name == "__set__" or name == "requires_grad_":
                args[0]._zerod[0].block.model.refreeze = True
            with _local():
                return func(*args, **kwargs)
        if name in ("register_hook", "register_post_accumulate_grad_hook"):
            raise NotImplementedError(f"{name}() on a sharded parameter ({describe(args[0])}): the hook would never run, since "
                                      "the daemon sums gradients. Read .grad between the backward and the optimizer's step()")
        written = args[0] if args else kwargs.get("tensor")  # torch.nn.init names it
        if isinstance(written, ShardedParameter) and _writes(name) and name not in _IN_PLACE_LOCAL:
            if written._zerod[0].block.model.load_depth:
                with _local():
                    return func(*args, **kwargs)
            raise RuntimeError(f"{name} writes to a sharded parameter ({describe(written)}): "
                               "use `with zerod.torch.full_parameters(model, write=True):`")
        return _unplanned(func, args, kwargs)


def describe(parameter: torch.Tensor) -> str:
    unit, index = parameter._zerod
    return unit.members[index].name


def _unplanned(func: Callable, args: Any, kwargs: Any) -> Any:
    """Calls func with whole parameters in place of sharded ones."""
    models = []

    def whole(value: Any) -> Any:
        if isinstance(value, ShardedParameter):
            unit, index = value._zerod
            if unit.block.model not in models:
                models.append(unit.block.model)
            return unit.block.model.unplanned(unit, index)
        if type(value) in (list, tuple):
            return type(value)(whole(each) for each in value)
        return value

    args = tuple(whole(value) for value in args)
    kwargs = {key: whole(value) for key, value in kwargs.items()}
    if not models:
        with _local():
            return func(*args, **kwargs)
    with models[0].saving():
        return func(*args, **kwargs)


_NORMS = frozenset("norm _foreach_norm vector_norm linalg_vector_norm linalg_norm _foreach_max _foreach_powsum".split())


class ShardedGradient(torch.Tensor):
    """This rank's slice of a reduced gradient. `_unit` is the unit whose model fills it."""

    _unit: "FlatUnit"

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _LOCAL_NAMES and func not in _COMPUTING_PROPERTIES:
            with _local():
                return func(*args, **(kwargs or {}))
        grads: list[ShardedGradient] = []
        _collect(args, grads)
        model = grads[0]._unit.block.model
        if name in _NORMS:
            raise RuntimeError("a norm of sharded gradients is one rank's part of it: "
                               "use zerod.torch.clip_grad_norm_(model, max_norm)")
        if name in ("zero_", "_foreach_zero_"):
            model.drop_gradients()
            return None if name == "_foreach_zero_" else args[0]
        model.begin_step()
        unscales = name == "_amp_foreach_non_finite_check_and_unscale_"
        if unscales and model.device.type == "cuda" and args[1].device.type == "cpu":
            torch.cuda.current_stream(model.device).synchronize()  # torch copies the scale, and does not wait
        with _local():
            result = func(*args, **(kwargs or {}))
        if unscales and model.overflow(args[1]):
            args[1].fill_(1.0)
        return result


def _collect(values: Any, into: "list[ShardedGradient]") -> None:
    for value in values:
        if isinstance(value, ShardedGradient):
            into.append(value)
        elif isinstance(value, (list, tuple)):
            _collect(value, into)
