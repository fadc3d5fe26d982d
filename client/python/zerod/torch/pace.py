# SPDX-License-Identifier: Apache-2.0
"""How far the CPU may be ahead of the GPU.

A block that the CPU has released is memory until the GPU has come there. A CPU that is far ahead would have all blocks
of a model gathered at once, and their gradients. So it waits, before it asks for a block, for the oldest releases. It does not
wait for the newest: a GPU that has come there has nothing to do until the CPU has launched more. An embedding alone can have more
bytes than the CPU may be ahead.
"""
from __future__ import annotations

from collections import deque

import torch

AHEAD_BYTES = 1 << 30  # small models never wait: their CPU is what a step waits for


class Pace:
    """Of one model. `most`: bytes of blocks that may be released without that the GPU has come there."""

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
        """Waits for the GPU, where the CPU is too far ahead."""
        while self.nbytes > self.most and len(self._releases) > 1:
            event, nbytes = self._releases.popleft()
            event.synchronize()
            self.nbytes -= nbytes
            self._spare.append(event)
