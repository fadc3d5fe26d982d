# SPDX-License-Identifier: Apache-2.0
"""titan - torchtitan trains its Llamas with zerod instead of fully_shard().

    PYTHONPATH=client/examples/torch torchrun --nproc-per-node 2 -m torchtitan.train --module titan --config llama3_8b

This module has every configuration of torchtitan's models/llama3, with the function below as its parallelize_fn. Tried with
torchtitan 0.3.
"""
from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed.compile import apply_compile
from torchtitan.models.llama3 import config_registry
from torchtitan.tools.utils import device_type

import zerod.torch as zt


def parallelize(model: nn.Module, *, parallel_dims: Any, training: Any, parallelism: Any, compile_config: Any, ac_config: Any,
                dump_folder: str) -> nn.Module:
    """Shards a model on the meta device. The trainer initializes it afterwards."""
    for name in ("tp", "cp", "pp", "ep", "dp_replicate"):
        if getattr(parallel_dims, f"{name}_enabled"):
            raise ValueError(f"{name} is enabled: this example shards over all ranks, and has no other parallelism")
    if training.enable_cpu_offload:
        raise ValueError("enable_cpu_offload is set: the trainer would move the parameters. Give shard() offload= in its place")
    if ac_config is not None:
        ac_config.build(dump_folder=dump_folder).apply(model)
    if compile_config.enable and "model" in compile_config.components:
        apply_compile(model, compile_config=compile_config, parallel_dims=parallel_dims)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else torch.empty_like(buffer, device=device_type)
    return zt.shard(model, policy=[*model.layers.values(), model.tok_embeddings, model.lm_head],
                    param_dtype=TORCH_DTYPE_MAP[training.mixed_precision_param],
                    reduce_dtype=TORCH_DTYPE_MAP[training.mixed_precision_reduce],
                    stage=2 if parallelism.fsdp_reshard_after_forward == "never" else 3,
                    op="sum")  # the loss is over the tokens of all ranks


def __getattr__(name: str) -> Callable[[], Any]:
    made = getattr(config_registry, name)

    def config() -> Any:
        changed = made()
        changed.model_spec.parallelize_fn = parallelize
        return changed

    return config
