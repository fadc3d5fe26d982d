#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps with weights, gradients and the optimizer's state in host memory, on one GPU: zerod.torch and FSDP2.

A model of layers like Qwen3's, checkpointed, one sequence of 4096 tokens, bfloat16 with float32 masters, AdamW (fused).
Each way is a process of its own, one after the other in one run. Times are the wall clock's: the forward and the backward,
until the GPU has done both, and the whole step, until GPU and CPU have done all. Gradients come to the host in the
backward; what is left of that when the GPU has ended the backward is FSDP2's backward, and zerod's step. Peak memory is
the most that PyTorch has allocated and, for zerod, the most that the daemon has had on the GPU, added up. The daemon keeps
gathered buffers and sums of gradients where there is room, so --arena bounds its part.

    fsdp2                   FSDP2 at world size 1
    fsdp2:offload           with CPUOffloadPolicy(pin_memory=True)
    zerod                   zerod.torch at world size 1
    zerod:params            with offload="params"; likewise "optimizer" and "all"
    zerod:all:overlapped    with optimizer_in_backward(); likewise of the other two
    zerod:all:halves        with zt.AdamW, whose masters are in two halves; likewise of "params"
    zerod:all:in_backward   the same, and it runs in the backward

    tests/bench/torch_offload.py [--layers N] [--iters N] [--device-budget GIB] [--arena SIZE] [--host-arena SIZE] [--json]
                                 [WAY...]

--device-budget is zerod's, of the ways with offload.

$BUILD is as in the tests.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import support  # noqa: E402  (sets the path of the package)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_train import HEAD, TOKENS, WIDTH, Block  # noqa: E402

WAYS = ("fsdp2", "fsdp2:offload", "zerod", "zerod:params", "zerod:all", "zerod:all:overlapped", "zerod:all:halves", "zerod:all:in_backward")
WARM_UP = 2
TIMEOUT_S = 240  # of a way
FORWARD_TARGET, STEP_TARGET, MEMORY_TARGET = 1.15, 0.5, 0.9  # of the time without offload; of FSDP2's with it


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False)
        return x


def rotations() -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.outer(torch.arange(TOKENS, device="cuda"),
                        1e6 ** -(torch.arange(0, HEAD, 2, device="cuda") / HEAD)).repeat(1, 2)
    return angle.cos().bfloat16(), angle.sin().bfloat16()


def fsdp2(model: Model, choice: str, _: int) -> nn.Module:
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29519", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", 0))
    options: dict[str, Any] = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    if choice == "offload":
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=True)
    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def zerod(model: Model, choice: str, device_budget: int) -> nn.Module:
    import zerod.torch as zt

    return zt.shard(model, param_dtype=torch.bfloat16, offload=choice or None, device_budget=device_budget if choice else 0)


def optimizer_of(model: nn.Module, stepped: str) -> torch.optim.Optimizer:
    import zerod.torch as zt

    if stepped in ("halves", "in_backward"):
        return zt.AdamW(model.parameters(), lr=1e-4, in_backward=stepped == "in_backward")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if stepped == "overlapped":
        zt.optimizer_in_backward(model, optimizer)
    return optimizer


def daemon_peak_bytes() -> int:
    import zerod

    with zerod.Client(os.environ["ZEROD_SOCKET"]) as client:
        return int(client.device(0).peak_bytes)


