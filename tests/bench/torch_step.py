#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forward and backward of a transformer on one GPU: plain PyTorch, zerod.torch and FSDP2, in turns in one run.

World size 1, so that what is measured is what sharding costs beside communication: hooks, requests and copies.
Time is the device's, between two events around forward and backward. CPU is the process' CPU time of the same
span, and a library's hooks cost what it takes beyond plain PyTorch. bfloat16, weights and gradients alike.

    tests/bench/torch_step.py [--iters N] [--json]       # $ZEROD_LIBRARY and $BUILD as in the tests
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import support  # noqa: E402  (sets the path of the package)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

SHAPES = ((24, 256, 256), (16, 2048, 2048), (8, 4096, 4096))  # blocks, width, tokens
TARGETS = {256: 1.4, 2048: 1.06, 4096: 1.02}  # of plain PyTorch's time
HOOKS_TARGET = 0.25  # of FSDP2's CPU time


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 128, 2)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def plain(model: nn.Module) -> nn.Module:
    return model


def zerod(model: nn.Module) -> nn.Module:
    import zerod.torch as zt

    return zt.shard(model)


def fsdp2(model: nn.Module) -> nn.Module:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    if not dist.is_initialized():
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK="0", WORLD_SIZE="1")
        dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def step(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """Milliseconds of the device and of the CPU, of forward and backward. The optimizer is not timed."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda.synchronize()
    events[0].record()
    began = time.process_time()
    model(x).square().mean().backward()
    events[1].record()
    cpu_ms = (time.process_time() - began) * 1e3
    torch.cuda.synchronize()
    optimizer.step()
    optimizer.zero_grad()
    return events[0].elapsed_time(events[1]), cpu_ms


def measure(blocks: int, width: int, tokens: int, iters: int) -> dict[str, dict[str, list[float]]]:
    libraries: tuple[Callable[[nn.Module], nn.Module], ...] = (plain, zerod, fsdp2)
    torch.manual_seed(0)
    x = torch.randn(1, tokens, width, device="cuda", dtype=torch.bfloat16)
    made = {library.__name__: library(Model(blocks, width).to("cuda", torch.bfloat16)) for library in libraries}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-6) for name, model in made.items()}
    found: dict[str, dict[str, list[float]]] = {name: {"device_ms": [], "cpu_ms": []} for name in made}
    for i in range(3 + iters):
        for name, model in made.items():
            device_ms, cpu_ms = step(model, x, optimizers[name])
            if i >= 3:
                found[name]["device_ms"].append(device_ms)
                found[name]["cpu_ms"].append(cpu_ms)
    return found


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):8.2f} ({min(values):.2f} to {max(values):.2f})"


def report(shape: tuple[int, int, int], found: dict[str, dict[str, list[float]]]) -> None:
    median = {name: {key: statistics.median(values) for key, values in of.items()} for name, of in found.items()}
    print("# %d blocks of width %d, %d tokens" % shape)
    for name, of in found.items():
        print(f"{name:8} device ms {spread(of['device_ms'])}  CPU ms {spread(of['cpu_ms'])}  "
              f"of plain's time {median[name]['device_ms'] / median['plain']['device_ms']:.2f}")
    hooks = {name: median[name]["cpu_ms"] - median["plain"]["cpu_ms"] for name in ("zerod", "fsdp2")}
    ratio, target = median["zerod"]["device_ms"] / median["plain"]["device_ms"], TARGETS[shape[1]]
    print(f"target: of plain's time {ratio:.2f}, at most {target:.2f}: {'met' if ratio <= target else 'MISSED'}")
    of_fsdp2 = hooks["zerod"] / hooks["fsdp2"]
    print(f"target: hooks' CPU of FSDP2's {of_fsdp2:.2f}, at most {HOOKS_TARGET:.2f}: "
          f"{'met' if of_fsdp2 <= HOOKS_TARGET else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iters", type=int, default=20, help="steps of each library, behind 3 to warm up (20)")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object")
    options = parser.parse_args()
    os.environ["ZEROD_TEST_BACKEND"] = "cuda"
    print(f"# torch {torch.__version__}, {torch.cuda.get_device_name()}",
          file=sys.stderr if options.json else sys.stdout)
    everything = {}
    with support.Daemon(arena="64G") as daemon:
        os.environ["ZEROD_SOCKET"] = daemon.socket
        for shape in SHAPES:
            found = everything["x".join(map(str, shape))] = measure(*shape, options.iters)
            if not options.json:
                report(shape, found)
    if options.json:
        print(json.dumps(everything))


if __name__ == "__main__":
    main()
