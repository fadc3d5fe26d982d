# SPDX-License-Identifier: Apache-2.0
"""Rules for operations on sharded tensors, below autograd.

    local    elementwise operations, copies, foreach and fused kernels: on this rank's values. A plain operand that
             broadcasts is cut to this rank's range.
    reduced  sums, means, norms, extrema: of this rank's values, then one agreement of all ranks.
    whole    all other reads: the whole is gathered. A view of a parameter, or of another lasting tensor, is read-only.
    written  in place, and not elementwise: the whole is gathered and written, and cut again.
    refused  writes to views of lasting tensors, changes of shape, collectives of torch.distributed.

All ranks make the same reductions and gathers. A gather of a parameter that is its own master needs no other rank.
"""
from __future__ import annotations

import math
import weakref
from typing import Any, Callable, Iterable, NoReturn, Optional, Sequence

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from . import sharded
from .sharded import Lent, Scaled, ShardedParameter, ShardedTensor, ShardedWrite

aten = torch.ops.aten
Rule = Callable[[Any, Any, dict], Any]
_KINDS = (ShardedTensor, ShardedParameter)
_MANY_ALIASES = 64  # afterwards those that are freed are forgotten


class Operation:
    """The schema of an operation."""

    def __init__(self, func: Any) -> None:
        arguments = func._schema.arguments
        self.written = [i for i, each in enumerate(arguments)
                        if each.alias_info is not None and each.alias_info.is_write and not each.kwarg_only]
        self.has_out = any(each.alias_info is not None and each.alias_info.is_write and each.kwarg_only for each in arguments)
        self.views = any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)
        self.returns = len(func._schema.returns)


_operations: dict[Any, Operation] = {}


def operation(func: Any) -> Operation:
    known = _operations.get(func)
    if known is None:
        known = _operations[func] = Operation(func)
    return known


def is_sharded(value: Any) -> bool:
    return value.__class__ in _KINDS


def _locals(value: Any) -> Any:
    """The values here in place of sharded tensors, also in lists."""
    if is_sharded(value):
        return value.read_local()
    if isinstance(value, (list, tuple)):
        return [each.read_local() if is_sharded(each) else each for each in value]
    return value


def _check_writable(values: Any) -> None:
    for each in values if isinstance(values, (list, tuple)) else (values,):
        if is_sharded(each):
            each.writable_local()


def _result(value: Any, part: sharded.Part) -> Any:
    if not isinstance(value, torch.Tensor):
        return value if not isinstance(value, (list, tuple)) else tuple(_result(each, part) for each in value)
    made = ShardedTensor.__new__(ShardedTensor, value, part)
    made.result = True
    return made


def _first(values: Iterable[Any]) -> ShardedTensor:
    return next(each for each in tree_leaves(tuple(values)) if is_sharded(each))


