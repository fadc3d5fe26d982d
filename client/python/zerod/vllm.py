# SPDX-License-Identifier: Apache-2.0
"""vLLM (tried: 0.32) loads the weights of a training job: WeightTransferConfig(backend="zerod"). The package's entry point,
zerod.integrations.engines.register, registers the engine.

    llm = LLM(path, weight_transfer_config=WeightTransferConfig(backend="zerod"))
    llm.init_weight_transfer_engine({"init_info": address})     # as zerod.torch.share(checkpoint=True) has returned it
    llm.start_weight_update()
    llm.update_weights({"update_info": {"step": step}})         # the commit of this step, or of a later one
    llm.finish_weight_update()
"""
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Iterator, Optional

import torch.distributed as dist
from vllm.distributed.parallel_state import get_world_group
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader import reload

from .integrations.engines import load
from .reader import Reader


@dataclass
class Address(WeightTransferInitInfo):
    """The arguments of Reader(). compare: compares the job's weights with the model of transformers before a load."""

    job: str
    group: str = "world"
    uid: int = 0
    socket_path: Optional[str] = None
    pin_seconds: float = 10.0
    compare: bool = True


@dataclass
class Update(WeightTransferUpdateInfo):
    """For the commit of `step` or a later one, for which the engine waits at most deadline_ms. 0: the last commit; no limit."""

    step: int = 0
    deadline_ms: int = 0


class ZerodEngine(WeightTransferEngine[Address, Update]):
    """The engine of one worker. receive_weights() loads a commit as a whole, so that a failed load can be repeated."""

    init_info_cls = Address
    update_info_cls = Update
    reader: Optional[Reader] = None

    def init_transfer_engine(self, init_info: Address) -> None:
        self.shutdown()
        address = asdict(init_info)
        self.config = self.model_config.hf_config if address.pop("compare") else None
        self.reader = Reader(**address)

    def start_weight_update(self) -> None:
        pass

    def finish_weight_update(self) -> None:
        pass

    def receive_weights(self, update_info: Update) -> None:
        if self.reader is None:
            raise RuntimeError("update_weights() before init_weight_transfer_engine()")
        load(self.reader, self._take, _gather, get_world_group().rank_in_group, self.config, update_info.step, update_info.deadline_ms, maps=True)

    def _take(self, tensors: "Iterator[tuple[str, Any]]") -> None:
        reload.initialize_layerwise_reload(self.model)
        try:
            missing = {name for name, _ in self.model.named_parameters()} - (self.model.load_weights(tensors) or set())
            if missing and self.model_config.quantization is None:
                raise ValueError(f"the job shares no weights for the engine's {', '.join(sorted(missing))}")
        except BaseException:
            for layer in self.model.modules():  # finalize_layerwise_reload() gives these layers their old weights
                info = reload.layerwise.get_layerwise_info(layer)
                info.loaded_weights.clear()
                info.load_numel = 0
            raise
        finally:
            reload.finalize_layerwise_reload(self.model, self.model_config)
        for layer in self.model.modules() if self.device.type == "cpu" else ():
            kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
            if kernel is not None:  # vLLM itself packs experts for CPUs only in the first load
                kernel.fused_experts.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader = None


def _gather(value: Any) -> "list[Any]":
    group = get_world_group()
    values: list[Any] = [None] * group.world_size
    dist.all_gather_object(values, value, group=group.cpu_group)
    return values

