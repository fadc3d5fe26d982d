# SPDX-License-Identifier: Apache-2.0
"""SGLang loads the weights of a training job with a custom weight loader. Tried with SGLang 0.5.23.

    engine = sglang.Engine(model_path=path, custom_weight_loader=[zerod.sglang.LOADER])
    zerod.sglang.update(engine, address, step)      # as zerod.torch.share(checkpoint=True) has returned the address
"""
from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from .integrations.checkpoint import check
from .integrations.engines import load as load_in_all
from .reader import Reader

LOADER = "zerod.sglang.load"


def update(engine: Any, address: "dict[str, Any]", step: int = 0, deadline_ms: int = 0, compare: bool = True) -> None:
    """The engine loads the commit of `step` or a later one, for which it waits at most deadline_ms. 0: the last one; no limit.
    compare: compares the job's weights with the model of transformers before the load.

    NotFound: no such job. Deadline. ValueError: the job has other weights than the engine's model. The engine then still has its
    old weights. SGLang ends if a loader raises, for example because the job ends meanwhile. Its log has the exception.
    """
    from transformers import AutoConfig

    with Reader(**address) as reader:
        committed = reader.wait(max(step - 1, 0), deadline_ms)
        check(reader.weights(), AutoConfig.from_pretrained(engine.server_args.model_path) if compare else None)
    request = json.dumps({"address": address, "step": int(committed.step), "compare": compare}).encode()
    _done(engine.begin_weight_update())
    try:
        _done(engine.update_weights_from_tensor([("zerod", torch.frombuffer(bytearray(request), dtype=torch.uint8))], LOADER))
    finally:
        _done(engine.end_weight_update())


def load(model: Any, named_tensors: "list[tuple[str, torch.Tensor]]") -> None:
    """SGLang calls it in each of its workers."""
    from sglang.srt.distributed.parallel_state import get_world_group

    group = get_world_group()

    def gather(value: Any) -> "list[Any]":
        values: list[Any] = [None] * group.world_size
        dist.all_gather_object(values, value, group=group.cpu_group)
        return values

    request = json.loads(bytes(named_tensors[0][1].tolist()))
    with Reader(**request["address"]) as reader:
        load_in_all(reader, model.load_weights, gather, group.rank_in_group, model.config if request["compare"] else None, request["step"])


def _done(answer: "tuple[bool, str]") -> None:
    if not answer[0]:
        raise RuntimeError(f"SGLang: {answer[1]}")