class View(torch.Tensor):
    """A view of a gathered copy. It can be read like a plain tensor until its origin is written. A write raises: it would be
    lost."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    _plain: torch.Tensor
    of: str

    @staticmethod
    def __new__(cls, plain: torch.Tensor, of: str, origin: Any, writes: int) -> "View":
        """origin.writes: the value of `writes` when the copy was made. It is the same while the copy has the origin's values."""
        with sharded.usual_mode():
            made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls, plain.shape, strides=plain.stride(), dtype=plain.dtype, device=plain.device)
        made._plain, made.of, made.origin, made.writes = plain, of, origin, writes
        sharded.hide_pointer(made)
        return made

    @property
    def plain(self) -> torch.Tensor:
        if self.origin.writes != self.writes:
            raise RuntimeError(f"a view of {self.of}, which is sharded, was taken before {self.of} was written or stepped, and has the "
                               "former values: take it again, or keep a clone() of it")
        return self._plain

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return repr(self.plain)

    def numpy(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return self.plain.numpy(*args, **kwargs)

    def tolist(self) -> Any:
        return self.plain.tolist()

    def data_ptr(self) -> int:
        return self.plain.data_ptr()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = next(each for each in tree_leaves((args, kwargs)) if isinstance(each, View))
        told = operation(func)
        written = [args[i] for i in told.written if i < len(args)] + ([kwargs] if told.has_out else [])
        if any(isinstance(each, View) for each in tree_leaves(written)):
            _refuse_view(func, first.of)
        args, kwargs = tree_map_only(View, lambda view: view.plain, (args, kwargs))
        made = func(*args, **kwargs)
        return tree_map_only(torch.Tensor, lambda tensor: View(tensor, first.of, first.origin, first.writes), made) if told.views else made


class ViewOf(torch.autograd.Function):
    """A copy of a parameter for code outside of a forward, as a View. The gradient is the copy's."""

    @staticmethod
    def forward(ctx: Any, copy: torch.Tensor, part: sharded.Part) -> View:  # type: ignore[override]
        return View(copy, part.name, part, part.writes)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient, None


def _refuse_view(func: Any, name: str) -> NoReturn:
    raise ShardedWrite(f"{func} writes to a view of {name}, which is sharded: the write would be lost. Write the "
                       "whole (`p[...] = x`), or use `with zerod.torch.full_parameters(model, write=True):`")


# ---- Local ----

def _elementwise(func: Any, args: Any, kwargs: dict) -> Any:
    told = operation(func)
    part = _first((args, kwargs)).part
    operands = []
    for i, each in enumerate(args):
        if each.__class__ in _KINDS:
            if not each.part.same(part):
                return _whole(func, args, kwargs)
        elif isinstance(each, torch.Tensor):
            if isinstance(each, View):
                each = each.plain
            if i in told.written or each.dim() and torch.broadcast_shapes(each.shape, part.shape) != part.shape:
                return _whole(func, args, kwargs)
            each = part.cut(each)
        operands.append(each)
    if told.has_out:
        out = kwargs.get("out")
        if not isinstance(out, ShardedTensor) or not out.part.same(part) or len(kwargs) > 1:
            return _whole(func, args, kwargs)
        target = out.writable_local()
        func(*map(_locals, operands), out=target)
        return out
    made = _compute(func, args, operands, kwargs)
    return args[0] if told.written else _result(made, part)


def _compute(func: Any, args: Any, operands: Any, kwargs: dict) -> Any:
    """func on the values here of the operands, which are the arguments or replace them.

    They are read after the update has begun, because before that the masters can be in halves.
    """
    for i in operation(func).written:
        _check_writable(args[i])
    return func(*map(_locals, operands), **{key: _locals(value) for key, value in kwargs.items()})


def _refuse(func: Any, args: Any, kwargs: dict) -> Any:
    raise ShardedWrite(f"{func} on a sharded tensor ({_first((args, kwargs)).part.name}) would change its memory or shape. Write values "
                       "by copy_()")


def _like(func: Any, args: Any, kwargs: dict) -> Any:
    """One tensor as input, and another one of the same range as output."""
    kwargs.pop("memory_format", None)
    if func is aten.clone.default or func is aten._to_copy.default:
        return _result(func(_locals(args[0]), *args[1:], **kwargs), args[0].part)
    return _result(func(args[0].blank_local(), *args[1:], **kwargs), args[0].part)


def _detach(func: Any, args: Any, kwargs: dict) -> ShardedTensor:
    tensor = args[0]
    like = tensor.read_local() if tensor.source is None else torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    made = ShardedTensor.__new__(ShardedTensor, like, tensor.part)
    made.guarded, made.result, made.exposed = tensor.guarded, tensor.result, tensor.exposed
    made.counter = tensor.counter
    tensor.aliases = tensor.aliases or [weakref.ref(tensor)]
    if tensor.source is not None:
        made.wait_for(tensor.source)
    if len(tensor.aliases) >= _MANY_ALIASES:
        tensor.aliases[1:] = [reference for reference in tensor.aliases[1:] if reference() is not None]
    tensor.aliases.append(weakref.ref(made))
    made.aliases = tensor.aliases
    return made


def _view(func: Any, args: Any, kwargs: dict) -> Any:
    return _detach(func, args, kwargs) if tuple(args[1]) == tuple(args[0].shape) else _whole(func, args, kwargs)


def _new(func: Any, args: Any, kwargs: dict) -> Any:
    tensor, size = args[0], args[1]
    if tuple(size) == tuple(tensor.shape) and func is not aten.new_empty_strided.default:
        size = (tensor.part.end - tensor.part.begin,)
        return _result(func(tensor.blank_local(), size, *args[2:], **kwargs), tensor.part)
    return func(tensor.blank_local(), *args[1:], **kwargs)


def _random(func: Any, args: Any, kwargs: dict) -> Any:
    """The numbers of the whole tensor: with equal seeds the ranks' parts fit together."""
    tensor = args[0]
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    made = func(whole, *args[1:], **{key: value for key, value in kwargs.items() if key != "memory_format"})
    if operation(func).written:
        tensor.write_local(tensor.part.cut(made))
        return tensor
    return _result(tensor.part.cut(made).clone(), tensor.part)


def _foreach(func: Any, args: Any, kwargs: dict) -> Any:
    """Lists of tensors. A plain one is cut if sharded ones next to it are written. Otherwise the sharded ones are gathered."""
    told = operation(func)
    operands = args if all(_all_sharded(each) for each in args) else _cut_lists(args)
    if operands is None and told.written and len(args[0]) > 1:  # some of the written ones are sharded
        for i in range(len(args[0])):
            func(*[each[i:i + 1] if isinstance(each, (list, tuple)) else each for each in args], **kwargs)
        return args[0] if told.returns else None
    if operands is None:
        return func(*tree_map_only(ShardedTensor, lambda tensor: tensor.whole(), args), **kwargs)
    made = _compute(func, args, operands, kwargs)
    if told.written or not told.returns:
        return args[0] if told.returns else None
    return [_result(value, tensor.part) if is_sharded(tensor) else value for value, tensor in zip(made, args[0])]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], torch.Tensor)


