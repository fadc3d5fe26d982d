#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole training steps on several GPUs: zerod.torch and FSDP2, one after the other in one run.

The model has the shape of Qwen3-8B, or of its first layers: --layers. bfloat16 with float32 masters, AdamW (fused), a
sequence for each rank and step. Each way is a run of torchrun of its own. A step's time is the device's, from the end of
the step before to its own end. Memory is what is used of the fullest device behind the last step, the daemon's
included: both allocators keep what they once had.

A way is a library, with how many blocks it gathers ahead, and what else there is to choose:

    zerod:1                 zerod.torch
    fsdp2:1                 FSDP2; gradients are summed in bfloat16
    fsdp2:1:float32         gradients are sent and summed in float32
    fsdp2:1:symmetric       NCCL gathers by copy engines: symmetric memory, zero-CTA policy
    zerod:1:compile         blocks compiled by inductor; for both
    zerod:1:halves          zt.AdamW, with masters in two halves; also with :compile
    zerod:1:in_backward     the same, and it runs in the backward
    plain:0                 compute alone: each rank has all weights, and steps its share of as many float32 with AdamW
    ...:clip                gradients are clipped in each step; not with in_backward
    ...:profile             three more steps with a profiler, which says how long no kernel ran on the device

    tests/bench/torch_train.py [--ranks N] [--layers N] [--iters N] [--json] [WAY...]     # $BUILD as in the tests
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import support  # noqa: E402  (sets the path of the package)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

WAYS = ("plain:0", "zerod:1", "zerod:1:halves", "zerod:1:halves:clip", "zerod:1:in_backward", "fsdp2:1", "fsdp2:1:clip", "fsdp2:2",
        "fsdp2:1:symmetric", "plain:0:compile", "zerod:1:halves:compile", "zerod:1:in_backward:compile", "fsdp2:1:compile")
