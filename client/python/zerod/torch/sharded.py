# SPDX-License-Identifier: Apache-2.0
"""Tensors of which this rank has a flat range: parameters, their gradients, and the optimizer's state.

A ShardedTensor has the shape of the whole. Its values here are elements `part.begin` to `part.end` of the whole in row-major
order, flat. read_local() returns them, and write_local() replaces them.

model.parameters() returns ShardedParameters outside of a forward. Operations that autograd records use the unit's leaf instead,
which is the whole parameter.
"""
from __future__ import annotations

import math
import threading
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Optional, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

if TYPE_CHECKING:
    from .model import Model

as_plain = torch._C.DisableTorchFunctionSubclass  # inside of it no gathered leaf replaces a sharded parameter
hide_pointer = torch._C._set_throw_on_mutable_data_ptr  # type: ignore[attr-defined]  # C++ that reads it raises, instead of getting 0
_NO_POINTER = "{} is sharded: its values are not one block of memory. whole() gives them"


def usual_mode() -> Any:
    """Torch makes no view of a tensor made in inference mode, if the other tensor is not."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


class NeedsWhole(RuntimeError):
    """An operation needs the memory of the whole tensor, of which this rank has a part."""


class ShardedWrite(RuntimeError):
    """A write to a sharded tensor that would be lost, or that ranks cannot make in parts."""


class Source(Protocol):
    """Provides a tensor's values at their first use: settles the tensor, or returns the values for this use alone."""

    def fill(self, tensor: "ShardedTensor") -> Optional[torch.Tensor]: ...


class Part:
    """This rank's elements of a row-major tensor of `shape`: begin to end. `place`: its unit, and its index in that."""

    __slots__ = ("name", "shape", "numel", "begin", "end", "owner", "place", "writes", "assignments", "__weakref__")

    def __init__(self, name: str, shape: torch.Size, begin: int, end: int, owner: "Model", place: Any) -> None:
        self.name = name
        self.shape = shape
        self.numel = shape.numel()
        self.begin, self.end = begin, end
        self.owner = owner
        self.place = place
        self.writes = 0  # to the parameter
        self.assignments = 0  # to its .data

    def same(self, other: "Part") -> bool:
        return self is other or (self.shape, self.begin, self.end) == (other.shape, other.begin, other.end)

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a tensor that broadcasts to the shape. A scalar remains one, unless it is the whole."""
        if whole.dim() == 0 and self.shape:
            return whole
        if whole.shape != self.shape:
            whole = whole.expand(self.shape)
        return whole.reshape(-1)[self.begin:self.end]

    def boxes(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        return boxes(tuple(self.shape), self.begin, self.end)


def boxes(shape: tuple[int, ...], begin: int, end: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offsets, sizes) of boxes which, one after the other, contain the elements begin to end of a row-major tensor."""
    if begin >= end:
        return []
    if not shape:
        return [((), ())]
    row = math.prod(shape[1:])
    found = []
    first, last = begin // row, end // row  # rows that start, rows that are complete
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


class Scaled:
    """The source of gradients that are multiplied by `scale`, a float32 on their device, when they are read. An optimizer of
    optimizers.py passes the scale to its kernel instead."""

    def __init__(self, values: torch.Tensor, scale: torch.Tensor) -> None:
        self.values = values
        self.scale: Optional[torch.Tensor] = scale

    def fill(self, tensor: "ShardedTensor") -> None:
        if self.scale is not None:
            self.values.mul_(self.scale)
            self.scale = None
        tensor.settle(self.values)


class Lent:
    """The source of a gradient for the thread that makes it: an optimizer in the backward reads it in `.grad`, where the program can
    see it meanwhile. Other threads get what `others` provides."""

    def __init__(self, values: torch.Tensor, others: Source) -> None:
        self.values, self.others = values, others
        self._thread = threading.get_ident()

    def fill(self, tensor: "ShardedTensor") -> Optional[torch.Tensor]:
        return self.values if threading.get_ident() == self._thread else self.others.fill(tensor)


