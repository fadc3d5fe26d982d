# SPDX-License-Identifier: Apache-2.0
"""Replicas of a sharded model: the rows of a mesh of two dimensions.

Each row is a group of the daemon and shards the model. Rows can be in different daemons. The ranks of a column have the same
slices, each in its own row. The daemon sums gradients across a row, and torch.distributed sums the slices across the column.

A rank exchanges a few numbers with its column once for each window that it begins: when the step begins, or when it gives the
window up. In the second case it does not wait for the reply. A rank that raises therefore remains in step with the other rows,
which are informed instead of waiting. A step that has begun ends with another exchange. The numbers are sent by a gloo group, so
that the CPU has them without waiting for a GPU.
"""
from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Iterator, Sequence

import torch
import torch.distributed as dist

import zerod
from zerod import Status

_made: Counter[tuple[int, ...]] = Counter()  # by column


class Replicas:
    """This rank's column. `members` are torch.distributed's numbers of the ranks of this row."""

    def __init__(self, mesh: Any, deadline_ms: int) -> None:
        self.group = mesh.get_group(0)
        self.column: list[int] = dist.get_process_group_ranks(self.group)
        self.members: list[int] = dist.get_process_group_ranks(mesh.get_group(1))
        self.count = len(self.column)
        self.row = dist.get_rank(self.group)
        self._sent: Any = None
        # new_group() needs the same calls from all ranks, in this mesh or not. Up to torch 2.11 it otherwise hangs.
        column = tuple(self.column)
        _made[column] += 1
        store = dist.PrefixStore(f"zerod {column} {_made[column]}", dist.distributed_c10d._get_default_store())
        with self._losses():
            self._control = dist.ProcessGroupGloo(store, self.row, self.count,
                                                  timedelta(milliseconds=deadline_ms or 60_000))

    @contextmanager
    def _losses(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            text = f"a rank of the mesh's column {self.column} has ended, or did not come: {error}"
            raise zerod.errors.error(Status.PEER_LOST, text) from error

    # ---- Numbers ----

    def exchange(self, values: Sequence[int]) -> list[int]:
        """The maximum of each value across the column."""
        made, work = self._begin(values)
        with self._losses():
            work.wait()
        return made.tolist()

    def send(self, values: Sequence[int]) -> None:
        """exchange() for a rank that does not need the reply, and does not wait for it."""
        self._sent = self._begin(values)

    def _begin(self, values: Sequence[int]) -> "tuple[torch.Tensor, Any]":
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        made = torch.tensor(values, dtype=torch.int64, device="cpu")
        with self._losses():
            return made, self._control.allreduce([made], options)

    def check_same(self, failure: "zerod.Mismatch | None", digest: int) -> None:
        """Mismatch on all ranks if rows have different models, or the ranks of a row have: `failure`."""
        high, low, failed = self.exchange([digest, -digest, int(failure is not None)])
        if failure is not None:
            raise failure
        if failed or high != -low:
            raise zerod.errors.error(Status.MISMATCH, f"ranks {self.column}, of different rows of the mesh, have "
                                     "different models" if not failed else "the ranks of another row of the mesh have "
                                     "different models")

    # ---- Slices ----

    def sum(self, slices: "list[torch.Tensor]", mean: bool) -> None:
        """Replaces each slice by its sum, or its mean, across the column."""
        with self._losses(), torch.no_grad():
            for work in [dist.all_reduce(each, group=self.group, async_op=True) for each in slices]:
                work.wait()
            if mean and slices:
                torch._foreach_mul_(slices, 1 / self.count)

    def broadcast(self, slices: "list[torch.Tensor]", row: int = 0) -> None:
        """All ranks of the column receive the slices of the rank of `row`, byte by byte."""
        with self._losses():
            for each in slices:
                if each.numel():
                    dist.broadcast(each.detach().view(torch.uint8), self.column[row], self.group)

    def mend(self, slices: "list[torch.Tensor]", good: bool) -> None:
        """The slices of ranks that are not `good` become those of a good rank, if there is one."""
        first = -self.exchange([-self.row if good else -self.count])[0]
        if first < self.count:
            self.broadcast(slices, first)
