#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiled models, models of others, peak memory, models without weights on most ranks, and the summary."""
from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import unittest
from typing import Any
from unittest import mock

import harness
import models
import torch
from harness import compare, same, support
from torch import nn

import zerod.torch as zt
from zerod.torch.environment import job_name


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


class Counting:
    """A backend that counts graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


def backend_of(kind: str, counting: Counting) -> Any:
    if kind == "eager":
        return counting
    if kind == "inductor":
        import torch._inductor.config
        from torch._inductor.compile_fx import compile_fx

        torch._inductor.config.compile_threads = 1  # no processes beside a rank's
        if hasattr(torch._inductor.config, "deterministic"):
            torch._inductor.config.deterministic = True

        def compiled(graph: Any, inputs: Any) -> Any:
            counting.graphs += 1
            return compile_fx(graph, inputs)

        return compiled
    from torch._dynamo.backends.common import aot_autograd
    from functorch.compile import make_boxed_func

    def count(graph: Any, inputs: Any) -> Any:
        counting.graphs += 1
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=count, bw_compiler=lambda graph, inputs: make_boxed_func(graph.forward))


class Compiling(unittest.TestCase):
    def check(self, kind: str, when: str) -> None:
        """Trains two ranks with compiled blocks: equal to one process, with as many graphs."""
        def compile_blocks(module: nn.Module, backend: Any) -> None:
            for block in module.blocks:
                block.compile(backend=backend)

        def run(sharded: bool, rank: int) -> Any:
            counting = Counting()
            backend = backend_of(kind, counting)
            module = harness.seeded(models.GPT).to(models.DEVICE)
            if when == "before":
                compile_blocks(module, backend)
            if sharded:
                harness.shard(module)
            if when == "after":
                compile_blocks(module, backend)
            elif when == "wrapped":
                for i, block in enumerate(module.blocks):
                    module.blocks[i] = torch.compile(block, backend=backend)
            called = torch.compile(module, backend=backend) if when == "whole" else module
            optimizer = models.adamw(module)

            def losses(_: Any, rank: int, micro: int) -> Any:
                called.vocabulary, called.length = 53, 16
                return models.gpt_loss(called, rank, micro)

            seen = harness.train(module, optimizer, losses, rank, 3)
            return seen, counting.graphs

        expected = harness.alone(lambda: run(False, 0))
        (result,) = harness.ranks(daemon.socket, 1, lambda rank: run(True, rank))
        same(result[0], expected[0], "loss")
        if when != "whole":
            self.assertEqual(result[1], expected[1])
        two = harness.ranks(daemon.socket, 2, lambda rank: run(True, rank))
        same(two[0][0][0], expected[0][0], "first loss")


class Compiled(Compiling):
    def test_blocks(self) -> None:
        """blocks compiled before and after sharding, in place and wrapped: equal, and as many graphs"""
        for kind in ("eager", "aot"):
            for when in ("before", "after", "wrapped"):
                with self.subTest(kind=kind, when=when):
                    self.check(kind, when)

    def test_whole(self) -> None:
        """the whole model compiled: equal"""
        self.check("aot", "whole")


def uncompilable() -> str:
    """Why inductor compiles nothing here, or nothing."""
    if models.DEVICE == "cpu":
        compiler = os.environ.get("CXX", "g++")
        return "" if shutil.which(compiler) else f"inductor has no C++ compiler: {compiler}"
    return "" if importlib.util.find_spec("triton") else "inductor has no triton"


class Inductor(Compiling):
    def test_blocks(self) -> None:
        """blocks compiled by inductor, before and after sharding, in place and wrapped: equal, and as many graphs"""
        reason = uncompilable()
        if reason:
            self.skipTest(reason)
        for when in ("before", "after", "wrapped"):
            with self.subTest(when=when):
                self.check("inductor", when)


class Far(nn.Module):
    """A layer behind a long name."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("n" * 130, nn.Linear(13, 13))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return getattr(self, "n" * 130)(value)


