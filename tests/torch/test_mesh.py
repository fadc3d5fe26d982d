#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Meshes of two dimensions: the second shards, the first replicates."""
from __future__ import annotations

import os
import re
import signal
import tempfile
import unittest
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, Optional

import harness
import models
import test_failures
import torch
import torch.distributed as dist
from harness import same, support
from test_halves import optimizer as halves
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import zerod
import zerod.torch as zt
from zerod.torch.state import checkpointable


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


def mesh_ranks(body: Callable[[int, Any], Any], rows: int = 2, columns: int = 2, second: Optional[str] = None) -> list[Any]:
    """body(rank, mesh) in a process for each rank. second: the socket of the rows' but the first one's daemon."""
    with tempfile.TemporaryDirectory() as folder:
        def run(rank: int) -> Any:
            if second is not None and rank >= columns:
                os.environ["ZEROD_SOCKET"] = second
            world = rows * columns
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
            result = body(rank, init_device_mesh("cpu", (rows, columns)))
            if dist.is_initialized():
                dist.barrier()
            return result

        return harness.ranks(daemon.socket, rows * columns, run)


def replicas(results: list[Any], columns: int = 2) -> dict[str, torch.Tensor]:
    """The parameters, flat, which are the same in all rows."""
    rows = [harness.whole(results[i:i + columns]) for i in range(0, len(results), columns)]
    for row in rows[1:]:
        same(row, rows[0], "row ")
    return rows[0]


