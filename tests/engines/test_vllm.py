#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM with WeightTransferConfig(backend="zerod"), beside a job that trains: its tokens are transformers' after each commit."""
from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from functools import partial
from typing import Any

import jobs
from jobs import setUpModule, support, test_frameworks  # noqa: F401


class Vllm(unittest.TestCase):
    def test_updates(self) -> None:
        """three commits, one that updates overwrite meanwhile, wrong jobs and one that ends, with one worker and with two"""
        for workers, model in ((1, jobs.MOE), (2, jobs.QWEN3)):
            with self.subTest(workers=workers), tempfile.TemporaryDirectory() as folder:
                jobs.make(seed=1, **model).save_pretrained(folder)
                job, wide = jobs.Job(2, **model), jobs.Job(1, **{**jobs.MOE, "moe_intermediate_size": 96})
                jobs.beside([job, wide], partial(self.run_engine, folder, workers, job, wide))

    def run_engine(self, folder: str, workers: int, job: jobs.Job, wide: jobs.Job) -> None:
        os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="|".join("01"[:workers]),
                          VLLM_LOGGING_LEVEL="ERROR", VLLM_ENABLE_V1_MULTIPROCESSING=str(workers - 1))
        from vllm import LLM
        from vllm.config import WeightTransferConfig

        llm = LLM(folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=64, max_num_seqs=4,
                  tensor_parallel_size=workers, weight_transfer_config=WeightTransferConfig(backend="zerod"),
                  worker_extension_cls="jobs.Hold")
        try:
            self.update_engine(llm, folder + "/mark", workers, job, wide)
        finally:
            llm.llm_engine.engine_core.shutdown()  # this process ends without Python's exit handlers

    def update_engine(self, llm: Any, mark: str, workers: int, job: jobs.Job, wide: jobs.Job) -> None:
        from vllm import SamplingParams

        def generated() -> "list[list[int]]":
            llm.reset_prefix_cache()
            parameters = SamplingParams(temperature=0, max_tokens=jobs.TOKENS, ignore_eos=True, detokenize=False)
            made = llm.generate([{"prompt_token_ids": prompt} for prompt in jobs.PROMPTS], parameters, use_tqdm=False)
            return [list(one.outputs[0].token_ids) for one in made]

        def take(address: Any, **update: int) -> None:
            llm.init_weight_transfer_engine({"init_info": address})
            llm.start_weight_update()
            llm.update_weights({"update_info": update})
            llm.finish_weight_update()

        self.assertEqual(generated(), jobs.tokens(jobs.make(seed=1, **job.model)))
        for _ in range(jobs.UPDATES):
            before = generated()
            step, wanted = job.update()
            take(job.address, step=step)
            self.assertEqual(generated(), wanted)
            self.assertNotEqual(before, wanted)
        llm.collective_rpc("hold_next", args=(job.address, mark))
        later = jobs.meanwhile(mark, job.update)
        take(job.address, step=step)
        self.assertEqual(generated(), wanted)  # of the commit that was pinned
        step, wanted = later()
        take(job.address, step=step)
        self.assertEqual(generated(), wanted)
        if workers == 1:  # after an error of several workers vLLM does not know which answer is to which call
            wide.update()
            wrong = r"experts.0.down_proj.weight has the shape \[128, 96\] in the job and \[128, 64\]"
            for address, error in (({"job": "none"}, "no group 'world' in job 'none'"), (wide.address, wrong)):
                with self.assertRaisesRegex(Exception, error):
                    take(address)
            self.assertEqual(generated(), wanted)
        os.remove(mark)
        llm.collective_rpc("hold_next", args=(job.address, mark))
        jobs.meanwhile(mark, job.end)
        with self.assertRaisesRegex(Exception, f"'{job.address['job']}'"):
            take(job.address)

    def test_example(self) -> None:
        """rl.py learns with vLLM as its engine"""
        example = support.ROOT / "client" / "examples" / "torch" / "rl.py"
        done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(example), "--updates", "20"],
                              env={**os.environ, "ZEROD_SOCKET": test_frameworks.daemon.socket, "OMP_NUM_THREADS": "1"},
                              capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("vLLM generates on the CPU", done.stdout)
        rewards = [float(each) for each in re.findall(r"reward ([0-9.]+)", done.stdout)]
        self.assertGreater(rewards[-1], 3 * rewards[0])


if __name__ == "__main__":
    support.main()
