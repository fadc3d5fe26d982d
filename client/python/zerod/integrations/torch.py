# SPDX-License-Identifier: Apache-2.0
"""torch.nn.parallel and torch.distributed.checkpoint.state_dict with sharded modules, for which torch has no hook."""
from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from ..torch import whole
from ..torch.sharded import ShardedParameter, ShardedTensor, ShardedWrite
from . import clip_grad
from .late import replaces


def install() -> None:
    """Harmless when repeated."""
    _refuse_ddp()
    _take_inputs()
    clip_grad.install()
    if torch.distributed.is_available():
        _refuse_collectives()
        _shard_states()
        _stage_parts()


def _refuse_ddp() -> None:
    """DistributedDataParallel with sharded parameters raises, because it would broadcast rank 0's parts."""
    @replaces(nn.parallel.DistributedDataParallel, "__init__")
    def init(plain: Any, self: nn.Module, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        for name, parameter in module.named_parameters():
            if isinstance(parameter, ShardedParameter):
                raise RuntimeError(f"DistributedDataParallel around a sharded parameter ({name}): zerod.torch sums the gradients "
                                   "of all ranks. Call the module that shard() returned")
        plain(self, module, *args, **kwargs)


def _take_inputs() -> None:
    """backward(inputs=) with sharded parameters uses the whole parameters of the forward: the graph has only these."""
    @replaces(torch.autograd, "backward")
    def backward(plain: Any, tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: bool = False,
                 grad_variables: Any = None, inputs: Any = None) -> None:
        plain(tensors, grad_tensors, retain_graph, create_graph, grad_variables, tree_map_only(ShardedParameter, _whole_leaf, inputs))


def _whole_leaf(parameter: ShardedParameter) -> torch.Tensor:
    unit, index = parameter.part.place
    return unit.leaves[index] if parameter.own else parameter


def _refuse_collectives() -> None:
    """all_reduce() and similar calls with sharded tensors raise, because torch would pass no memory to their backends."""
    from torch.distributed import distributed_c10d as c10d

    def check(plain: Any, given: Any, name: str) -> None:
        for each in given if isinstance(given, (list, tuple)) else (given,):
            if isinstance(each, ShardedTensor):
                raise ShardedWrite(f"a collective of torch.distributed on a sharded tensor ({each.part.name}), of which each rank has "
                                   "another part. zerod.torch sums gradients itself; whole() gives the whole")
        plain(given, name)

    for name in ("_check_single_tensor", "_check_tensor_list"):
        replaces(c10d, name)(check)


def _shard_states() -> None:
    """get_model_state_dict() and get_optimizer_state_dict() return sharded tensors, or whole ones for full_state_dict."""
    import torch.distributed.checkpoint.state_dict as states

    @replaces(states, "_get_model_state_dict")
    def get_sharded(plain: Any, *args: Any, **kwargs: Any) -> Any:
        whole.sharded_states += 1
        try:
            return plain(*args, **kwargs)
        finally:
            whole.sharded_states -= 1

    @replaces(states, "_maybe_full_or_cpu_state_dict")
    def finish_sharded(plain: Any, state: dict[str, Any], info: Any) -> dict[str, Any]:
        if info.full_state_dict:
            state = tree_map_only(ShardedTensor, lambda tensor: tensor.whole(), state)
        return plain(state, info)


def _stage_parts() -> None:
    """dcp.async_save() copies this rank's part of a sharded tensor to the CPU."""
    try:
        from torch.distributed.checkpoint._state_dict_stager import StateDictStager
    except ImportError:  # an older torch calls to("cpu")
        return

    @replaces(StateDictStager, "deepcopy_with_tensor_offload")
    def copy(plain: Any, self: Any, x: Any, memo: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, ShardedTensor):
            return plain(self, x, memo, *args, **kwargs)
        memo = {} if memo is None else memo
        if id(x) not in memo:
            memo[id(x)] = ShardedTensor(x.read_local().detach().to("cpu", copy=True), x.part)
        return memo[id(x)]