class Unused(nn.Module):
    """An expert for each rank, of which the first two only the first row uses, and a parameter that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(13, 13) for _ in range(4))
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.experts[which](x)


class Train(unittest.TestCase):
    def check(self, make: Callable, optimize: Callable, losses: Callable, accumulate: int = 1, rows: int = 2,
              columns: int = 2, second: Optional[str] = None, dtype: Optional[torch.dtype] = None, **options: Any) -> None:
        def body(rank: int, mesh: Any) -> Any:
            module = harness.shard(harness.seeded(make), process_group=mesh, param_dtype=dtype, **options)
            seen = harness.train(module, optimize(module), losses, rank, 4, accumulate)
            return seen, harness.slices(module)

        results = mesh_ranks(body, rows, columns, second)
        seen, expected = harness.alone(lambda: harness.reference(make, optimize, losses, rows * columns, 4, accumulate,
                                                                 dtype, rows=rows))
        same([result[0] for result in results], seen, "loss")
        same(replicas([result[1] for result in results], columns), expected, "parameter ")

    def test_train(self) -> None:
        """2x2, 2x1 and 1x2 ranks equal one process that sums rows, then the rows' sums: every bit"""
        self.check(models.MLP, models.sgd, models.mlp_loss)
        self.check(models.GPT, models.adamw, models.gpt_loss, accumulate=2, dtype=torch.bfloat16)
        self.check(models.MLP, models.adamw_foreach, models.mlp_loss, columns=1, stage=2)
        self.check(models.MLP, models.sgd, models.mlp_loss, rows=1)
        self.check(models.MLP, models.sgd, models.mlp_loss, stage=1)
        for dtype in (None, torch.bfloat16):
            self.check(models.GPT, partial(halves, "AdamW", lr=1e-2), models.gpt_loss, accumulate=2, dtype=dtype)

    def test_three_rows(self) -> None:
        """three rows have the same bits, those of one process within the order of a sum"""
        def body(rank: int, mesh: Any) -> Any:
            module = harness.shard(harness.seeded(models.MLP), process_group=mesh)
            harness.train(module, models.sgd(module), models.mlp_loss, rank, 4)
            return harness.slices(module)

        expected = harness.alone(lambda: harness.reference(models.MLP, models.sgd, models.mlp_loss, 3, 4, rows=3)[1])
        torch.testing.assert_close(replicas(mesh_ranks(body, 3, 1), 1), expected, rtol=1e-5, atol=1e-6)

    def test_daemons(self) -> None:
        """rows in two daemons"""
        with support.Daemon(devices=4, arena="128M") as second:
            self.check(models.GPT, models.adamw, models.gpt_loss, second=second.socket)

    def test_sum(self) -> None:
        """op="sum" is over all ranks of the mesh"""
        def body(rank: int, mesh: Any) -> Any:
            module = harness.shard(nn.Sequential(nn.Linear(3, 1, bias=False)), process_group=mesh, op="sum")
            module(torch.full((1, 3), float(10 ** rank))).sum().backward()
            parameter = next(iter(module.parameters()))
            return parameter.grad.whole().tolist()

        self.assertEqual(mesh_ranks(body), [[[1111.0] * 3]] * 4)

    def test_weights(self) -> None:
        """all rows get the weights of rank 0; other ranks may be on the meta device; full_parameters() writes rank 0's"""
        for dtype in (None, torch.bfloat16):
            def body(rank: int, mesh: Any) -> Any:
                torch.manual_seed(rank)
                with torch.device("meta" if rank == 3 else "cpu"):
                    module = models.MLP()
                zt.shard(module, process_group=mesh, param_dtype=dtype)
                first = harness.slices(module)
                with zt.full_parameters(module, write=True), torch.no_grad():
                    module.last.bias.fill_(rank + 1)
                written = harness.slices(module)
                module(models.numbers(rank, 0, 6, 13).to(dtype or torch.float32))
                zt.barrier(module)
                return first, written

            results = mesh_ranks(body)
            expected = {name: value.detach().flatten() for name, value in harness.seeded(models.MLP).named_parameters()}
            same(replicas([result[0] for result in results]), expected)
            same(replicas([result[1] for result in results]), {**expected, "last.bias": torch.ones(5)})

    def test_unused(self) -> None:
        """experts that one row or one rank uses have gradients on all ranks; a parameter without any use has none"""
        def losses(module: nn.Module, rank: int, micro: int) -> torch.Tensor:
            loss = module(models.numbers(rank, micro, 6, 13), rank if micro % 2 else 0).square().mean()
            loss.backward()
            return loss.detach()

        none: list[Any] = []

        def body(rank: int, mesh: Any) -> Any:
            module = harness.shard(harness.seeded(Unused), process_group=mesh)
            optimizer = models.adamw(module)

            def grads(module: nn.Module, _: Any) -> None:
                zt.clip_grad_norm_(module, 1e9)
                none.append([name for name, p in module.named_parameters() if p.grad is None])

            harness.train(module, optimizer, losses, rank, 4, before_step=grads)
            return none, harness.slices(module)

        results = mesh_ranks(body)
        unused = [[f"experts.{i}.{name}" for i in (1, 2, 3) for name in ("weight", "bias")], []]
        for result in results:
            self.assertEqual([set(names) for names in result[0]],
                             [{"spare", *unused[0]}, {"spare"}, {"spare", *unused[0]}, {"spare"}])
        expected = harness.alone(lambda: harness.reference(Unused, models.adamw, losses, 4, 4, rows=2)[1])
        same(replicas([result[1] for result in results]), expected)