class Assigned:
    """The x of `p.data = x`. In PyTorch it then shares p's memory: a write to x is a write to p. Here p has a copy."""

    def __init__(self, value: Any) -> None:
        part = value.part if getattr(value, "guarded", False) else None
        self.value: Callable[[], Any] = weakref.ref(part) if part is not None else lambda: value
        self.noted = self._note(part or value)

    @staticmethod
    def _note(value: Any) -> "tuple[int, int]":
        return (value.assignments, value.writes) if isinstance(value, Part) else (0, value._version)

    def is_written(self) -> bool:
        """Whether x was written since the last use of p. This call counts as a use."""
        value = self.value()
        if value is None:
            return False
        before, self.noted = self.noted, self._note(value)
        if not isinstance(value, Part):  # its memory belongs to the program
            self.value = weakref.ref(value)
        if self.noted[0] != before[0]:  # in PyTorch that parameter has received other memory, and p still has this one
            self.value = lambda: None
            return False
        return self.noted != before


class ShardedTensor(torch.Tensor):
    """See the file's first comment.

    `source`: provides the values at their first use. None: they are already present. `guarded`: the values are the parameter's
    own, and a write to them begins an update. `exposed`: the whole of a result, after a view of it was taken.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    part: Part
    _local: torch.Tensor  # None while `source` is not
    source: Optional[Source] = None
    guarded = False
    result = False  # of an operation: all ranks can write a view of it alike
    exposed: Optional[torch.Tensor] = None
    # Weak references to tensors over the same values. The first one is that of the tensor from which the others were taken.
    aliases: "Optional[list[Any]]" = None
    # Of gradients: values to which a sum will be added.
    stash: Optional[torch.Tensor] = None
    counter: Any = None  # of writes to a gradient of which a view was taken
    zeroed = False  # of gradients: since an optimizer has used them

    @staticmethod
    def __new__(cls, local: torch.Tensor, part: Part, requires_grad: bool = False) -> "ShardedTensor":
        with usual_mode():
            made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls, part.shape, dtype=local.dtype, device=local.device, requires_grad=requires_grad)
        made._local, made.part = local, part
        hide_pointer(made)
        return made

    # ---- Values ----

    def read_local(self) -> torch.Tensor:
        """This rank's values, flat."""
        while (values := self._local) is None:
            source = self.source
            # An optimizer in another thread can close these masters again.
            if source is not None and (values := source.fill(self)) is not None:
                break
        return values

    def wait_for(self, source: Source) -> None:
        """From now on the values are the source's."""
        self.source, self._local = source, None  # type: ignore[assignment]

    def settle(self, values: torch.Tensor) -> None:
        """Sets the values."""
        self._local, self.source = values, None

    def writable_local(self) -> torch.Tensor:
        """This rank's values, which the caller is about to write in place."""
        if self.guarded:
            self.part.owner.before_write(self.part)
            self.part.writes += 1
        elif self.counter is not None:
            self.counter.writes += 1
        if self.exposed is not None:
            raise ShardedWrite(f"a view of this tensor ({self.part.name}) was taken before: write a clone() of it")
        return self.read_local()

    def write_local(self, values: torch.Tensor) -> None:
        """Replaces this rank's values by as many."""
        with torch.no_grad():
            self.writable_local().copy_(values)

    def blank_local(self) -> torch.Tensor:
        """A tensor like this rank's values, for callers that do not read the values. It does not wait."""
        if self.source is None:
            return self._local
        return torch.empty(self.part.end - self.part.begin, dtype=self.dtype, device=self.device)

    def count_writes(self) -> Any:
        """From now on counts the writes to these values, for views of them."""
        if self.guarded:
            return self.part
        global viewed
        counter, viewed = self.counter or SimpleNamespace(writes=0), viewed + 1
        for each in [self, *(reference() for reference in self.aliases or ())]:
            if each is not None:
                each.counter = counter
        return counter

    def whole(self) -> torch.Tensor:
        """The whole, in memory of torch. Every rank calls it, except for a parameter that is its own master."""
        if self.exposed is not None:
            return self.exposed
        if self.guarded:
            return self.part.owner.weights(self.part)
        return self.part.owner.gather(self.part, self.read_local().detach())

    # ---- What torch does by memory, and not by an operation ----

    @property
    def data(self) -> "ShardedTensor":  # type: ignore[override]
        with torch.no_grad():
            return self.detach()  # type: ignore[return-value]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if value.shape != self.shape:
            raise ShardedWrite(f"{self.part.name}.data of the shape {tuple(value.shape)} in place of {tuple(self.shape)}: "
                               "a sharded parameter keeps its shape")
        if value is self or any(reference() is value for reference in self.aliases or ()):
            return
        values = value.whole() if isinstance(value, ShardedTensor) and not value.part.same(self.part) else value
        with torch.no_grad():
            values = values.read_local() if isinstance(values, ShardedTensor) else self.part.cut(values)
            if self._is_alias():
                self._leave(torch.empty_like(self.read_local()).copy_(values))
                return
            if self.guarded:
                self.part.owner.assigned.pop(self.part, None)
                self.part.assignments += 1
            local = self.writable_local()
            others = [each for each in (reference() for reference in self.aliases or ()) if each is not None and each is not self]
            former = local.clone() if others else None
            for each in others:
                each._leave(former)
            local.copy_(values)
        if self.guarded and not value.is_inference():
            self.part.owner.assigned[self.part] = Assigned(value)

    def _is_alias(self) -> bool:
        """Whether it was taken from another tensor, for example by detach()."""
        return bool(self.aliases) and self.aliases[0]() is not self and not isinstance(self, ShardedParameter)  # type: ignore[index]

    def _leave(self, values: Any) -> None:
        """Keeps these values here. The tensor from which this one was taken receives others."""
        self.aliases[1:] = [reference for reference in self.aliases[1:] if reference() is not self]  # type: ignore[index]
        self.aliases, self.counter, self.guarded, self.result = None, None, False, True
        self.settle(values)

    def __setitem__(self, index: Any, value: Any) -> None:
        if torch.is_grad_enabled() and self.requires_grad:
            raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
        with torch.no_grad():
            whole = self.whole()
            whole[index] = value.whole() if isinstance(value, ShardedTensor) else value
            self.write_local(self.part.cut(whole))

    def _no_memory(self, *_: Any) -> NoReturn:
        raise NeedsWhole(_NO_POINTER.format(self.part.name))

    data_ptr = untyped_storage = storage = _typed_storage = share_memory_ = __dlpack__ = _no_memory  # type: ignore[assignment]

    def numpy(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return self.whole().numpy(*args, **kwargs)

    def tolist(self) -> Any:
        return self.whole().tolist()

    def type(self, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        if dtype is None:
            return torch.empty((), dtype=self.dtype, device=self.device).type()
        return self.to(dtype) if isinstance(dtype, torch.dtype) else self.whole().type(dtype, *args, **kwargs)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return (f"{type(self).__name__}({self.part.name!r}, {tuple(self.part.shape)}, elements {self.part.begin} to "
                f"{self.part.end}, {self.dtype})")

    def __deepcopy__(self, memo: dict[int, Any]) -> "ShardedTensor":
        made = memo[id(self)] = type(self)(self.read_local().detach().clone(), self.part, self.requires_grad)
        return made

    def __copy__(self) -> torch.Tensor:
        return self.detach()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as the whole tensor: every rank takes part."""
        return self.whole().detach().__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return rule(func)(func, args, kwargs or {})

    # ---- torch.distributed.checkpoint ----

    def __create_write_items__(self, fqn: str, _: Any) -> list[Any]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties = TensorProperties.create_from_tensor(self.read_local())
        return [WriteItem(index=MetadataIndex(fqn, chunk.offsets, i), type=WriteItemType.SHARD,
                          tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.size()))
                for i, chunk in enumerate(self.__create_chunk_list__())]

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in self.part.boxes()]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        local, at = self.writable_local().detach(), 0  # a checkpoint is read into these
        for offsets, sizes in self.part.boxes():
            count = math.prod(sizes)
            if index.offset is None or tuple(index.offset) == offsets:
                return local[at:at + count].view(sizes)
            at += count
        raise ValueError(f"{self} has no part at {tuple(index.offset)}")


rule: Callable[[Any], Callable[[Any, Any, Any], Any]]  # of an operation; rules.py sets it
forwards = 0  # of sharded models that now run in this process
viewed = 0  # how often a view was taken of a tensor of this process whose writes are counted since

_T = torch.Tensor
# These describe a tensor, or make one without values of it.
_TELLING = frozenset([getattr(_T, name).__get__ for name in (
    "grad shape requires_grad dtype device is_leaf data ndim layout grad_fn is_sparse is_cuda is_cpu is_meta itemsize nbytes "
    "names output_nr grad_dtype is_quantized is_nested is_mkldnn is_xpu is_mps _version _base _backward_hooks _post_accumulate_grad_hooks "
    "retains_grad").split() if hasattr(getattr(_T, name, None), "__get__")]
    + [getattr(_T, name) for name in (
        "dim size numel nelement detach stride is_contiguous element_size is_floating_point is_complex is_signed get_device "
        "storage_offset is_set_to is_same_size is_shared is_pinned is_inference __len__ __hash__ __repr__ __format__ __dir__ "
        "new_empty new_zeros new_ones new_full new_tensor __reduce_ex__ __deepcopy__ retain_grad").split()]
    + [_T.grad.__delete__,  # type: ignore[attr-defined]
       torch.is_floating_point, torch.is_complex, torch.is_tensor, torch.is_storage, torch.numel, torch.result_type,
       torch.can_cast, torch.zeros_like, torch.empty_like, torch.ones_like, torch.full_like, torch.rand_like,
       torch.randn_like, torch.detach])
_SAME_AS = frozenset([_T.view_as, _T.expand_as])
_SET_GRAD = _T.grad.__set__  # type: ignore[attr-defined]
_SET_GRAD_DTYPE = _T.grad_dtype.__set__ if hasattr(_T, "grad_dtype") else None  # type: ignore[attr-defined]
_SETS = {_T.requires_grad.__set__: "__set__", _T.requires_grad_: "requires_grad_"}  # type: ignore[attr-defined]
_HOOKS = frozenset([_T.register_hook, _T.register_post_accumulate_grad_hook])
# A forward's operations, which compute with the leaf even if autograd records nothing.
_COMPUTES = frozenset("linear embedding embedding_bag matmul __matmul__ __rmatmul__ mm bmm addmm addbmm baddbmm conv1d conv2d conv3d "
                      "conv_transpose1d conv_transpose2d conv_transpose3d layer_norm group_norm batch_norm rms_norm prelu bilinear "
                      "einsum".split())


def _writes(name: str) -> bool:
    if name.startswith("__i") and name.endswith("__") and name not in ("__iter__", "__invert__", "__index__", "__int__"):
        return True
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _nothing() -> None:
    """Replaces a weak reference."""


class ShardedParameter(ShardedTensor, nn.Parameter):
    """This rank's part of a parameter. `own`: the model's own, not a copy."""

    own = False

    @staticmethod
    def __new__(cls, local: torch.Tensor, part: Part, requires_grad: bool = True) -> "ShardedParameter":
        made = ShardedTensor.__new__(cls, local, part, requires_grad)
        made.aliases = [_nothing]  # torch does not swap a parameter to which a weak reference exists
        if hasattr(torch._C, "_set_storage_data_ptr_access_error_msg"):
            with as_plain():
                torch._C._set_storage_data_ptr_access_error_msg(torch.Tensor.untyped_storage(made)._cdata, _NO_POINTER.format(part.name))
        return made  # type: ignore[return-value]

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _TELLING:
            with as_plain():
                return func(*args, **kwargs)
        if func == _SET_GRAD:
            if args[0].own and isinstance(args[1], torch.Tensor) and not isinstance(args[1], ShardedTensor):
                args[0].part.owner.gradients.assigned.append(args[0].part)
            with as_plain():
                return func(*args, **kwargs)
        if func in _HOOKS:
            raise NotImplementedError(f"{func.__name__}() on a sharded parameter ({args[0].part.name}): the hook would never run, "
                                      "since the daemon sums gradients. Read .grad between the backward and the optimizer's step()")
        if getattr(func, "__module__", None) == "torch.distributed.distributed_c10d":
            part = next(each.part for each in tree_leaves((args, kwargs)) if isinstance(each, ShardedTensor))
            raise ShardedWrite(f"{func.__name__}() on a sharded parameter ({part.name}), of which each rank has another part. "
                               "zerod.torch sums gradients itself; whole() gives the whole")
        if func == _SET_GRAD_DTYPE:
            if args[1] == args[0].dtype:
                return None
            raise NotImplementedError(f"{args[0].part.name}.grad_dtype = {args[1]}: a sharded parameter's gradient has its own dtype, "
                                      f"{args[0].dtype}. shard(reduce_dtype=...) is the dtype of what a rank submits")
        if func in _SAME_AS and len(args) > 1 and args[0] is args[1] and args[0].own and torch.is_grad_enabled():
            raise NotImplementedError(f"{func.__name__}() of a sharded parameter ({args[0].part.name}) and itself, by which torch finds "
                                      "where its gradient is added up, for a backward of inputs and then of weights or for "
                                      "get_gradient_edge(): the daemon sums what backward() gives")
        if func is torch.autograd.grad:
            inputs = args[1] if len(args) > 1 else kwargs["inputs"]
            name = next(each.part.name for each in tree_leaves(inputs) if isinstance(each, ShardedParameter))
            raise NotImplementedError(f"torch.autograd.grad() for a sharded parameter ({name}): backward() gives its gradient")
        if func in _SETS and args[0].own:
            args[0].part.owner.set_requires_grad(args[0].part, bool(args[1]) if len(args) > 1 else kwargs.get("requires_grad", True))
        elif torch.is_grad_enabled() or forwards or getattr(func, "__name__", "") in _COMPUTES:
            written = args[0] if args else kwargs.get("tensor")  # torch.nn.init names it
            if not (isinstance(written, ShardedParameter) and _writes(getattr(func, "__name__", ""))):
                args, kwargs = tree_map_only(ShardedParameter, _leaf, (args, kwargs))
        with as_plain():
            return func(*args, **kwargs)

    # torch.utils.swap_tensors() swaps classes, attributes, the names in this tuple, and then the values.
    __slotnames__ = ("_swapped_with",)

    @property
    def _swapped_with(self) -> "ShardedParameter":
        return self

    @_swapped_with.setter
    def _swapped_with(self, other: "ShardedParameter") -> None:
        if other.part is not self.part:
            self.__dict__, other.__dict__ = other.__dict__, self.__dict__
            raise NotImplementedError(f"swap_tensors() of the sharded parameters {self.part.name} and {other.part.name}: the daemon "
                                      "knows them by their units. Swap their values in `with full_parameters(model, write=True):`")

    def module_load(self, other: torch.Tensor, assign: bool = False) -> "ShardedParameter":
        """For load_state_dict() if torch swaps parameters: the values are written, and the same parameter is swapped in."""
        with torch.no_grad():
            self.copy_(other)
        made = ShardedParameter(self.read_local(), self.part, self.requires_grad)
        made.own, made.guarded, made.aliases = self.own, self.guarded, self.aliases
        return made


def _leaf(parameter: ShardedParameter) -> torch.Tensor:
    return parameter.part.owner.leaf(parameter.part) if parameter.own else parameter


def part_of(parameter: Any) -> Optional[Part]:
    """The part of a parameter of a sharded model. None for other tensors."""
    return parameter.part if isinstance(parameter, ShardedParameter) and parameter.own else None


def become(parameter: nn.Parameter, other: nn.Parameter) -> None:
    """Afterwards the parameter object is `other`, for all references to it, and `other` is the parameter."""
    for name in ("__class__", "__dict__"):
        mine, others = getattr(parameter, name), getattr(other, name)
        setattr(parameter, name, others)
        setattr(other, name, mine)
    torch._C._swap_tensor_impl(parameter, other)  # type: ignore[attr-defined]