def _all_sharded(value: Any) -> bool:
    return not _is_list(value) or all(map(is_sharded, value))


def _cut_lists(args: Any) -> Optional[list[Any]]:
    """The arguments with plain tensors cut to the range of the sharded ones next to them. None: the first list has a plain tensor
    that is written."""
    lists = [each for each in args if _is_list(each)]
    count = max(map(len, lists))
    parts = [next((values[i].part for values in lists if len(values) == count and is_sharded(values[i])), None) for i in range(count)]
    if any(part is not None and not is_sharded(tensor) for part, tensor in zip(parts, args[0])):
        return None
    return [[tensor if part is None or is_sharded(tensor) else part.cut(tensor) for tensor, part in zip(value, parts)]
            if _is_list(value) and len(value) == count else value for value in args]


def _fused(func: Any, args: Any, kwargs: dict) -> None:
    _compute(func, args, args, kwargs)


def _unscale(func: Any, args: Any, kwargs: dict) -> None:
    """GradScaler: an infinity of any rank counts on all ranks."""
    gradients, found, scale = args
    _check_writable(gradients)
    values = _locals(gradients)
    if values and values[0].is_cuda and scale.device.type == "cpu":
        torch.cuda.current_stream(values[0].device).synchronize()  # torch copies the scale, and does not wait
    func(values, found, scale)
    for owner, tensors in by_owner(gradients):
        if owner.overflow([tensor.part for tensor in tensors], bool(found)):
            found.fill_(1.0)


def by_owner(tensors: Iterable[torch.Tensor]) -> "list[tuple[Any, list[ShardedTensor]]]":
    """(model, its tensors) of the sharded ones."""
    found: dict[int, list[ShardedTensor]] = {}
    for tensor in tensors:
        if isinstance(tensor, ShardedTensor):
            found.setdefault(id(tensor.part.owner), []).append(tensor)
    return [(some[0].part.owner, some) for some in found.values()]


def _copy(func: Any, args: Any, kwargs: dict) -> Any:
    into, source = args[0], args[1]
    if isinstance(source, View):
        source = source.plain
    if not is_sharded(into):
        into.copy_(source.whole(), *args[2:])
        return into
    if is_sharded(source):
        source = _locals(source) if source.part.same(into.part) else into.part.cut(source.whole())
    else:
        source = into.part.cut(source)
    into.writable_local().copy_(source, *args[2:])
    return into


def _zero(func: Any, args: Any, kwargs: dict) -> Any:
    """A gradient whose sum is not ready forgets it, without waiting."""
    for tensor in args[0] if isinstance(args[0], (list, tuple)) else (args[0],):
        if is_sharded(tensor):
            tensor.zeroed = True
            if tensor.source is None or tensor.guarded or isinstance(tensor.source, (Lent, Scaled)):
                tensor.writable_local().zero_()
                continue
            zeros = tensor.blank_local().zero_()
            for each in [tensor, *(reference() for reference in tensor.aliases or ())]:
                if each is not None:
                    each.settle(zeros)
        else:
            tensor.zero_()
    return args[0] if operation(func).returns else None


# ---- Reduced ----

def norms(tensors: Sequence[torch.Tensor], order: float) -> list[float]:
    """The norms of whole tensors, sharded ones and plain ones that all ranks have, with one agreement for each model."""
    order = float(order)
    sums = _power_sums([_locals(tensor) for tensor in tensors], order)
    op = "sum" if not math.isinf(order) else "max" if order > 0 else "min"
    for owner, _ in by_owner(tensors):
        indices = [i for i, tensor in enumerate(tensors) if isinstance(tensor, ShardedTensor) and tensor.part.owner is owner]
        for index, value in zip(indices, owner.agree([sums[i] for i in indices], op)):
            sums[index] = value
    return sums if math.isinf(order) or order == 0 else torch.tensor(sums, dtype=torch.double).pow(1 / order).tolist()


