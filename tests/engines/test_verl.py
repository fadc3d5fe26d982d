#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""verl's registry makes zerod's checkpoint engine, and what a rollout receives are the weights of each commit."""
from __future__ import annotations

import asyncio
import unittest
from functools import partial
from typing import Any

import jobs
from jobs import NotFound, setUpModule, support  # noqa: F401


class Verl(unittest.TestCase):
    def test_updates(self) -> None:
        """three commits; no such job, and another step than the last commit's"""
        job = jobs.Job(2, **jobs.QWEN3)
        jobs.beside([job], partial(self.run_engine, job))

    def run_engine(self, job: jobs.Job) -> None:
        from verl.checkpoint_engine.base import CheckpointEngineRegistry
        from verl.utils.import_utils import import_external_libs

        import_external_libs("zerod.verl")

        def engines(**address: Any) -> Any:
            actor, rollout = (CheckpointEngineRegistry.new("zerod", bucket_size=1 << 20, **address) for _ in range(2))
            topology = rollout.build_topology(1, 1, [actor.prepare(), rollout.prepare()])
            for engine, options in zip((actor, rollout), topology):
                engine.init_process_group(**{name: values[0] for name, values in options.items()})
            return actor, rollout

        async def update(engines: Any, step: int) -> Any:
            """Of verl's steps, which begin at 0."""
            actor, rollout = engines
            await actor.send_weights(None, global_steps=step)
            return {name: tensor async for name, tensor in rollout.receive_weights(global_steps=step)}

        pair, model = engines(**job.address), jobs.make(seed=1, **jobs.QWEN3)
        for _ in range(jobs.UPDATES):
            step, wanted = job.update()
            model.load_state_dict(asyncio.run(update(pair, step - 1)))
            self.assertEqual(jobs.tokens(model), wanted)
        with self.assertRaisesRegex(RuntimeError, f"verl's step is {step}, and the last commit of .* is of step {step}, not {step + 1}"):
            asyncio.run(update(pair, step))
        with self.assertRaisesRegex(NotFound, "no group 'world' in job 'none'"):
            asyncio.run(update(engines(job="none"), 1))


if __name__ == "__main__":
    support.main()
