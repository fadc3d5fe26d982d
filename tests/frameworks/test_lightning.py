#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lightning's Trainer with ZerodStrategy, compared with its own DDP strategy."""
from __future__ import annotations

import logging
import os
import socket
import tempfile
import unittest
import warnings
from functools import partial
from typing import Any, Optional

import harness
import lightning
import models
import torch
from harness import support
from lightning.pytorch.callbacks import ModelCheckpoint

import zerod.torch as zt
from zerod.integrations.lightning import ZerodStrategy

EPOCHS, BATCH, WORLD = 2, 8, 2


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=2, arena="128M").for_module()
    warnings.filterwarnings("ignore")
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
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=BATCH // WORLD), ckpt_path=resume, weights_only=False)
    return module.losses[-4:], dict(module.net.state_dict())


def distributed(folder: str, strategy: Any, resume: Optional[str] = None, kind: Any = torch.optim.AdamW,
                sharded: Optional[bool] = None) -> list[Any]:
    """As torchrun starts them."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GROUP_RANK="0")
    sharded = strategy != "ddp" if sharded is None else sharded
    return harness.ranks(daemon.socket, WORLD, lambda _: train(folder, strategy() if callable(strategy) else strategy, resume, kind, sharded))


class Lightning(unittest.TestCase):
    def test_train(self) -> None:
        """clipping, accumulation and checkpoints; both read the other's checkpoints"""
        with tempfile.TemporaryDirectory() as folder:
            expected = distributed(folder + "/ddp", "ddp")
            same = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
            same(distributed(folder + "/zerod", ZerodStrategy), expected)
            for name in ("/ddp", "/zerod"):
                for strategy in ("ddp", ZerodStrategy):
                    with self.subTest(checkpoint=name, strategy=str(strategy)):
                        same(distributed(folder + "/resumed", strategy, f"{folder}{name}/epoch=0.ckpt"), expected)

    def test_halves(self) -> None:
        """zt.AdamW resumes bit by bit"""
        with tempfile.TemporaryDirectory() as folder:
            whole = distributed(folder, ZerodStrategy, kind=zt.AdamW)
            harness.same(distributed(folder + "/resumed", ZerodStrategy, folder + "/epoch=0.ckpt", zt.AdamW), whole)

    def test_not_sharded(self) -> None:
        """a module that was not sharded"""
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(harness.Failed, "call zerod.torch.shard.. in configure_model"):
            distributed(folder, ZerodStrategy, sharded=False)


if __name__ == "__main__":
    support.main()