class Gradients(unittest.TestCase):
    def test_clip(self) -> None:
        """norms, of another order than 2, are those of the whole mesh, equal on all ranks, within 1e-6 of one process"""
        for norm_type in (float("inf"), 3.0):
            def clip(module: nn.Module, _: Any) -> None:
                if hasattr(module, "_zerod_model"):
                    norms.append(zt.clip_grad_norm_(module, 0.05, norm_type))
                else:
                    norms.append(nn.utils.clip_grad_norm_(module.parameters(), 0.05, norm_type))

            norms: list[torch.Tensor] = []

            def body(rank: int, mesh: Any) -> Any:
                module = harness.shard(harness.seeded(models.MLP), process_group=mesh)
                harness.train(module, models.sgd(module), models.mlp_loss, rank, 3, before_step=clip)
                return norms, harness.slices(module)

            def alone() -> Any:
                return norms, harness.reference(models.MLP, models.sgd, models.mlp_loss, 4, 3, before_step=clip, rows=2)[1]

            results = mesh_ranks(body)
            expected_norms, expected = harness.alone(alone)
            for result in results:
                same(result[0], results[0][0], "norm")
            torch.testing.assert_close(results[0][0], expected_norms, rtol=1e-6, atol=0)
            torch.testing.assert_close(replicas([result[1] for result in results]), expected, rtol=1e-5, atol=1e-6)

    def test_overflow(self) -> None:
        """GradScaler: an infinity on one rank makes all ranks of the mesh skip the step"""
        def body(rank: int, mesh: Any) -> Any:
            module = harness.shard(harness.seeded(Spiky), process_group=mesh)
            optimizer = models.sgd(module)
            scaler = torch.amp.GradScaler(models.DEVICE, init_scale=1024.0, growth_interval=100)
            scales = []
            for step in range(4):
                optimizer.zero_grad()
                module.spike = step == 2 and rank == 3
                scaler.scale(module(models.numbers(rank, step, 6, 13)).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
            return scales, harness.slices(module)

        results = mesh_ranks(body)
        self.assertEqual([result[0] for result in results], [[1024.0, 1024.0, 512.0, 512.0]] * 4)
        for value in replicas([result[1] for result in results]).values():
            self.assertTrue(torch.isfinite(value).all())


class Spiky(models.MLP):
    """One element of the gradient alone is infinite, which one rank of each row owns."""

    spike = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        element = self.last.bias[4] * 1
        if self.spike:
            element.register_hook(lambda gradient: torch.full_like(gradient, float("inf")))
        return super().forward(x) + 0 * element


class Failures(unittest.TestCase):
    def test_exceptions(self) -> None:
        """a rank raises: the ranks of all rows learn which one, nobody takes the step, training goes on"""
        for place in ("forward", "backward"):
            for micro_batches in (1, 2):
                with self.subTest(place=place, micro_batches=micro_batches):
                    results = mesh_ranks(lambda rank, mesh: test_failures.train_with_trouble(
                        rank, test_failures.Raising, place, 2, micro_batches, process_group=mesh))
                    self.assertEqual([result[0] for result in results], [[(2, 2)], [(2, 2)], [(2, place)], [(2, 2)]])
                    self.assertEqual([result[1] for result in results], [0] * 4)
                    self.assertEqual([result[3] for result in results], [4] * 4)
                    for value in replicas([result[2] for result in results]).values():
                        self.assertTrue(torch.isfinite(value).all())

    def test_optimizer(self) -> None:
        """a rank raises in the optimizer: all ranks learn which one, and its slices are taken from the other row"""
        for dtype in (None, torch.bfloat16):
            def body(rank: int, mesh: Any, place: str) -> Any:
                return test_failures.train_with_trouble(rank, test_failures.Raising, place, 1, 1, process_group=mesh, param_dtype=dtype)

            with self.subTest(dtype=dtype):
                results = mesh_ranks(lambda rank, mesh: body(rank, mesh, "middle"))
                self.assertEqual([result[0] for result in results], [[(2, 1)], [(2, "middle")], [(2, 1)], [(2, 1)]])
                self.assertEqual([result[1] for result in results], [0] * 4)
                good = mesh_ranks(lambda rank, mesh: body(rank, mesh, ""))
                same(replicas([result[2] for result in results]), replicas([result[2] for result in good]))

    def test_halves(self) -> None:
        """the same with masters in two halves: the slices of a rank that raises are those of the other row"""
        class Raising(zt.SGD):
            raises = False

            def _apply(self, found: Any, groups: Any) -> None:
                super()._apply(found[:2] if self.raises else found, groups)
                if self.raises:
                    raise test_failures.Trouble

        def body(rank: int, mesh: Any, bad: int) -> Any:
            module = harness.shard(harness.seeded(models.MLP), process_group=mesh, param_dtype=torch.bfloat16)
            optimizer, told = Raising(module.parameters(), lr=0.1), None
            for step in range(2):
                optimizer.zero_grad()
                models.mlp_loss(module, rank, step)
                optimizer.raises = (rank, step) == (bad, 1)
                try:
                    optimizer.step()
                except (test_failures.Trouble, zt.StepTorn) as failed:
                    told = getattr(failed, "rank", -1)
            with torch.no_grad():
                module(models.numbers(rank, 0, 6, 13).bfloat16())
            return told, harness.slices(module)

        results, good = (mesh_ranks(partial(body, bad=bad)) for bad in (1, -1))
        self.assertEqual([result[0] for result in results], [1, -1, 1, 1])
        same(replicas([result[1] for result in results]), replicas([result[1] for result in good]))

    def test_optimizers(self) -> None:
        """the ranks of a column all raise: their slices are those of the first row, all others are updated"""
        def body(rank: int, mesh: Any) -> Any:
            module = harness.shard(harness.seeded(models.MLP), process_group=mesh)
            optimizer = test_failures.Raising(module.parameters(), lr=0.1)
            models.mlp_loss(module, rank, 0)
            optimizer.where = "middle" if rank in (1, 3) else ""
            try:
                optimizer.step()
            except (test_failures.Trouble, zt.StepTorn) as failed:
                told = failed.rank if isinstance(failed, zt.StepTorn) else -1
            models.mlp_loss(module, rank, 0)
            return told, harness.slices(module)

        results = mesh_ranks(body)
        self.assertEqual([result[0] for result in results], [3, -1, 3, -1])
        replicas([result[1] for result in results])

    def test_no_backward(self) -> None:
        """rank 0 steps without a backward, in rows of one rank: the other row is told"""
        def body(rank: int, mesh: Any) -> Any:
            module = harness.shard(harness.seeded(models.MLP), process_group=mesh)
            optimizer = models.sgd(module)
            if rank:
                models.mlp_loss(module, rank, 0)
            with self.assertRaises(zt.StepAbandoned) if rank else nullcontext():
                optimizer.step()
            harness.train(module, optimizer, models.mlp_loss, rank, 2)
            return harness.slices(module)

        replicas(mesh_ranks(body, columns=1), 1)

    def test_dropped(self) -> None:
        """a rank takes no step after its backward, or after clipping: the others are told, and stay in step"""
        def body(clips: bool, rank: int, mesh: Any) -> Any:
            module = harness.shard(harness.seeded(models.MLP), process_group=mesh)
            optimizer = models.sgd(module)
            told = []
            for step in range(4):
                optimizer.zero_grad()
                models.mlp_loss(module, rank, step)
                if clips:
                    zt.clip_grad_norm_(module, 1.0)
                if step in (1, 2) and rank == 3:
                    continue
                try:
                    optimizer.step()
                except zt.StepAbandoned as abandoned:
                    told.append((step, abandoned.rank))
            return told, harness.slices(module)

        for clips, rows, columns in ((False, 2, 2), (True, 2, 2), (True, 4, 1)):
            with self.subTest(clips=clips, rows=rows):
                results = mesh_ranks(partial(body, clips), rows, columns)
                self.assertEqual([result[0] for result in results], [[(1, 3), (2, 3)]] * 3 + [[]])
                replicas([result[1] for result in results], columns)

    def test_backward_counts(self) -> None:
        """rows, or ranks of a row, with different numbers of backwards: all ranks are told, and the next step is taken"""
        for more in ((2, 3), (3,)):
            def body(rank: int, mesh: Any) -> Any:
                module = harness.shard(harness.seeded(models.MLP), process_group=mesh)
                optimizer = models.sgd(module)
                told = ""
                for step in range(2):
                    try:
                        optimizer.zero_grad()
                        for micro in range(2 if step == 0 and rank in more else 1):
                            models.mlp_loss(module, rank, micro)
                        optimizer.step()
                    except (zerod.Mismatch, zt.StepAbandoned) as error:
                        told = f"{type(error).__name__} {error}"
                return told, harness.slices(module), module._zerod_model.counts.steps

            with self.subTest(more=more):
                results = mesh_ranks(body)
                texts = [result[0] for result in results]
                for text in texts[:2]:
                    self.assertRegex(text, "Mismatch.*1 and 2" if len(more) == 2 else "StepAbandoned rank [23]")
                for text in texts[2:]:
                    self.assertRegex(text, "Mismatch.*(1.*2|2.*1)")
                self.assertEqual([result[2] for result in results], [1] * 4)
                replicas([result[1] for result in results])

    def test_killed(self) -> None:
        """a rank is killed: the ranks of its row and of other rows get PeerLost"""
        def body(rank: int, mesh: Any) -> Any:
            module = zt.shard(models.MLP(), process_group=mesh)
            optimizer = models.sgd(module)
            for step in range(100):
                optimizer.zero_grad()
                models.mlp_loss(module, rank, step)
                if step == 3 and rank == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                try:
                    optimizer.step()
                except zt.StepAbandoned as abandoned:  # its row has lost rank 2
                    assert abandoned.rank == 3

        with self.assertRaises(harness.Failed) as raised:
            mesh_ranks(body)
        texts = re.split("^rank [0-9]: ", str(raised.exception), flags=re.MULTILINE)[1:]
        self.assertEqual(texts[2].strip(), "the process ended with status 9")
        for rank in (0, 1, 3):
            self.assertRegex(texts[rank].strip().splitlines()[-1], "PeerLost: PEER_LOST")

    def test_barrier(self) -> None:
        """barrier() waits for the other rows: PeerLost where they have ended"""
        def body(rank: int, mesh: Any) -> str:
            module = harness.shard(models.MLP(), process_group=mesh)
            if rank < 2:
                with self.assertRaises(zerod.PeerLost):
                    zt.barrier(module)
            dist.destroy_process_group()

        mesh_ranks(body)

    def test_different_models(self) -> None:
        """rows, or ranks of a row, with different models: Mismatch on all ranks"""
        for wide in ((2, 3), (3,)):
            def body(rank: int, mesh: Any) -> Any:
                try:
                    zt.shard(models.MLP(width=38 if rank in wide else 37), process_group=mesh)
                except zerod.Mismatch as error:
                    return error.text

            for text in mesh_ranks(body):
                self.assertRegex(text, "different models")

    def test_meshes(self) -> None:
        """a mesh of three dimensions, and one without this rank, are refused; the names of dimensions do not matter"""
        def body(rank: int, mesh: Any) -> Any:
            three = init_device_mesh("cpu", (2, 2, 1))
            with self.assertRaisesRegex(ValueError, "3 dimensions"):
                zt.shard(models.MLP(), process_group=three)
            without = DeviceMesh("cpu", [[0], [1]])
            if rank > 1:
                with self.assertRaisesRegex(ValueError, "this rank is not in"):
                    zt.shard(models.MLP(), process_group=without)
            named = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "replicate"))
            module = zt.shard(models.MLP(), process_group=named)
            return module._zerod_model.rank, module._zerod_model.replicas.column

        self.assertEqual(mesh_ranks(body), [(0, [0, 2]), (1, [1, 3]), (0, [0, 2]), (1, [1, 3])])


