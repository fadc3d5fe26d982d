# SPDX-License-Identifier: Apache-2.0
"""Limits how far the CPU can be ahead of the GPU.

A block that the CPU has released occupies memory until the GPU has reached that point. A CPU that is far ahead would have all
blocks of a model gathered at once, and their gradients. Before it gathers a block, the CPU therefore waits for the oldest
releases. It does not wait for the newest one: a GPU that has reached it would be idle until the CPU has launched more. A single
embedding can have more bytes than the limit.
"""
from __future__ import annotations

from collections import deque

import torch

AHEAD_BYTES = 1 << 30  # small models never wait, because their steps are bound by the CPU


class Pace:
    """The pace of one model. `most`: bytes of blocks that can be released before the GPU has reached that point."""

    def __init__(self, largest_block: int) -> None:
        self.most = max(AHEAD_BYTES, 2 * largest_block)
        self.nbytes = 0
        self._releases: deque[tuple[torch.cuda.Event, int]] = deque()
        self._spare: list[torch.cuda.Event] = []

    def released(self, nbytes: int) -> None:
        """The current stream has just released a block of so many bytes."""
        event = self._spare.pop() if self._spare else torch.cuda.Event(blocking=True)
        event.record()
        self._releases.append((event, nbytes))
        self.nbytes += nbytes

    def keep(self) -> None:
        """Waits for the GPU if the CPU is too far ahead."""
        while self.nbytes > self.most and len(self._releases) > 1:
            event, nbytes = self._releases.popleft()
            event.synchronize()
            self.nbytes -= nbytes
            self._spare.append(event)
