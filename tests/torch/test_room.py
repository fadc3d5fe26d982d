#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two allocators on one device: what each of them keeps, and gives back when the other one finds no memory."""
from __future__ import annotations

import os
import unittest
from typing import Any
from unittest import mock

import harness
import models
import torch
from harness import support
from torch import nn

import zerod
import zerod.torch as zt
from zerod.torch import block, environment, gradients


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


class Hog:
    """Stands in for torch's allocator, which keeps memory of the device's: an allocation of all but a little of the rest."""

    def __init__(self, socket: str, device: int = 0) -> None:
        self.client = zerod.Client(socket)
        self.device = device
        self.held: list[Any] = []
        self.asked = 0
        environment.environment().return_unused = self.return_unused

    def hold(self, but: int = 256 << 10) -> None:
        self.client.trim(self.device)
        info = self.client.device(self.device)
        for nbytes in range(info.arena_bytes - info.allocated_bytes - but, 0, -(256 << 10)):
            try:
                self.held.append(self.client.alloc(job="hog", nbytes=nbytes, device=self.device))
                return
            except MemoryError:
                pass  # segments are larger than what is charged

    def return_unused(self) -> bool:
        self.asked += 1
        found = bool(self.held)
        while self.held:
            self.held.pop().free()
        return found


class Memory(unittest.TestCase):
    def test_shard(self) -> None:
        """the daemon has no memory, and torch's allocator does not use all of its own: shard(), state_dict()"""
        with support.Daemon(devices=2, arena="16M") as small:
            def body(rank: int) -> Any:
                hog = Hog(small.socket, rank)
                for but, dtype in ((256 << 10, None), (3 << 19, torch.bfloat16)):  # bfloat16 fits, its masters do not
                    hog.hold(but)
                    module = harness.shard(nn.Sequential(nn.Linear(1000, 1000)), param_dtype=dtype)
                hog.hold()
                module.state_dict()
                return hog.asked

            self.assertEqual(harness.ranks(small.socket, 2, body), [3, 3])

    def test_backward(self) -> None:
        """the same in the backward: for its target, and for an entry of a bucket"""
        with support.Daemon(devices=1, arena="16M") as small:
            def body(rank: int) -> Any:
                hog = Hog(small.socket)
                module = harness.shard(nn.Sequential(nn.Linear(1000, 1000)))
                group = module._zerod_model.group
                begin = group.backward_begin

                def begins(options: Any) -> None:
                    begin(options)
                    hog.hold()

                counts = []
                for held in (hog.hold, lambda: setattr(group, "backward_begin", begins)):
                    loss = module(torch.ones(2, 1000)).sum()
                    held()
                    loss.backward()
                    counts.append(hog.asked)
                    models.sgd(module).step()
                    module.zero_grad()
                return counts

            with mock.patch.object(gradients.Gradients, "alone", False):  # as with offload, and where the optimizer runs in the backward
                self.assertEqual(harness.ranks(small.socket, 1, body), [[1, 2]])

    def test_once(self) -> None:
        """a call that fails a second time is not made again, and none where torch's allocator has nothing to return"""
        with support.Daemon(devices=1, arena="2M") as small:
            def body(rank: int) -> Any:
                hog = Hog(small.socket)
                counts = []
                for holds in (False, True):
                    if holds:
                        hog.hold()
                    with mock.patch.object(zerod.Group, "register", autospec=True, side_effect=zerod.Group.register) as calls:
                        with self.assertRaises(MemoryError):
                            zt.shard(nn.Sequential(nn.Linear(1000, 1000)))
                    counts.append((hog.asked, calls.call_count))
                return counts

            self.assertEqual(harness.ranks(small.socket, 1, body), [[(1, 1), (2, 2)]])

    def test_gather(self) -> None:
        """a block's gather that finds no memory is made again"""
        def body(rank: int) -> Any:
            module = harness.shard(harness.seeded(models.MLP))
            root = module._zerod_model.units[0]
            hog = Hog(daemon.socket)
            hog.hold(but=32 << 20)  # segments are larger than what is charged; a block fits, in one of its own

            def wait(*args: Any) -> int:
                wait_once.stop()
                self.assertEqual(block._wait(*args), 0)
                root.unit.release()
                return zerod.Status.NO_MEMORY

            wait_once = mock.patch.object(block, "_wait", wait)
            wait_once.start()
            with torch.no_grad():
                output = module(torch.ones(2, 13))
            return hog.asked, output, module._zerod_model.client.device(0).gathered_bytes

        expected = harness.alone(lambda: harness.seeded(models.MLP).to(models.DEVICE)(torch.ones(2, 13)).detach())
        harness.same(harness.ranks(daemon.socket, 1, body), [(1, expected, 0)])

    def test_loaded(self) -> None:
        """what the daemon needed while shard() loaded the weights has gone back to the device"""
        with support.Daemon(devices=2, arena="64M") as own:
            def body(rank: int) -> int:
                model = harness.shard(nn.Sequential(nn.Linear(1000, 1000)))._zerod_model
                return model.client.trim(model.device_index)

            self.assertEqual(harness.ranks(own.socket, 2, body), [0, 0])

    def test_torch_has_none(self) -> None:
        """what the daemon does not use goes back to the device when torch's allocator has no memory"""
        with support.Daemon(devices=1, arena="16M") as small:
            def body(rank: int) -> Any:
                module = harness.shard(nn.Sequential(nn.Linear(1000, 1000)))
                here = module._zerod_model.environment
                while here.client.trim():  # of what shard() needed
                    pass
                here.client.alloc(job=os.environ["ZEROD_JOB"], nbytes=4 << 20).free()
                here.torch_has_no_memory(0, 1, 2, 3)
                freed = here.client.trim()
                with mock.patch.object(here.client, "trim", side_effect=zerod.ConnectionFailed(-26, "")):
                    here.torch_has_no_memory(0, 1, 2, 3)
                return freed

            self.assertEqual(harness.ranks(small.socket, 1, body), [0])


if __name__ == "__main__":
    support.main()
