#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SGLang with zerod.sglang's loader, beside a job that trains: its tokens are transformers' after each commit."""
from __future__ import annotations

import os
import tempfile
import unittest
from functools import partial

import jobs
from jobs import setUpModule, support  # noqa: F401


class Sglang(unittest.TestCase):
    def test_updates(self) -> None:
        """three commits, no such job, and a job with another shape"""
        with tempfile.TemporaryDirectory() as folder:
            jobs.make(seed=1, **jobs.QWEN3).save_pretrained(folder)
            job, wide = jobs.Job(2, **jobs.QWEN3), jobs.Job(1, **{**jobs.QWEN3, "intermediate_size": 384})
            jobs.beside([job, wide], partial(self.run_engine, folder, job, wide))

    def run_engine(self, folder: str, job: jobs.Job, wide: jobs.Job) -> None:
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
        import sglang
        from zerod import sglang as zs

        engine = sglang.Engine(
            model_path=folder, device="cpu", dtype="float32", attention_backend="torch_native", sampling_backend="pytorch",
            disable_cuda_graph=True, disable_overlap_schedule=True, max_total_tokens=4096, mem_fraction_static=0.2,
            grammar_backend="none", skip_server_warmup=True, skip_tokenizer_init=True, log_level="error",
            custom_weight_loader=[zs.LOADER])

        def generated() -> "list[list[int]]":
            parameters = dict(temperature=0, max_new_tokens=jobs.TOKENS, ignore_eos=True)
            return [made["output_ids"] for made in engine.generate(input_ids=jobs.PROMPTS, sampling_params=parameters)]

        self.assertEqual(generated(), jobs.tokens(jobs.make(seed=1, **jobs.QWEN3)))
        for _ in range(jobs.UPDATES):
            step, wanted = job.update()
            zs.update(engine, job.address, step)
            self.assertEqual(generated(), wanted)
        wide.update()
        for address, error in (({"job": "none"}, "no group 'world' in job 'none'"),
                               (wide.address, r"mlp.down_proj.weight has the shape \[128, 384\] in the job and \[128, 256\]")):
            with self.assertRaisesRegex(Exception, error):
                zs.update(engine, address)
        self.assertEqual(generated(), wanted)
        engine.shutdown()


if __name__ == "__main__":
    support.main()
