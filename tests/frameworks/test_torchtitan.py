#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's trainer with client/examples/torch/titan.py, compared with its fully_shard() on one rank.

torchtitan knows accelerators only. The tests name the CPU as one, and give it attention and data that need neither.
"""
from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import unittest
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Iterator
from unittest import mock

import harness
import test_frameworks as base
import torch
import torch._utils

import zerod.torch as zt

STEPS, ROWS, LENGTH, VOCABULARY = 4, 8, 32, 2048


def setUpModule() -> None:
    if importlib.util.find_spec("torchtitan") is None:
        raise unittest.SkipTest("torchtitan is not installed")
    base.setUpModule()
    sys.path.insert(0, str(base.support.ROOT / "client" / "examples" / "torch"))
    torch._utils._get_available_device_type = lambda: "cpu"
    for name, value in (("get_device_name", "cpu"), ("get_device_properties", SimpleNamespace(total_memory=1 << 30)),
                        ("memory_stats", {}), ("reset_peak_memory_stats", None), ("empty_cache", None)):
        setattr(torch.cpu, name, lambda *_, value=value: value)
    import titan  # noqa: F401  (once, not in every process)


def configuration(folder: str, sharded: bool, world: int, options: dict[str, Any]) -> Any:
    import titan
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import config_registry

    class Data(BaseDataLoader):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            pass

        def __init__(self, config: Any, *, dp_world_size: int, dp_rank: int, **_: Any) -> None:
            self.world, self.rank, self.step = dp_world_size, dp_rank, 0

        def __iter__(self) -> Iterator[Any]:
            while True:
                generator = torch.Generator().manual_seed(self.step)
                rows = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), generator=generator).chunk(self.world)[self.rank]
                self.step += 1
                yield {"input": rows[:, :-1]}, rows[:, 1:]

        def state_dict(self) -> dict[str, Any]:
            return {"step": self.step}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.step = state["step"]

    made = (titan if sharded else config_registry).llama3_debugmodel()
    made.model_spec.model.layers = made.model_spec.model.layers[:2]
    for layer in made.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    made.tokenizer, made.dataloader, made.dump_folder = mock.Mock(), Data.Config(), folder
    for part, values in (("training", {"local_batch_size": ROWS // world, "seq_len": LENGTH, "steps": STEPS, "disable_cuda_graphs": True,
                                       "mixed_precision_param": "float32"}),
                         ("debug", {"seed": 1}), ("checkpoint", {"enable": True, "interval": STEPS // 2}), *options.items()):
        for name, value in values.items():
            setattr(getattr(made, part), name, value)
    return made


def train(folder: str, sharded: bool, world: int, options: dict[str, Any]) -> list[tuple[float, float]]:
    """Loss and norm of each step."""
    from torchtitan.components.metrics import MetricsProcessor

    seen: list[tuple[float, float]] = []
    with mock.patch.object(MetricsProcessor, "log", lambda _, step, loss, most, norm, **__: seen.append((float(loss), float(norm)))), \
         mock.patch("torchtitan.distributed.utils.set_pg_timeouts"), mock.patch("time.sleep"):
        trainer = configuration(folder, sharded, world, options).build()
        trainer.train()
        trainer.close()
    if sharded:
        zt.barrier(trainer.model_parts[0])
    return seen


class Torchtitan(unittest.TestCase):
    def test_train(self) -> None:
        """losses and norms on 1, 2 and 4 ranks, with checkpointing and the loss in pieces; fully_shard() resumes"""
        for worlds, options in (((1, 2, 4), {}), ((2,), {"training": {"mixed_precision_param": "bfloat16"}})):
            tolerance = 1e-3 if options else 1e-4  # of torch's norm of large tensors in float32
            with tempfile.TemporaryDirectory() as folder:
                [expected] = base.distributed(1, lambda _: train(folder + "/plain", False, 1, options))
                for world in worlds:
                    with self.subTest(world=world, **options):
                        for result in base.distributed(world, lambda _: train(f"{folder}/{world}", True, world, options)):
                            torch.testing.assert_close(result, expected, rtol=tolerance, atol=0)
                shutil.rmtree(f"{folder}/2/checkpoint/step-{STEPS}")
                for result in base.distributed(1, lambda _: train(folder + "/2", False, 1, options)):
                    torch.testing.assert_close(result, expected[STEPS // 2:], rtol=tolerance, atol=0)

    def test_mistakes(self) -> None:
        """another parallelism"""
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(harness.Failed, "ValueError: tp is enabled"):
            base.distributed(2, lambda _: train(folder, True, 2, {"parallelism": {"tensor_parallel_degree": 2}}))


if __name__ == "__main__":
    base.support.main()