class Names(unittest.TestCase):
    def test_long_names(self) -> None:
        """blocks whose names end alike have units of their own"""
        compare(daemon.socket, 2, lambda: nn.Sequential(Far(), Far()), models.sgd, models.mlp_loss, policy=[nn.Linear])

    def test_runs(self) -> None:
        """runs of torchrun whose names begin alike have jobs of their own"""
        runs = [{"RANK": "0", "TORCHELASTIC_RUN_ID": "r" * 80 + end} for end in "ab"]
        jobs = []
        for run in runs:
            with mock.patch.dict(os.environ, run), mock.patch.dict(os.environ):
                os.environ.pop("ZEROD_JOB", None)
                jobs.append(job_name())
        self.assertNotEqual(*jobs)
        self.assertTrue(all(len(job) <= 63 for job in jobs))


class HuggingFace(unittest.TestCase):
    def check(self, make: Any) -> None:
        def losses(module: nn.Module, rank: int, micro: int) -> Any:
            generator = torch.Generator("cpu").manual_seed(1000 * micro + rank)
            batch = torch.randint(100, (2, 12), generator=generator, device="cpu").to(models.DEVICE)
            loss = module(input_ids=batch, labels=batch).loss
            loss.backward()
            return loss.detach().cpu()

        for dtype in (None, torch.bfloat16):
            compare(daemon.socket, 2, make, models.adamw, losses, steps=3, dtype=dtype)

    def test_llama(self) -> None:
        """a Llama of transformers, from its configuration"""
        try:
            from transformers import LlamaConfig, LlamaForCausalLM
        except ImportError:
            self.skipTest("transformers is not installed")
        config = LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32)
        self.check(lambda: LlamaForCausalLM(config))

    def test_moe(self) -> None:
        """a Mixtral of transformers, from its configuration"""
        try:
            from transformers import MixtralConfig, MixtralForCausalLM
        except ImportError:
            self.skipTest("transformers is not installed")
        config = MixtralConfig(vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                               num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
                               max_position_embeddings=32, output_router_logits=True)
        self.check(lambda: MixtralForCausalLM(config))


