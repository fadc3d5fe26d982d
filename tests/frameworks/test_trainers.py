#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peft's adapters in transformers' Trainer, and trl's trainers, with sharded models, compared with one process."""
from __future__ import annotations

import copy
import tempfile
import unittest
from functools import partial
from importlib.metadata import version
from typing import Any

import harness
import test_frameworks as base
import torch
from torch import nn

import zerod.torch as zt

STEPS, BATCH = 4, 4


def setUpModule() -> None:
    base.setUpModule()
    tempfile.tempdir = base.scratch.name  # wandb, which torchtitan brings, leaves folders there


def close(results: list[Any], expected: Any) -> None:
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def adapted(**options: Any) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    return get_peft_model(base.llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian", **options))


class Peft(unittest.TestCase):
    def test_adapters(self) -> None:
        """LoRA and DoRA; the saved adapters are read by a plain program"""
        for options in ({}, {"use_dora": True}):
            with self.subTest(**options), tempfile.TemporaryDirectory() as folder:
                expected = harness.alone(lambda: base.train(folder + "/alone", adapted(**options), 1))
                base.close(base.distributed(2, lambda _: base.train(folder + "/sharded", harness.shard(adapted(**options)), 2)), expected)

                def read() -> Any:
                    from peft import PeftModel

                    return dict(PeftModel.from_pretrained(base.llama(), f"{folder}/sharded/checkpoint-{base.STEPS}").state_dict())

                base.close([(expected[0], harness.alone(read))], expected)

    def test_merge(self) -> None:
        """merge_and_unload() merges masters, and the merged model runs and trains, also with param_dtype"""
        if version("peft") < "0.20":
            self.skipTest(f"peft {version('peft')}: with param_dtype the merged model was tried with 0.21")

        def merged(sharded: bool, dtype: Any, options: dict[str, Any], _: int = 0) -> Any:
            module = adapted(**options)
            for name, parameter in module.named_parameters():
                if "lora_B" in name:
                    nn.init.normal_(parameter, std=0.1)
            made = (harness.shard(module, param_dtype=dtype) if sharded else module).merge_and_unload()
            weights = copy.deepcopy(dict(made.state_dict()))
            ids = torch.arange(12)[None]
            if dtype is not None:
                with torch.no_grad():
                    return weights, made.to(made.dtype if sharded else dtype)(ids).logits
            optimizer = torch.optim.SGD(made.requires_grad_(True).parameters(), lr=0.1)
            made(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            return weights, dict(made.state_dict())

        for options in ({}, {"use_dora": True}):
            for dtype in (None, torch.bfloat16):
                with self.subTest(dtype=dtype, **options):
                    expected = harness.alone(partial(merged, False, dtype, options))
                    results = base.distributed(2, partial(merged, True, dtype, options))
                    close([result[0] for result in results], expected[0])
                    for _, after in results:
                        torch.testing.assert_close(after, expected[1], rtol=1e-2 if dtype else 1e-5, atol=1e-2 if dtype else 1e-5)


def words() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(61))]
    made = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def text(numel: int, seed: int) -> str:
    return " ".join(f"w{word}" for word in torch.randint(0, 61, (numel,), generator=torch.Generator().manual_seed(seed)).tolist())


def trained(folder: str, kind: str, world: int) -> Any:
    """Losses and norms, and the weights."""
    import trl
    from datasets import Dataset

    sharded = harness.shard if world > 1 else lambda module: module
    options: Any = {"max_steps": STEPS, "per_device_train_batch_size": BATCH // world, "learning_rate": 1e-2, "logging_steps": 1,
                    "save_steps": 2, "use_cpu": True, "report_to": [], "disable_tqdm": True, "bf16": False}
    if kind == "SFT":
        data = Dataset.from_list([{"text": text(10, row)} for row in range(32)])
        trainer = trl.SFTTrainer(sharded(base.llama()), args=trl.SFTConfig(folder, max_length=16, **options), train_dataset=data,
                                 processing_class=words())
    else:
        data = Dataset.from_list([{"prompt": text(5, 3 * row), "chosen": text(5, 3 * row + 1), "rejected": text(5, 3 * row + 2)}
                                  for row in range(32)])
        trainer = trl.DPOTrainer(sharded(base.llama()), sharded(base.llama()), args=trl.DPOConfig(folder, max_length=24, **options),
                                 train_dataset=data, processing_class=words())
    trainer.train()
    seen = [[logs[key] for key in ("loss", "grad_norm") if key in logs] for logs in trainer.state.log_history]
    weights = dict(trainer.model.state_dict())
    if world > 1:
        zt.barrier(trainer.model)
    return seen, weights


class Trl(unittest.TestCase):
    def test_trainers(self) -> None:
        """SFTTrainer, and DPOTrainer with a reference model that is sharded as well"""
        for kind in ("SFT", "DPO"):
            with self.subTest(kind=kind), tempfile.TemporaryDirectory() as folder:
                expected = harness.alone(partial(trained, folder + "/alone", kind, 1))
                close(base.distributed(2, lambda _: trained(folder + "/sharded", kind, 2)), expected)


if __name__ == "__main__":
    base.support.main()
