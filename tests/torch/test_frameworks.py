#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers.Trainer and accelerate with sharded models, compared with one process."""
from __future__ import annotations

import dataclasses
import inspect
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
import warnings
from typing import Any, Callable, Optional
from unittest import mock

import harness
import models
import torch
import torch.distributed.fsdp
from harness import support
from torch import nn

import zerod.torch as zt
from zerod import integrations

STEPS, BATCH, RATE = 6, 4, 1e-2


def setUpModule() -> None:
    global daemon, scratch
    scratch = tempfile.TemporaryDirectory()  # torchrun leaves folders there
    unittest.addModuleCleanup(scratch.cleanup)
    daemon = support.Daemon(devices=4, arena="128M").for_module()
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", HF_HUB_DISABLE_PROGRESS_BARS="1")
    warnings.filterwarnings("ignore")


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2))


def run(folder: str, *arguments: str) -> None:
    """A Python program of its own."""
    environment = {**os.environ, "ZEROD_SOCKET": daemon.socket, "OMP_NUM_THREADS": "1", "TMPDIR": scratch.name,
                   "PYTHONPATH": str(support.ROOT / "client" / "python")}
    done = subprocess.run([os.path.abspath(sys.executable), *arguments], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=harness.TIMEOUT_S)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def distributed(world: int, body: Callable[[int], Any]) -> list[Any]:
    """As torchrun starts them."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    try:
        return harness.ranks(daemon.socket, world, body)
    finally:
        del os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]


def make_trainer(folder: str, model: nn.Module, world: int, optimizer: Any = None, **options: Any) -> Any:
    torch.set_default_device("cpu")  # not that of harness.fork(): loaders have generators of the CPU
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=BATCH // world, learning_rate=RATE, weight_decay=0.1, logging_steps=1,
        save_strategy="steps", save_steps=STEPS // 2, eval_strategy="steps", eval_steps=STEPS // 2, use_cpu=models.DEVICE == "cpu",
        report_to=[], disable_tqdm=True, lr_scheduler_type="linear", **options)
    trainer = Trainer(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens(),
                      optimizers=(optimizer(model) if optimizer else None, None))
    trainer.log = lambda logs, *_, **__: trainer.state.log_history.append(logs)
    return trainer


def train(folder: str, model: nn.Module, world: int, resume: Optional[str] = None, optimizer: Any = None, **options: Any) -> Any:
    """Losses and norms that the Trainer has logged, and the weights."""
    trainer = make_trainer(folder, model, world, optimizer, **options)
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.model_wrapped is model, "wrapped"
    seen = [[logs[key] for key in ("loss", "grad_norm", "eval_loss") if key in logs] for logs in trainer.state.log_history]
    return seen[-3:] if resume else seen, model.state_dict()


def close(results: list[Any], expected: Any, tolerance: float = 1e-5) -> None:
    """Losses and norms are within the tolerance, and so is the norm of the weights' difference. A single weight may differ by more:
    where gradients cancel to Adam's epsilon of 1e-8, a step has their rounding, as float32 has in one process against float64."""
    for seen, weights in results:
        torch.testing.assert_close(seen, expected[0], rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(weights, expected[1], rtol=tolerance, atol=RATE / 100 if tolerance else 0)
        ours, theirs = (torch.cat([each[name].double().flatten() for name in weights]) for each in (weights, expected[1]))
        assert (ours - theirs).norm() <= tolerance * theirs.norm()


class Trainer(unittest.TestCase):
    def test_train(self) -> None:
        """clipping, a schedule, evaluation and checkpoints; accumulation; on 2 and 4 ranks, as one process"""
        for world, options in ((2, {}), (4, {}), (2, {"gradient_accumulation_steps": 2, "optim": "adamw_torch_fused"})):
            with self.subTest(world=world, **options), tempfile.TemporaryDirectory() as folder:
                expected = harness.alone(lambda: train(folder + "/alone", llama(), 1, **options))
                results = distributed(world, lambda _: train(folder + "/sharded", harness.shard(llama()), world, **options))
                close(results, expected)

    def test_resume(self) -> None:
        """the bits of a run without a break, with masters and zt.AdamW too; as close as sums are on another number of ranks"""
        half: Any = {"param_dtype": torch.bfloat16}
        for first, second, options, optimizer in ((2, 2, {}, None), (2, 4, {}, None), (2, 2, half, None),
                                                  (2, 2, half, lambda model: zt.AdamW(model.parameters(), lr=1e-2))):
            with self.subTest(first=first, second=second, optimizer=bool(optimizer), **options), tempfile.TemporaryDirectory() as folder:
                def run(world: int, name: str, resume: Optional[str]) -> list[Any]:
                    return distributed(world, lambda _: train(folder + name, harness.shard(llama(), **options), world, resume, optimizer))

                whole = run(first, "/whole", None)[0]
                resumed = run(second, "/resumed", f"{folder}/whole/checkpoint-{STEPS // 2}")
                close(resumed, (whole[0][-3:], whole[1]), 1e-5 if second != first else 0)

    def test_plain(self) -> None:
        """a checkpoint's weights are read by from_pretrained(); its optimizer's state by nobody, and the file says where it is"""
        with tempfile.TemporaryDirectory() as folder:
            weights = distributed(2, lambda _: train(folder, harness.shard(llama(), param_dtype=torch.bfloat16), 2))[0][1]
            saved = f"{folder}/checkpoint-{STEPS}"
            from transformers import LlamaForCausalLM

            harness.same(dict(LlamaForCausalLM.from_pretrained(saved).state_dict()), weights)
            self.assertIn("zerod.torch.shard()", torch.load(saved + "/optimizer.pt")["zerod"])

    def test_mistakes(self) -> None:
        """fsdp= beside; another model in the Trainer; changed embeddings"""
        def body(rank: int, folder: str) -> None:
            from transformers import TrainerCallback

            class Other(TrainerCallback):
                def on_step_end(self, *_: Any, **__: Any) -> None:
                    trainer.model = llama()

            model = harness.shard(llama())
            with self.assertRaisesRegex(zt.ShardedWrite, "keeps its shape"):
                model.resize_token_embeddings(80)
            with self.assertRaisesRegex(ValueError, "configured for FSDP"), mock.patch.dict(os.environ):
                train(folder, model, 2, fsdp="full_shard")
            trainer = make_trainer(folder, model, 2)
            trainer.add_callback(Other())
            with self.assertRaisesRegex(ValueError, "make another Trainer"):
                trainer.train()

        with tempfile.TemporaryDirectory() as folder:
            distributed(2, lambda rank: body(rank, folder))

    def test_batches(self) -> None:
        """ranks whose own loaders differ in length: an error before the first step, unless all take max_steps steps alike"""
        def body(rank: int, accumulate: int, steps: int, logs: str = "no") -> int:
            trainer = make_trainer(folder, harness.shard(llama()), 2, gradient_accumulation_steps=accumulate, logging_strategy=logs)
            trainer.args.max_steps = steps
            trainer.get_train_dataloader = lambda: torch.utils.data.DataLoader(Tokens(), 16 << rank)
            trainer.train()
            zt.barrier(trainer.model)
            return trainer.state.global_step

        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(distributed(2, lambda rank: body(rank, 1, 3)), [3, 3])
            for case in ((2, 3), (1, -1), (1, 3, "epoch")):
                with self.assertRaisesRegex(harness.Failed, "ValueError: .* training batches: 4 on rank 0, 2 on rank 1"):
                    distributed(2, lambda rank: body(rank, *case))

    def test_generate(self) -> None:
        """one rank alone generates what one process does"""
        def generate(model: nn.Module) -> Any:
            prompt = torch.arange(5, device=next(model.parameters()).device)[None]
            return model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)

        def body(rank: int) -> Any:
            model = harness.shard(llama())
            return generate(model) if rank == 0 else None

        harness.same(distributed(2, body)[0], harness.alone(lambda: generate(llama())))

    @unittest.skipIf("ZD_SEVERAL" in os.environ, "torch sees one GPU, and the example gives each rank its own")
    def test_example(self) -> None:
        """the program in README.md, by torchrun"""
        with tempfile.TemporaryDirectory() as folder:
            harness.example(folder, "README.md", "transformers import")
            for world in (1, 2, 4):
                run(folder, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "train.py")
                self.assertIn("zerod", os.listdir(folder + "/out/checkpoint-20"))