class Memory(unittest.TestCase):
    def test_peak(self) -> None:
        """what the daemon holds for a rank at most: shards, targets, buckets, and three of eight blocks"""
        with support.Daemon(devices=2, arena="64M") as own:
            def make() -> nn.Module:
                torch.manual_seed(0)
                return nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)])

            def body(rank: int) -> Any:
                os.environ["ZEROD_LAG"] = "0"  # a gradient that is late holds its entry for longer
                module = make()
                block = sum(p.numel() for p in module[0].parameters()) * 4
                harness.shard(module)
                model = module._zerod_model
                shards = sum(unit.shard.shard_numel * 4 for unit in model.units)
                model.group.barrier()
                loaded = model.client.device(rank).peak_bytes
                optimizer = models.sgd(module)
                for step in range(3):
                    module(models.numbers(rank, step, 8, 256)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                model.settle()
                model.group.barrier()
                info = model.client.device(rank)
                held = {id(p): p.detach().read_local().nbytes for p in module.parameters()}
                model.group.barrier()
                return block, shards, loaded, info.peak_bytes, info.allocated_bytes, sum(held.values())

            for block, shards, loaded, peak, held, ours in harness.ranks(own.socket, 2, body):
                entries = 8 * block + 4 * 65536  # a backward's gradients, on their way
                self.assertLessEqual(peak, 2 * shards + 3 * block + entries + 65536)
                self.assertLessEqual(held, shards + 65536)
                self.assertLessEqual(loaded, shards + 2 * block + 65536)

    def test_dropped(self) -> None:
        """a model that the program drops leaves nothing in the daemon; nor does unshard(), behind which it is a plain one"""
        def body(rank: int, dtype: Any, drops: bool) -> Any:
            module = zt.shard(harness.seeded(models.GPT), param_dtype=dtype)
            optimizer = models.adamw(module)
            for step in range(2):
                optimizer.zero_grad()
                models.gpt_loss(module, rank, step)
                optimizer.step()
            model = module._zerod_model
            client, device, before = model.client, model.device_index, dict(module.state_dict())
            zt.barrier(module)
            del optimizer, model
            if drops:
                del module
            else:
                zt.unshard(module)
                same(dict(module.state_dict()), before)
                models.gpt_loss(module, rank, 2)
                self.assertIs(type(module.head.weight.grad), torch.Tensor)
                self.assertIs(module.head.weight, module.tokens.weight)
            gc.collect()
            client.join(job=f"meet {dtype} {drops}", world_size=2, rank=rank, device=device).barrier()
            return client.device(device).gathered_bytes, client.device(device).allocated_bytes

        for dtype in (None, torch.bfloat16):
            for drops in (True, False):
                with self.subTest(dtype=dtype, drops=drops), support.Daemon(devices=2, arena="64M") as own:
                    for gathered, allocated in harness.ranks(own.socket, 2, lambda rank: body(rank, dtype, drops)):
                        self.assertEqual(gathered, 0)
                        self.assertLessEqual(allocated, 1024)  # of the group that the ranks meet in

    def test_meta(self) -> None:
        """rank 0 has the weights, the others a model on the meta device; weights streamed in block by block"""
        def body(rank: int) -> Any:
            if rank == 0:
                module = harness.seeded(models.GPT)
            else:
                with torch.device("meta"):
                    module = models.GPT()
            harness.shard(module)
            state = module.state_dict()
            with torch.device("meta"):
                empty = models.MLP()
            harness.shard(empty)
            source = harness.seeded(models.MLP)
            for name, part in source.named_children():
                getattr(empty, name).load_state_dict(part.state_dict())
            models.mlp_loss(empty, rank, 0)
            return dict(state), dict(empty.state_dict())

        for state, streamed in harness.ranks(daemon.socket, 2, body):
            same(state, dict(harness.seeded(models.GPT).state_dict()))
            same(streamed, dict(harness.seeded(models.MLP).state_dict()))

    def test_summary(self) -> None:
        """summary() counts gathers, unplanned ones, bytes"""
        def body(rank: int) -> Any:
            module = harness.shard(models.MLP())
            optimizer = models.sgd(module)
            for step in range(2):
                optimizer.zero_grad()
                models.mlp_loss(module, rank, step)
                optimizer.step()
            (module.last.weight * 1).sum()
            return zt.summary(module), str(zt.summary(module))

        for summary, line in harness.ranks(daemon.socket, 2, body):
            self.assertEqual((summary.steps, summary.backwards, summary.unplanned), (2, 2, 1))
            self.assertGreaterEqual(summary.gathers, 2 * 4)
            self.assertGreater(summary.shard_bytes, 0)
            self.assertGreater(summary.peak_bytes, summary.shard_bytes)
            self.assertRegex(line, "2 steps.*gathers.*unplanned")

    def test_evaluation(self) -> None:
        """eval() and no_grad keep nothing gathered; inference_mode works; train() goes on"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(models.GPT))
            seen = []
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    seen.append(module.eval()(models.tokens(module, rank, 0)).clone())
            model = module._zerod_model
            model.settle()
            model.group.barrier()
            gathered = model.client.device(rank).gathered_bytes
            model.group.barrier()
            models.gpt_loss(module.train(), rank, 0)
            return [torch.tensor(each.tolist()) for each in seen], gathered

        def alone(rank: int) -> torch.Tensor:
            plain = harness.seeded(models.GPT).to(models.DEVICE)
            with torch.no_grad():
                return plain(models.tokens(plain, rank, 0))

        for rank, (seen, gathered) in enumerate(harness.ranks(daemon.socket, 2, body)):
            expected = harness.alone(lambda: alone(rank))
            same(seen, [expected, expected])
            self.assertEqual(gathered, 0)


if __name__ == "__main__":
    support.main()
