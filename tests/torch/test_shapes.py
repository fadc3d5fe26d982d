#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sharded parameters have their true shapes: norms, averages and writes, compared with one process."""
from __future__ import annotations

import tempfile
import unittest
from datetime import timedelta
from functools import partial
from typing import Any, Callable, Optional

import cases
import harness
import models
import torch
import torch.distributed as dist
from cases import Parameters, Program, state, whole
from harness import support
from torch import nn, optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parameters_to_vector, vector_to_parameters
from torch.optim import swa_utils

INFINITY = float("inf")


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena="128M").for_module()


def clipped(kind: float, foreach: Optional[bool], ps: Parameters) -> Any:
    return clip_grad_norm_(ps, 0.5, norm_type=kind, foreach=foreach), [p.grad for p in ps]


def values_clipped(foreach: Optional[bool], ps: Parameters) -> Any:
    clip_grad_value_(ps, 0.3, foreach=foreach)
    return [p.grad for p in ps]


def gradients_replaced(ps: Parameters) -> Any:
    before = [p.grad.detach() for p in ps]
    for p in ps:
        p.grad.data = p.grad * 2
    return before, [p.grad for p in ps]


def moved_average(ps: Parameters) -> Any:
    averages = [p.detach().clone() for p in ps]
    with torch.no_grad():
        for average, p in zip(averages, ps):
            average.lerp_(p.detach() * 2, 0.1)
            average.mul_(0.9).add_(p.data, alpha=0.3)
        torch._foreach_lerp_(averages, [p * 3 for p in ps], 0.5)
        torch._foreach_mul_(averages, 0.5)
    return averages


def averaged(options: dict[str, Any], ps: Parameters) -> Any:
    model = nn.ParameterList(ps)
    average = swa_utils.AveragedModel(model, **options)
    for _ in range(3):
        with torch.no_grad():
            torch._foreach_mul_(ps, 1.1)
        average.update_parameters(model)
    return list(average.module.parameters())