def accelerated(model: nn.Module, folder: Optional[str], world: int, rank: int) -> Any:
    """Two epochs of one accumulated step after another. With a folder: the state is saved after the first, and the second
    begins with what is read from there."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=models.DEVICE == "cpu", gradient_accumulation_steps=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    prepared, stepped = accelerator.prepare(model, optimizer)
    assert prepared is model, "wrapped"
    norms = []

    def epoch(number: int) -> None:
        for micro in range(4):
            with accelerator.accumulate(prepared):
                both = torch.cat([models.numbers(each, 4 * number + micro, 6, 13) for each in range(2)])
                each = both.chunk(world)[rank]
                accelerator.backward(prepared(each).square().mean())
                if accelerator.sync_gradients:
                    norms.append(float(accelerator.clip_grad_norm_(prepared.parameters(), 0.1)))
                stepped.step()
                stepped.zero_grad()

    epoch(0)
    if folder is not None:
        location = accelerator.save_state(folder)
        epoch(5)  # what load_state() takes back
        accelerator.load_state(location)
        del norms[2:]
    epoch(1)
    return norms, accelerator.get_state_dict(prepared)


class Fsdp2(unittest.TestCase):
    def test_names(self) -> None:
        """docs/pytorch.md names every argument of fully_shard() and its policies, and every method of FSDPModule"""
        fsdp = torch.distributed.fsdp
        names = [*inspect.signature(fsdp.fully_shard).parameters, *(name for name in vars(fsdp.FSDPModule) if name[0] != "_"),
                 *(field.name for policy in (fsdp.MixedPrecisionPolicy, fsdp.CPUOffloadPolicy) for field in dataclasses.fields(policy))]
        text = (support.ROOT / "docs" / "pytorch.md").read_text().split("## From FSDP2")[1].split("## From DeepSpeed")[0]
        self.assertEqual([name for name in names if not re.search(rf"`[^`|]*\b{name}\b", text)], [])


class Accelerate(unittest.TestCase):
    def test_accelerate(self) -> None:
        """prepare(), accumulate(), clip_grad_norm_(), save_state() and load_state(), as one process"""
        expected = harness.alone(lambda: accelerated(harness.seeded(models.MLP), None, 1, 0))
        for options in ({}, {"stage": 2}):
            with self.subTest(**options), tempfile.TemporaryDirectory() as folder:
                for result in distributed(2, lambda rank: accelerated(harness.shard(harness.seeded(models.MLP), **options), folder, 2, rank)):
                    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)

    def test_imported_late(self) -> None:
        """a package that is imported after shard() is changed as well, once, and others are not"""
        program = """
