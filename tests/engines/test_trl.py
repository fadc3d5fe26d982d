#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TRL's GRPOTrainer with a sharded model and a vLLM server: after each step the server's tokens are transformers'."""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from functools import partial

import jobs
import test_frameworks
import torch
import zerod.torch as zt
from jobs import harness, setUpModule, support  # noqa: F401


def save_tokenizer(folder: str) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "</s>", *map(str, range(2, 512))]
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="</s>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>", pad_token="</s>").save_pretrained(folder)


def train(folder: str, url: str, rank: int) -> int:
    import zerod.trl
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    zerod.trl.install()
    module, compared = harness.shard(jobs.make(**jobs.QWEN3)), []
    args = GRPOConfig(
        folder + "/out", use_vllm=True, vllm_mode="server", vllm_server_base_url=url, max_steps=jobs.UPDATES, use_cpu=True,
        bf16=False, per_device_train_batch_size=4, num_generations=4, max_completion_length=8, learning_rate=0.5, optim="sgd",
        report_to="none", save_strategy="no", gradient_checkpointing=False)
    trainer = GRPOTrainer(module, args=args, train_dataset=Dataset.from_list([{"prompt": "5 6 7"}] * 64),
                          processing_class=AutoTokenizer.from_pretrained(folder),
                          reward_funcs=lambda completion_ids, **_: [sum(ids) / 1000 for ids in completion_ids])

    class Compare(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            trainer.vllm_generation.sync_weights()
            plain = jobs.plain(module, **jobs.QWEN3)
            if rank == 0:
                made = trainer.vllm_generation.vllm_client.generate(
                    jobs.PROMPTS, temperature=0.0, max_tokens=jobs.TOKENS, generation_kwargs={"ignore_eos": True})
                assert made["completion_ids"] == jobs.tokens(plain), made
            compared.append(plain.lm_head.weight.sum())
            zt.barrier(module)

    trainer.add_callback(Compare())
    trainer.train()
    return len(torch.stack(compared).unique())


class Trl(unittest.TestCase):
    def test_grpo(self) -> None:
        """GRPO on two ranks, with a server that loads each commit"""
        with tempfile.TemporaryDirectory() as folder:
            jobs.make(seed=1, **jobs.QWEN3).save_pretrained(folder)
            save_tokenizer(folder)
            port = str(test_frameworks.free_port())
            server = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--dtype", "float32",
                 "--enforce-eager", "--max-model-len", "64", "--max-num-seqs", "8", "--host", "127.0.0.1", "--port", port,
                 "--logprobs-mode", "processed_logprobs", "--weight-transfer-config", '{"backend": "zerod"}'],
                env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
                     "ZEROD_SOCKET": test_frameworks.daemon.socket})
            try:
                results = test_frameworks.distributed(2, partial(train, folder, f"http://127.0.0.1:{port}"))
                self.assertEqual(results, [jobs.UPDATES] * 2)
            finally:
                server.terminate()
                server.wait(60)


if __name__ == "__main__":
    support.main()
