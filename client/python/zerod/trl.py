# SPDX-License-Identifier: Apache-2.0
"""TRL's trainers with a vLLM server that reads their weights from the daemon, without NCCL. Tried with TRL 1.16, vLLM 0.32.

    VLLM_SERVER_DEV_MODE=1 vllm serve PATH --weight-transfer-config '{"backend": "zerod"}' --logprobs-mode processed_logprobs

    zerod.trl.install()
    GRPOTrainer(zt.shard(model), args=GRPOConfig(use_vllm=True, vllm_mode="server", ...), ...)
"""
from __future__ import annotations

from typing import Any, Callable

import zerod.torch as zt


def install() -> None:
    """All ranks call it before they make a trainer. It does not affect models that are not sharded. Harmless when repeated."""
    from trl.generation.vllm_generation import VLLMGeneration

    if hasattr(VLLMGeneration, "_zerod"):
        return
    plain_init, plain_sync = VLLMGeneration._init_vllm, VLLMGeneration.sync_weights
    VLLMGeneration._zerod = True
    VLLMGeneration._init_vllm = lambda self: _init(self, plain_init)
    VLLMGeneration.sync_weights = lambda self: _sync(self, plain_sync)


def _sharded(generation: Any) -> bool:
    return generation.mode == "server" and zt.is_sharded(generation.model)


def _init(generation: Any, plain: Callable[[Any], None]) -> None:
    """TRL's client makes no communicator: the server reads from the daemon."""
    from trl.generation import vllm_generation

    if not _sharded(generation):
        return plain(generation)
    address = zt.share(generation.model, checkpoint=True)

    class Client(vllm_generation.VLLMClient):
        def init_communicator(self, device: Any = 0) -> None:
            self._post(f"{self.base_url}/init_weight_transfer_engine", json={"init_info": address})

    plain_client, vllm_generation.VLLMClient = vllm_generation.VLLMClient, Client
    try:
        plain(generation)
    finally:
        vllm_generation.VLLMClient = plain_client


def _sync(generation: Any, plain: Callable[[Any], None]) -> None:
    """Makes a commit of all ranks. The server has loaded it when this returns."""
    if not _sharded(generation):
        return plain(generation)
    step = zt.commit(generation.model)
    if generation.accelerator.is_main_process:
        client = generation.vllm_client
        with client.weight_update():
            client._post(f"{client.base_url}/update_weights", json={"update_info": {"step": step}})
        client.reset_prefix_cache()
    zt.barrier(generation.model)