@unittest.skipUnless(checkpointable(), "this torch's checkpoints do not ask a tensor for its parts")
class Checkpoints(unittest.TestCase):
    def test_dcp(self) -> None:
        """a checkpoint of 2x2 ranks is read by 4, by 1, and by 2x2; state_dict() too"""
        for dtype in (None, torch.bfloat16):
            with self.subTest(dtype=dtype), tempfile.TemporaryDirectory() as folder:
                def write(rank: int, mesh: Any) -> Any:
                    module = harness.shard(harness.seeded(models.GPT), param_dtype=dtype, process_group=mesh)
                    optimizer = models.adamw(module)
                    harness.train(module, optimizer, models.gpt_loss, rank, 3)
                    zt.save(folder + "/save", module, optimizer, step=3)
                    return zt.state_dict(module, optimizer, full=True)

                def read(rank: int, mesh: Any) -> Any:
                    module = harness.shard(models.GPT(), param_dtype=dtype, process_group=mesh)
                    optimizer = models.adamw(module)
                    extra = zt.load(folder + "/save", module, optimizer, step=0)
                    return extra, zt.state_dict(module, optimizer, full=True)

                written = mesh_ranks(write)
                same(written[1:], written[:1] * 3)
                for rows, columns in ((1, 4), (1, 1), (2, 2)):
                    for extra, state in mesh_ranks(read, rows, columns):
                        self.assertEqual(extra, {"step": 3})
                        same(state, written[0])

                def load(rank: int, mesh: Any) -> Any:
                    module = harness.shard(models.GPT(), param_dtype=dtype, process_group=mesh)
                    optimizer = models.adamw(module)
                    zt.load_state_dict(module, written[0], optimizer)
                    return zt.state_dict(module, optimizer, full=True)

                same(mesh_ranks(load), written)


if __name__ == "__main__":
    support.main()