READS: dict[str, Callable[[Parameters], Any]] = {
    "shapes": lambda ps: [(p.dim(), p.ndim, list(p.shape), list(p.size()), p.numel(), p.stride()) for p in ps],
    "shapes of gradients": lambda ps: [(p.grad.dim(), list(p.grad.shape), p.grad.numel()) for p in ps],
    "shapes of data": lambda ps: [(list(p.data.shape), list(p.detach().shape)) for p in ps],
    "length": lambda ps: len(ps[0]),
    "parameters and leaves": lambda ps: [(isinstance(p, nn.Parameter), p.is_leaf, p.requires_grad) for p in ps],
    "values": lambda ps: [(p, p.detach(), p.data, p.data.clone()) for p in ps],
    "norms": lambda ps: [(p.norm(), p.detach().norm(), p.data.norm()) for p in ps],
    "vector norms": lambda ps: [torch.linalg.vector_norm(ps[0].detach(), kind) for kind in (1, 2, 3, INFINITY, -INFINITY)],
    "sum of squares": lambda ps: sum(p.grad.square().sum() for p in ps),
    "not finite": lambda ps: [(p.grad.isnan().any(), p.grad.isfinite().all(), p.grad.isinf().any().item()) for p in ps],
    "reductions": lambda ps: [(p.grad.sum(), p.grad.mean(), p.grad.abs().max(), p.grad.min(), p.data.std(correction=0))
                              for p in ps],
    "a number": lambda ps: [float(ps[5].detach()), ps[5].data.item(), float(ps[3].grad)],
    "rows": lambda ps: [ps[0].detach()[0], ps[4].data[2:4, 1] + 1, ps[0].detach().t() @ ps[1].new_ones(7)],
    "a flat vector": lambda ps: parameters_to_vector(ps),
    "total norm": lambda ps: nn.utils.get_total_norm([p.grad for p in ps]) if hasattr(nn.utils, "get_total_norm") else 0,
    **{f"norm {kind}, foreach={foreach}": partial(clipped, kind, foreach)
       for kind in (1.0, 2.0, 3.0, INFINITY, -INFINITY) for foreach in (None, False)},
    **{f"clipped values, foreach={foreach}": partial(values_clipped, foreach) for foreach in (None, False)},
    "any and all": lambda ps: [(p.any(), p.all()) for p in ps],
    "gradients' data = values": gradients_replaced,
    "a moving average": moved_average,
    "AveragedModel": partial(averaged, {}),
    "AveragedModel, foreach": lambda ps: averaged({"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)}, ps),
    "AveragedModel, one by one": lambda ps: averaged({"avg_fn": swa_utils.get_ema_avg_fn(0.9)}, ps),
}


def read(look: Callable[[Parameters], Any], program: Program) -> Any:
    """Returns the values that were read, and the parameters after a step."""
    module = program.shard(cases.Table)
    program.backward(lambda rank: module(rank))
    seen = whole(look(list(module.parameters())))
    optim.SGD(module.parameters(), lr=0.1).step()
    return seen, state(module)


def replaced(ps: Parameters) -> None:
    ps[0].data = torch.arange(35.0, device=models.DEVICE).view(7, 5)
    ps[1].data = ps[1].data * 2 + 1


def swapped(ps: Parameters) -> Any:
    """Other weights are shown for a while. What was taken before keeps its values, as do what others are taken from."""
    backups, others, shadows = [p.data for p in ps], [p.detach() for p in ps], [p.detach() * 0.5 for p in ps]
    for p, shadow in zip(ps, shadows):
        p.data = shadow
    first = [p.detach().clone() for p in ps]
    backups[0].add_(1)
    for p, backup in zip(ps, backups):
        p.data = backup
    ps[1].data = ps[1].data
    apart = ps[1].detach()
    apart.data = ps[1].detach() * 3
    return [*backups, *others, *shadows, *first, apart]


def row_written(ps: Parameters) -> None:
    ps[0].data[0] = 1
    ps[4].data[5] = torch.arange(9.0, device=models.DEVICE)


def initialized(ps: Parameters) -> None:
    torch.manual_seed(3)
    nn.init.normal_(ps[0])
    nn.init.xavier_uniform_(ps[4])
    nn.init.constant_(ps[1], 2.0)
    nn.init.zeros_(ps[5])


WRITES: dict[str, Callable[[Parameters], Any]] = {
    "data.mul_()": lambda ps: [p.data.mul_(0.5) for p in ps],
    "data = values": replaced,
    "other weights and back": swapped,
    "data[0] = 1": row_written,
    "initialization": initialized,
    "clamp_()": lambda ps: [p.clamp_(-0.3, 0.4) for p in ps],
    "copy_()": lambda ps: ps[0].copy_(torch.arange(35.0, device=models.DEVICE).view(7, 5)),
    "a row added": lambda ps: ps[0].add_(torch.arange(5.0, device=models.DEVICE)),
    "another parameter's values": lambda ps: ps[2].copy_(ps[2].detach().sin()).add_(ps[5].detach()),
    "_foreach_mul_()": lambda ps: torch._foreach_mul_(ps, 0.5),
    "a flat vector": lambda ps: vector_to_parameters(parameters_to_vector(ps) * 3, ps),
}


def written(write: Callable[[Parameters], Any], program: Program) -> Any:
    """Returns the values in forwards before and after writes, and after a step. In each turn another rank is late."""
    module = program.shard(cases.Table)
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    dtype = program.options.get("param_dtype", torch.float32)
    seen: list[torch.Tensor] = []
    for turn in range(2 * program.world):
        if program.sharded and program.ranks == [turn % program.world]:
            torch.linalg.svd(torch.ones(200, 200))
        seen += module()
        with torch.no_grad():
            found = write(list(module.parameters()))
        seen += whole(found) if isinstance(found, list) else []
        seen += module()
    program.backward(lambda rank: module(rank))
    optimizer.step()
    return [value.to(dtype) for value in seen + module()], state(module)


def adopted(program: Program) -> Any:
    """The optimizer's first moment is the gradient itself, which then gets other memory."""
    module = program.shard(cases.Table)
    optimizer = optim.Adam(module.parameters(), lr=0.1)
    for step in range(4):
        program.backward(lambda rank: module(rank))
        if step == 1:
            optimizer.state[module.matrix]["exp_avg"] = module.matrix.grad
        optimizer.step()
        optimizer.zero_grad()
    return state(module)


REFUSED: dict[str, Callable[[nn.Parameter], Any]] = {
    "data_ptr": lambda p: p.data_ptr(),
    "data_ptr of data": lambda p: p.data.data_ptr(),
    "data_ptr of the gradient": lambda p: p.grad.data_ptr(),
    "set_": lambda p: p.detach().set_(torch.zeros(7, 5, device=models.DEVICE)),
    "all_reduce": lambda p: dist.all_reduce(p),
    "all_reduce of data": lambda p: dist.all_reduce(p.data),
    "all_reduce of the gradient": lambda p: dist.all_reduce(p.grad),
}


class Shapes(unittest.TestCase):
    maxDiff = None

    def test_reads(self) -> None:
        """shapes, norms, clipping and averages, outside of a forward"""
        for world in (1, 2):
            with self.subTest(world=world):
                cases.check(daemon.socket, world, {name: partial(read, look) for name, look in READS.items()})

    def test_writes(self) -> None:
        """the next forward of each rank sees writes outside of a forward"""
        for world, options in ((1, {}), (2, {}), (3, {}), (2, {"param_dtype": torch.bfloat16})):
            with self.subTest(world=world, **options):
                cases.check(daemon.socket, world, {"a gradient in the state": adopted, **{name: partial(written, write) for name, write in WRITES.items()}}, **options)

    def test_refused(self) -> None:
        """operations that would use one rank's part as the whole raise an error that names the parameter"""
        def body(rank: int) -> Any:
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
                                    timeout=timedelta(seconds=20))
            module = harness.shard(harness.seeded(cases.Table))
            module(rank).backward()
            found = []
            for name, use in REFUSED.items():
                try:
                    use(module.matrix)
                    found.append(f"{name}: is not rejected")
                except Exception as refused:
                    found += [] if "matrix" in str(refused) else [f"{name}: {type(refused).__name__}: {refused}"]
            optimizer = optim.Adam(module.parameters(), lr=0.1)
            optimizer.step()
            p = module.matrix
            with torch.no_grad():
                for tensor in (p, p.data, p.grad, p[:2], p * 2, *torch._foreach_mul([p], 2), optimizer.state[p]["exp_avg"]):
                    try:
                        found.append(f"C++ sees a pointer {torch._C.TensorBase.data_ptr(tensor)} of {type(tensor)}")
                    except RuntimeError:
                        pass
            dist.destroy_process_group()
            return found

        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(harness.ranks(daemon.socket, 2, body), [[], []])


if __name__ == "__main__":
    support.main()