WIDTH, HEADS, GROUPS, HEAD, HIDDEN, VOCABULARY, TOKENS = 4096, 32, 8, 128, 12288, 151936, 4096
WARM_UP = 4
TIMEOUT_S = 150  # of a way; 124 is then its exit status
# FSDP2's time over zerod's at least, zerod's memory over FSDP2's at most, and zerod's time over that of compute alone.
TARGETS = {"in_backward": (1.20, 0.87, 1.06), "halves": (1.12, 1.0, 1.10)}
MOST_IN_FLIGHT = 4.0  # GiB of the daemon's, for a rank
PROFILED = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, n * HEAD, bias=False) for n in (HEADS, GROUPS, GROUPS))
        self.q_norm, self.k_norm = nn.RMSNorm(HEAD), nn.RMSNorm(HEAD)
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        q, k, v = (linear(h).unflatten(-1, (-1, HEAD)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        q, k = turned(self.q_norm(q), cos, sin), turned(self.k_norm(k), cos, sin)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        angle = torch.outer(torch.arange(tokens.shape[1], device=tokens.device),
                            1e6 ** -(torch.arange(0, HEAD, 2, device=tokens.device) / HEAD)).repeat(1, 2)
        cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def zerod(model: Model, ahead: int, choices: list[str]) -> nn.Module:
    import zerod.torch as zt

    return zt.shard(model, param_dtype=torch.bfloat16, prefetch=ahead)


def fsdp2(model: Model, ahead: int, choices: list[str]) -> nn.Module:
    import torch.distributed as dist
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    options = dist.ProcessGroupNCCL.Options()
    if "symmetric" in choices:
        options.config.cta_policy = dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO
    dist.init_process_group("nccl", pg_options=options, device_id=torch.device("cuda", torch.cuda.current_device()))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                  reduce_dtype=torch.float32 if "float32" in choices else torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    if "symmetric" in choices:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_symm_mem_for_comm()  # AttributeError before torch 2.12
    layers: list[Any] = list(model.layers)
    for i, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(layers[i + 1:i + 1 + ahead])
        layer.set_modules_to_backward_prefetch(layers[max(i - ahead, 0):i][::-1])
    return model


class Share(torch.optim.AdamW):
    """Of compute alone: what a rank has to step of a model, and no gradient of that."""

    def __init__(self, model: Model) -> None:
        numel = sum(parameter.numel() for parameter in model.parameters()) // int(os.environ["WORLD_SIZE"])
        self.model = model
        self.share = torch.zeros(numel, device="cuda", requires_grad=True)
        self.share.grad = torch.zeros_like(self.share)
        super().__init__([self.share], lr=1e-4, fused=True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.model.zero_grad()


def plain(model: Model, ahead: int, choices: list[str]) -> nn.Module:
    return model.bfloat16()


def optimizer_of(library: str, sharded: nn.Module, choices: list[str]) -> torch.optim.Optimizer:
    if library == "plain":
        return Share(sharded)  # type: ignore[arg-type]
    if "halves" in choices or "in_backward" in choices:
        import zerod.torch as zt

        return zt.AdamW(sharded.parameters(), lr=1e-4, in_backward="in_backward" in choices)
    return torch.optim.AdamW(sharded.parameters(), lr=1e-4, fused=True)


def clip(library: str, sharded: nn.Module) -> None:
    if library == "zerod":
        import zerod.torch as zt

        zt.clip_grad_norm_(sharded, 1.0)
    else:
        torch.nn.utils.clip_grad_norm_(sharded.parameters(), 1.0)


def idle_ms(profiler: Any) -> float:
    """Of a step: how long no kernel or copy of this process ran on the device, between the first one and the last one."""
    spans = sorted((event.time_range.start, event.time_range.end) for event in profiler.events()
                   if event.device_type == torch.autograd.DeviceType.CUDA)
    idle, end = 0.0, spans[0][1]
    for begin, last in spans:
        idle += max(begin - end, 0)
        end = max(end, last)
    return idle / 1000 / PROFILED


def in_flight_bytes(ranks: int, keeps_sums: bool) -> int:
    """Of the daemon's for a rank, at most: blocks that are neither shards nor kept sums. The job is the only one."""
    listed = subprocess.run([str(support.BUILD / "bin" / "zeroctl"), "jobs", "--json"], check=True, capture_output=True, text=True)
    job, = json.loads(listed.stdout)["rows"]
    usage = job["usage"]
    sums = 2 * usage["shard_bytes"] if keeps_sums else 0  # float32 sums of bfloat16 shards, which have gone with the last step
    return (usage["peak_bytes"] - usage["shard_bytes"] - sums - usage["allocation_bytes"]) // ranks


def rank_main(way: str, layers: int, iters: int) -> None:
    """Trains as one rank; rank 0 prints the figures as JSON."""
    library, ahead, *choices = way.split(":")
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Model(layers)
    if "compile" in choices:
        for layer in model.layers:
            layer.compile()
    sharded = {"zerod": zerod, "fsdp2": fsdp2, "plain": plain}[library](model, int(ahead), choices)
    optimizer = optimizer_of(library, sharded, choices)
    torch.cuda.empty_cache()
    tokens = torch.randint(VOCABULARY, (1, TOKENS + 1), device="cuda", generator=torch.Generator("cuda").manual_seed(rank))
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(WARM_UP + iters)]

    def step() -> torch.Tensor:
        logits = sharded(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        del logits
        loss.backward()
        if "clip" in choices:
            clip(library, sharded)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for end in ends:
        loss = step()
        end.record()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    times = [a.elapsed_time(b) for a, b in zip(ends[WARM_UP - 1:], ends[WARM_UP:])]
    idle = None
    if "profile" in choices:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(PROFILED):
                step()
            torch.cuda.synchronize()
        idle = idle_ms(profiler)
    in_flight = in_flight_bytes(int(os.environ["WORLD_SIZE"]), "in_backward" not in choices) if library == "zerod" and rank == 0 else None
    print("FIGURES " + json.dumps({"rank": rank, "ms": times, "bytes": total - free, "idle_ms": idle, "loss": float(loss.detach()),
                                   "in_flight_bytes": in_flight,
                                   "torch_bytes": torch.cuda.max_memory_reserved()}), flush=True)
    if library == "fsdp2":
        torch.distributed.destroy_process_group()


def run(way: str, ranks: int, layers: int, iters: int, socket: Optional[str]) -> dict[str, Any]:
    """The figures of all ranks as one."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
                       TORCH_SYMM_MEM_DISABLE_MULTICAST="1")
    if "symmetric" in way:
        del environment["PYTORCH_CUDA_ALLOC_CONF"]
    if socket:
        environment["ZEROD_SOCKET"] = socket
    done = subprocess.run(["timeout", str(TIMEOUT_S), sys.executable, "-m", "torch.distributed.run", "--standalone",
                           "--nproc-per-node", str(ranks), __file__, "--rank-of", way, "--layers", str(layers), "--iters", str(iters)], env=environment,
                          capture_output=True, text=True)
    found = [json.loads(line[line.index("{"):]) for line in done.stdout.splitlines() if "FIGURES {" in line]
    if done.returncode or len(found) < ranks:
        errors = [line for line in done.stderr.splitlines() if "Error: " in line]
        raise RuntimeError(f"exit status {done.returncode}: {errors[0] if errors else done.stderr[-2000:]}")
    return {"ms": max((each["ms"] for each in found), key=statistics.median), "bytes": max(each["bytes"] for each in found),
            "torch_bytes": max(each["torch_bytes"] for each in found), "idle_ms": found[0]["idle_ms"], "loss": found[0]["loss"],
            "in_flight_bytes": next((each["in_flight_bytes"] for each in found if each["rank"] == 0), None)}


def report(found: dict[str, dict[str, Any]]) -> None:
    """Each optimizer of zerod's beside the best of FSDP2, and compute alone."""
    def median(way: str) -> float:
        return statistics.median(found[way]["ms"])

    def said(what: str, value: float, target: float, at_least: bool) -> None:
        met = value >= target if at_least else value <= target
        print(f"target, {what}: {value:.2f}, at {'least' if at_least else 'most'} {target:.2f}: {'met' if met else 'MISSED'}")

    for way in found:
        library, _, *choices = way.split(":")
        name = next((choice for choice in choices if choice in TARGETS), None)
        like = {choice for choice in choices if choice in ("compile", "clip")}
        theirs = [other for other in found if other.startswith("fsdp2") and {"compile", "clip"} & set(other.split(":")) == like]
        if library != "zerod" or name is None or not theirs:
            continue
        best = min(theirs, key=median)
        speed, memory, alone = TARGETS[name]
        said(f"time of {best} over {way}", median(best) / median(way), speed, True)
        said(f"memory of {way} over {best}", found[way]["bytes"] / found[best]["bytes"], memory, False)
        said(f"GiB in flight of {way}", found[way]["in_flight_bytes"] / 2**30, MOST_IN_FLIGHT, False)
        bare = "plain:0:compile" if "compile" in like else "plain:0"
        if bare in found and "clip" not in like:
            said(f"time of {way} over {bare}", median(way) / median(bare), alone, False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY", default=WAYS, help=f"default: {' '.join(WAYS)}")
    parser.add_argument("--ranks", type=int, help="ranks, a GPU each (all GPUs)")
    parser.add_argument("--layers", type=int, default=36, help="of Qwen3-8B's 36")
    parser.add_argument("--iters", type=int, default=10, help=f"steps, behind {WARM_UP} to warm up (10)")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object")
    parser.add_argument("--rank-of", metavar="WAY", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank_main(options.rank_of, options.layers, options.iters)
        return
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]  # makes no context here
    gpus = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()
    name, mebibytes = gpus[0].split(", ")
    options.ranks = options.ranks or len(gpus)
    os.environ["ZEROD_TEST_BACKEND"] = "cuda"
    log = sys.stderr if options.json else sys.stdout
    print(f"# torch {torch.__version__}, {options.ranks} of {name}, {options.layers} layers, "
          f"{TOKENS} tokens a rank", file=log, flush=True)
    found: dict[str, dict[str, Any]] = {}
    for way in options.ways:
        try:
            if way.startswith("zerod"):
                with support.Daemon(arena=f"{int(mebibytes) * 95 // 100}M") as daemon:
                    figures = run(way, options.ranks, options.layers, options.iters, daemon.socket)
            else:
                figures = run(way, options.ranks, options.layers, options.iters, None)
        except RuntimeError as error:
            print(f"{way:24} {error}", file=log, flush=True)
            continue
        found[way] = figures
        ms = figures["ms"]
        print(f"{way:24} step ms {statistics.median(ms):8.1f} ({min(ms):.1f} to {max(ms):.1f})  device "
              f"{figures['bytes'] / 2**30:6.1f} GiB, torch's {figures['torch_bytes'] / 2**30:.1f}  loss {figures['loss']:.4f}"
              + (f", in flight {figures['in_flight_bytes'] / 2**30:.1f}" if figures["in_flight_bytes"] is not None else "")
              + (f"  idle {figures['idle_ms']:.1f} ms" if figures["idle_ms"] is not None else ""),
              file=log, flush=True)
    if options.json:
        print(json.dumps(found))
    else:
        report(found)


if __name__ == "__main__":
    main()