def _power_sums(values: list[torch.Tensor], order: float) -> list[float]:
    """For each tensor the sum of powers, or its largest or smallest absolute value, at least in float32."""
    nothing = math.inf if order == -math.inf else 0.0
    found = [nothing] * len(values)
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, each in enumerate(values):
        if each.numel():
            groups.setdefault((each.device, each.dtype), []).append(i)
    for (_, dtype), indices in groups.items():
        some = [values[i] for i in indices]
        wide = torch.promote_types(dtype, torch.float32)
        made = torch._foreach_norm(some, order) if dtype == wide else [torch.linalg.vector_norm(each, order, dtype=wide) for each in some]
        for i, norm in zip(indices, torch.stack(list(made)).double().tolist()):
            found[i] = norm if math.isinf(order) or order == 0 else norm ** order
    return found


def _norms_of(tensors: Sequence[torch.Tensor], order: Any, dtype: Any) -> list[torch.Tensor]:
    return [torch.tensor(value, dtype=dtype or tensor.dtype.to_real(), device=tensor.device)
            for value, tensor in zip(norms(tensors, order), tensors)]


def _foreach_norm(func: Any, args: Any, kwargs: dict) -> Any:
    return _norms_of(args[0], args[1] if len(args) > 1 else kwargs.get("ord", 2), kwargs.get("dtype"))


def _norm(func: Any, args: Any, kwargs: dict) -> Any:
    """aten::linalg_vector_norm(self, ord, dim, keepdim), aten::norm(self, p, dim, keepdim)"""
    tensor = args[0]
    order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
    dim = args[2] if len(args) > 2 else kwargs.get("dim")
    keep = args[3] if len(args) > 3 else kwargs.get("keepdim", False)
    if dim is not None and len(dim) not in (0, tensor.dim()):
        return _whole(func, args, kwargs)
    made = _norms_of([tensor], 2 if order is None else order, kwargs.get("dtype"))[0]
    return made.view((1,) * tensor.dim()) if keep else made


def _foreach_max(func: Any, args: Any, kwargs: dict) -> Any:
    here = [float(values.max()) if values.numel() else -math.inf for values in map(_locals, args[0])]
    there = _first(args).part.owner.agree(here, "max")
    return [torch.tensor(value, dtype=tensor.dtype, device=tensor.device) for value, tensor in zip(there, args[0])]


def _reduction(op: str, here: Callable[[torch.Tensor], Any], empty: float, mean: bool = False) -> Rule:
    def reduce(func: Any, args: Any, kwargs: dict) -> Any:
        tensor = args[0]
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        keep = len(args) > 2 or kwargs.get("keepdim", False)
        if keep or dim is not None and (not isinstance(dim, (list, tuple)) or len(dim) not in (0, tensor.dim())):
            return _whole(func, args, kwargs)
        values = _locals(tensor)
        if tensor.dtype.is_complex or not tensor.dtype.is_floating_point and op != "sum" and tensor.dtype != torch.bool:
            return _whole(func, args, kwargs)  # a float64 cannot represent every int64
        value = tensor.part.owner.agree([float(here(values)) if values.numel() else empty], op)[0]
        dtype = kwargs.get("dtype")
        if dtype is None:
            dtype = torch.int64 if op == "sum" else torch.bool
            if tensor.dtype.is_floating_point and here not in (torch.any, torch.all):
                dtype = tensor.dtype
        return torch.tensor(value / tensor.part.numel if mean else value, dtype=torch.double, device=tensor.device).to(dtype)

    return reduce


def _equal(func: Any, args: Any, kwargs: dict) -> bool:
    if args[0].shape != args[1].shape:
        return False
    part = _first(args).part
    same = torch.equal(*[_locals(each) if is_sharded(each) else part.cut(each) for each in args])
    return bool(part.owner.agree([float(same)], "min")[0])


# ---- Whole ----

def _item(func: Any, args: Any, kwargs: dict) -> Any:
    return func(args[0].whole().reshape(()))


