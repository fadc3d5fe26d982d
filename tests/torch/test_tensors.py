#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors over the daemon's memory, as the program drops them."""
from __future__ import annotations

import threading
import unittest
from typing import Any

import harness
import torch
from harness import support

import zerod
from zerod.torch.tensors import tensor_at


class Trouble(Exception):
    pass


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=1).for_module()


def fail() -> Any:
    raise Trouble("trouble")


class Dropped(unittest.TestCase):
    def dropped(self, drop: Any, error: type, text: str) -> None:
        """drop() raises this error, and nothing else happens."""
        def body() -> Any:
            with zerod.Client(daemon.socket) as client, client.alloc("dropped", 4096) as allocation:
                try:
                    drop(lambda: tensor_at(allocation.address, 8, torch.float32, client.dlpack_device))
                except error as raised:
                    return str(raised)

        self.assertIn(text, harness.alone(body))

    def test_by_python(self) -> None:
        """while Python unwinds an exception to its handler"""
        self.dropped(lambda make: torch.add(make(), fail()), Trouble, "trouble")

    def test_by_torch(self) -> None:
        """as the argument of an operation that fails"""
        self.dropped(lambda make: torch.ones(2).copy_(make()), RuntimeError, "must match the size")

    def test_by_threads(self) -> None:
        """by several threads at once, some of which raise"""
        def drop(make: Any) -> None:
            def run() -> None:
                for _ in range(300):
                    try:
                        make()
                        torch.add(make(), fail())
                    except Trouble:
                        ended.append(None)

            ended: list[None] = []
            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            raise Trouble(f"{len(ended)} times")

        self.dropped(drop, Trouble, "1200 times")


if __name__ == "__main__":
    support.main()