def way_main(way: str, layers: int, iters: int, device_budget: int) -> None:
    """Trains, and prints the figures as JSON."""
    library, _, rest = way.partition(":")
    choice, _, stepped = rest.partition(":")
    torch.manual_seed(0)
    began = time.perf_counter()
    with torch.device("cuda"):
        model: Any = Model(layers)
    model = {"fsdp2": fsdp2, "zerod": zerod}[library](model, choice, device_budget)
    optimizer = optimizer_of(model, stepped)
    x = torch.randn(1, TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
    cos, sin = rotations()
    figures: dict[str, list[float]] = {"forward_backward_ms": [], "step_ms": [], "losses": []}
    torch.cuda.synchronize()
    made_s = time.perf_counter() - began
    torch.cuda.reset_peak_memory_stats()
    for i in range(WARM_UP + iters):
        start = time.perf_counter()
        loss = model(x, cos, sin).float().square().mean()
        loss.backward()
        torch.cuda.synchronize()
        between = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if i >= WARM_UP:
            figures["forward_backward_ms"].append((between - start) * 1e3)
            figures["step_ms"].append((time.perf_counter() - start) * 1e3)
        figures["losses"].append(loss.item())
    daemon = daemon_peak_bytes() if library == "zerod" else 0
    peak = torch.cuda.max_memory_allocated() + daemon
    print(json.dumps({"made_s": made_s, "peak_gib": peak / 2**30, "daemon_gib": daemon / 2**30, **figures}), flush=True)
    os._exit(0)  # process groups and pinned memory take their time


def run(way: str, options: argparse.Namespace) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, "--way", way, "--layers", str(options.layers), "--iters",
                           str(options.iters), "--device-budget", str(options.device_budget)],
                          capture_output=True, text=True, timeout=TIMEOUT_S)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"{way}: exit status {done.returncode}\n{done.stdout}{done.stderr[-4000:]}")
    return dict(json.loads(lines[-1]))


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):8.1f} ({min(values):.1f} to {max(values):.1f})"


def target(what: str, value: float, most: float) -> None:
    print(f"# target: {what} {value:.2f}, at most {most:.2f}: {'met' if value <= most else 'MISSED'}")


def report(found: dict[str, dict[str, Any]]) -> None:
    median = {way: {key: statistics.median(of[key]) for key in ("forward_backward_ms", "step_ms")}
              for way, of in found.items()}
    if "zerod" in found:
        for way in found:
            if way.startswith("zerod:"):
                target(f"{way}: forward and backward, of those without offload",
                       median[way]["forward_backward_ms"] / median["zerod"]["forward_backward_ms"], FORWARD_TARGET)
    if "fsdp2:offload" in found:
        for way in found:
            if way.startswith("zerod:"):
                target(f"{way}: step, of FSDP2's with offload",
                       median[way]["step_ms"] / median["fsdp2:offload"]["step_ms"], STEP_TARGET)
                target(f"{way}: peak memory, of FSDP2's with offload",
                       found[way]["peak_gib"] / found["fsdp2:offload"]["peak_gib"], MEMORY_TARGET)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="*", metavar="WAY", default=WAYS, help=", ".join(WAYS))
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, default=20, help="20: 3.9 billion parameters")
    parser.add_argument("--iters", type=int, default=5, help=f"timed steps, behind {WARM_UP} to warm up (5)")
    parser.add_argument("--device-budget", type=float, default=0, metavar="GIB",
                        help="of the GPU, for blocks that zerod does not offload (0)")
    parser.add_argument("--arena", default="70G", help="of the daemon, on the GPU (70G)")
    parser.add_argument("--host-arena", default="90G", help="of the daemon, in host memory (90G)")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object")
    options = parser.parse_args()
    if options.way:
        way_main(options.way, options.layers, options.iters, int(options.device_budget * 2**30))
    os.environ["ZEROD_TEST_BACKEND"] = "cuda"
    text = sys.stderr if options.json else sys.stdout
    print(f"# torch {torch.__version__}, {torch.cuda.get_device_name()}, {os.cpu_count()} processors, "
          f"{options.layers} layers, arena {options.arena}, a device budget of {options.device_budget:g} GiB", file=text)
    found = {}
    for way in options.ways:
        with support.Daemon(arena=options.arena, host_arena=options.host_arena) as daemon:
            os.environ["ZEROD_SOCKET"] = daemon.socket
            of = found[way] = run(way, options)
        print(f"{way:20} forward+backward ms {spread(of['forward_backward_ms'])}  step ms {spread(of['step_ms'])}  "
              f"peak GiB {of['peak_gib']:.1f}, {of['daemon_gib']:.1f} the daemon's  made in {of['made_s']:.1f} s  "
              f"last loss {of['losses'][-1]:.6f}",
              file=text, flush=True)
    if options.json:
        print(json.dumps(found))
    else:
        report(found)


if __name__ == "__main__":
    main()