import sys, torch, zerod.torch as zt
module = zt.shard(torch.nn.Linear(4, 4))
assert "accelerate" not in sys.modules and "transformers" not in sys.modules
from accelerate import Accelerator
from transformers import Trainer
assert Accelerator.prepare._zerod and Trainer._save_optimizer_and_scheduler._zerod
assert Accelerator(cpu=True).prepare(module) is module
assert type(Accelerator().prepare(torch.nn.Linear(4, 4))) is torch.nn.Linear
zt.shard(torch.nn.Linear(4, 4))
assert not hasattr(Accelerator.prepare.__wrapped__, "_zerod")
"""
        run(".", "-c", program)

    def test_mistakes(self) -> None:
        """another way of sharding beside; DistributedDataParallel by hand; a version without what is changed"""
        def body(_: int) -> None:
            from accelerate import Accelerator

            module = harness.shard(harness.seeded(models.MLP))
            accelerator = Accelerator(cpu=models.DEVICE == "cpu")
            with self.assertRaisesRegex(RuntimeError, "around a sharded parameter"):
                nn.parallel.DistributedDataParallel(module)
            accelerator.state.distributed_type = "FSDP"
            with self.assertRaisesRegex(ValueError, "configured for FSDP, and shard"):
                accelerator.prepare(module)

        distributed(2, body)
        with self.assertWarnsRegex(UserWarning, "transformers .* does not work with sharded modules: no save. Versions 4.57 to 5.24 were"):
            integrations._try("transformers", mock.Mock(side_effect=AttributeError("no save")), "4.57 to 5.24")


if __name__ == "__main__":
    support.main()
