#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lightning's Trainer and Fabric with ZerodStrategy, compared with their own DDP strategies."""
from __future__ import annotations

import logging
import os
import tempfile
import unittest
from functools import partial
from typing import Any, Callable, Optional

import harness
import lightning
import models
import test_frameworks as base
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import zerod.torch as zt
from zerod.integrations.fabric import ZerodStrategy as FabricStrategy
from zerod.integrations.lightning import ZerodStrategy

EPOCHS, BATCH, WORLD = 2, 8, 2


def setUpModule() -> None:
    base.setUpModule()
    os.environ["GROUP_RANK"] = "0"  # of torchrun's variables lightning reads this one as well
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Regression(lightning.LightningModule):
    def __init__(self, sharded: bool, kind: Any) -> None:
        super().__init__()
        self.net, self.sharded, self.kind = harness.seeded(models.MLP), sharded, kind
        self.losses: list[float] = []

    def configure_model(self) -> None:
        if self.sharded and not zt.is_sharded(self.net):
            harness.shard(self.net)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss = self.net(batch).square().mean()
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> Any:
        return self.kind(self.net.parameters(), lr=1e-2)


def train(folder: str, strategy: Any, resume: Optional[str], kind: Any, sharded: bool) -> Any:
    """Losses of this rank's last epoch, and the weights."""
    module = Regression(sharded, kind)
    trainer = lightning.Trainer(
        accelerator="cpu", strategy=strategy, devices=WORLD, max_epochs=EPOCHS, gradient_clip_val=0.1, accumulate_grad_batches=2,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=-1)])
    rows = models.numbers(0, 0, 64, 13).cpu()
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=BATCH // WORLD), ckpt_path=resume)
    return module.losses[-4:], dict(module.net.state_dict())


def fabric(folder: str, strategy: Any, resume: Optional[str], kind: Any, sharded: bool) -> Any:
    """The same in a loop of the program's own, with Fabric."""
    made = lightning.Fabric(accelerator="cpu", strategy=strategy, devices=WORLD)
    made.launch()
    net = harness.seeded(models.MLP)
    net = harness.shard(net) if sharded else net
    model, optimizer = made.setup(net, kind(net.parameters(), lr=1e-2))
    loader = made.setup_dataloaders(torch.utils.data.DataLoader(models.numbers(0, 0, 64, 13).cpu(), batch_size=BATCH // WORLD))
    state: Any = {"model": model, "optimizer": optimizer, "epoch": 0}
    if resume:
        made.load(resume, state)
    losses: list[float] = []
    for epoch in range(state["epoch"], EPOCHS):
        for micro, batch in enumerate(loader):
            with made.no_backward_sync(model, enabled=micro % 2 == 0):
                loss = model(batch).square().mean() / 2
                made.backward(loss)
            losses.append(float(loss.detach()))
            if micro % 2:
                made.clip_gradients(model, optimizer, max_norm=0.1)
                optimizer.step()
                optimizer.zero_grad()
        state["epoch"] = epoch + 1
        made.save(f"{folder}/{epoch=}.ckpt", state)
    return losses[-4:], dict(model.state_dict())


def distributed(folder: str, strategy: Any, resume: Optional[str] = None, kind: Any = torch.optim.AdamW,
                sharded: Optional[bool] = None, loop: Callable = train) -> list[Any]:
    sharded = strategy != "ddp" if sharded is None else sharded
    return base.distributed(WORLD, lambda _: loop(folder, strategy() if callable(strategy) else strategy, resume, kind, sharded))


LOOPS: Any = ((train, ZerodStrategy), (fabric, FabricStrategy))


class Lightning(unittest.TestCase):
    def test_train(self) -> None:
        """clipping, accumulation and checkpoints, in the Trainer and with Fabric; both read the other strategy's checkpoints"""
        same = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
        for loop, ours in LOOPS:
            with tempfile.TemporaryDirectory() as folder:
                expected = distributed(folder + "/ddp", "ddp", loop=loop)
                same(distributed(folder + "/zerod", ours, loop=loop), expected)
                for name in ("/ddp", "/zerod"):
                    for strategy in ("ddp", ours):
                        with self.subTest(loop=loop.__name__, checkpoint=name, strategy=str(strategy)):
                            same(distributed(folder + "/resumed", strategy, f"{folder}{name}/epoch=0.ckpt", loop=loop), expected)

    def test_halves(self) -> None:
        """zt.AdamW resumes bit by bit"""
        for loop, ours in LOOPS:
            with tempfile.TemporaryDirectory() as folder:
                whole = distributed(folder, ours, kind=zt.AdamW, loop=loop)
                harness.same(distributed(folder + "/resumed", ours, folder + "/epoch=0.ckpt", zt.AdamW, loop=loop), whole)

    def test_not_sharded(self) -> None:
        """a module that was not sharded; one with a trained parameter beside the sharded module"""
        class Beside(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.head = harness.shard(nn.Linear(4, 4)), nn.Linear(4, 1)

        for loop, ours in LOOPS:
            with self.assertRaisesRegex(harness.Failed, "call zerod.torch.shard.. in configure_model"):
                distributed("", ours, sharded=False, loop=loop)
        with self.assertRaisesRegex(harness.Failed, "head.weight of Beside is trained, but not sharded"):
            base.distributed(WORLD, lambda _: FabricStrategy().setup_module(Beside()))

    def test_batches(self) -> None:
        """ranks whose own loaders differ in length: an error before the first step, unless max_steps ends the training earlier"""
        def body(rank: int, steps: int) -> int:
            trainer = lightning.Trainer(accelerator="cpu", strategy=ZerodStrategy(), devices=WORLD, logger=False, enable_checkpointing=False,
                                        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False, max_steps=steps)
            loader = torch.utils.data.DataLoader(models.numbers(0, 0, 64, 13).cpu(), batch_size=16 << rank)
            trainer.fit(Regression(True, torch.optim.AdamW), loader)
            return trainer.global_step

        self.assertEqual(base.distributed(WORLD, lambda rank: body(rank, 2)), [2, 2])
        with self.assertRaisesRegex(harness.Failed, "ValueError: .* training batches: 4 on rank 0, 2 on rank 1"):
            base.distributed(WORLD, lambda rank: body(rank, 3))

    def test_launcher(self) -> None:
        """the program in docs/frameworks.md, whose other rank lightning starts"""
        with tempfile.TemporaryDirectory() as folder:
            harness.example(folder, "docs/frameworks.md", "lightning import Fabric")
            base.run(folder, "train.py")
            self.assertEqual(torch.load(folder + "/out.ckpt")["step"], 20)


if __name__ == "__main__":
    base.support.main()