def _whole(func: Any, args: Any, kwargs: dict) -> Any:
    told = operation(func)
    name = _first((args, kwargs)).part.name
    if any(isinstance(each, View) for each in tree_leaves(([args[i] for i in told.written], kwargs.get("out")))):
        _refuse_view(func, name)
    args, kwargs = tree_map_only(View, lambda view: view.plain, (args, kwargs))
    written = [i for i in told.written if any(is_sharded(each) for each in tree_leaves(args[i]))]
    if told.has_out and any(is_sharded(each) for each in tree_leaves(kwargs)) or written and written != [0] \
            or written and not is_sharded(args[0]):
        raise ShardedWrite(f"{func} writes to a sharded tensor ({name}) in a way that its ranks cannot: write by "
                           "copy_(), or use `with zerod.torch.full_parameters(model, write=True):`")
    if told.views and not written and is_sharded(args[0]) and args[0].result:
        tensor = args[0]
        if tensor.exposed is None:
            tensor.exposed = tensor.whole()
            tensor.settle(tensor.part.cut(tensor.exposed))
        return func(tensor.exposed, *args[1:], **kwargs)
    target, origin = args[0] if written else None, _first((args, kwargs))
    args, kwargs = tree_map_only(ShardedTensor, lambda tensor: tensor.whole(), (args, kwargs))
    made = func(*args, **kwargs)
    if target is not None:
        if args[0].shape != target.shape:
            raise ShardedWrite(f"{func} changes the shape of a sharded tensor ({name})")
        target.write_local(target.part.cut(args[0]))
        return target
    if not told.views:
        return made
    counter = origin.count_writes()
    return tree_map_only(torch.Tensor, lambda tensor: View(tensor, name, counter, counter.writes), made)


def _collective(func: Any, args: Any, kwargs: dict) -> Any:
    raise ShardedWrite(f"{func} on a sharded tensor ({_first((args, kwargs)).part.name}), of which each rank has another part. "
                       "zerod.torch sums gradients itself; whole() gives the whole")


# ---- Which operation has which rule ----

_rules: dict[Any, Rule] = {}


def _register(made: Rule, names: str) -> None:
    for name in names.split():
        packet, _, overload = name.partition(".")
        found = getattr(aten, packet, None)
        for each in [overload] if overload else found.overloads() if found is not None else []:
            if hasattr(found, each):
                _rules[getattr(found, each)] = made


_register(_detach, "detach alias")
_register(_view, "view.default _unsafe_view.default reshape.default")
_register(_like, "clone.default zeros_like.default empty_like.default ones_like.default full_like.default _to_copy.default")
_register(_random, "rand_like.default randn_like.default normal_.default uniform_.default bernoulli_.float exponential_.default "
          "log_normal_.default cauchy_.default geometric_.default random_.default random_.from random_.to")
_register(_copy, "copy_.default")
_register(_zero, "zero_.default _foreach_zero_.default")
_register(_elementwise, "fill_.Scalar fill_.Tensor lerp.Scalar lerp.Tensor lerp_.Scalar lerp_.Tensor masked_fill_.Scalar masked_fill.Scalar")
_register(_new, "new_empty.default new_zeros.default new_ones.default new_full.default new_empty_strided.default")
_register(_unscale, "_amp_foreach_non_finite_check_and_unscale_.default")
_register(_foreach_norm, "_foreach_norm.Scalar")
_register(_foreach_max, "_foreach_max.default")
_register(_norm, "linalg_vector_norm.default norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype")
_register(_reduction("sum", lambda x: x.sum(dtype=torch.double), 0.0), "sum.default sum.dim_IntList")
_register(_reduction("sum", lambda x: x.sum(dtype=torch.double), 0.0, mean=True), "mean.default mean.dim")
_register(_reduction("max", torch.max, -math.inf), "max.default amax.default")
_register(_reduction("min", torch.min, math.inf), "min.default amin.default")
_register(_reduction("max", torch.any, 0.0), "any.default")
_register(_reduction("min", torch.all, 1.0), "all.default")
_register(_equal, "equal.default")
_register(_refuse, "set_ resize_ resize_as_ t_ transpose_ squeeze_ unsqueeze_ swapdims_ swapaxes_ as_strided_ detach_")
_register(_item, "_local_scalar_dense.default")


def rule(func: Any) -> Rule:
    known = _rules.get(func)
    if known is None:
        name = func._schema.name.split("::")[1]
        if func.namespace in ("c10d", "_c10d_functional", "c10d_functional", "symm_mem"):
            known = _collective
        elif name.startswith("_fused_"):
            known = _fused
        elif name.startswith("_foreach_") and "powsum" not in name:
            known = _foreach
        elif torch.Tag.pointwise in func.tags:
            known = _elementwise
        else:
            known = _whole
        _rules[func] = known
    return known


sharded.rule = rule


def take_kernels() -> None:
    """Makes torch.optim and torch.nn.utils choose foreach and fused kernels for sharded tensors as for plain ones."""
    from torch.optim.optimizer import _foreach_supported_types as by_optimizers
    from torch.utils._foreach_utils import _foreach_supported_types as by_utilities

    for types in (by_optimizers, by_utilities):
        types += [kind for kind in _KINDS if kind not in types]
