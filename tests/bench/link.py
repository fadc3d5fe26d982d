#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Both directions of one GPU's link to the host: gathers of units in host memory beside sums into host memory.

One client gathers a unit again and again, each time a new version. Another one reduces gradients, whose float32 sums come to
host memory. Each runs alone, and then both at once, in turns; beside them torch copies between the GPU and pinned memory,
alone and both ways. GB/s of each direction, medians of the rounds.

    tests/bench/link.py [--seconds S] [--rounds N] [--json]                                     # $BUILD as in the tests
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import support  # noqa: E402  (sets the path of the package)

import torch  # noqa: E402

import zerod  # noqa: E402
from zerod import DType  # noqa: E402
from zerod import structs as s  # noqa: E402

NUMEL = 128 << 20  # of a unit, bfloat16
UNITS = 4  # of a window of gradients
TARGET_GB_S = 90.0

Step = Callable[[], int]  # moves some bytes, and returns how many


def gathers(client: zerod.Client) -> Step:
    group = client.join(job="up", world_size=1, rank=0, device=0)
    unit = group.register("up", DType.BFLOAT16, NUMEL, flags=s.UnitFlags.ON_HOST | s.UnitFlags.FROZEN)
    stream = torch.cuda.Stream()
    wrapped = client.cuda_stream(stream.cuda_stream)

    def step() -> int:
        unit.update_begin()
        unit.publish()
        unit.gather(wrapped)
        unit.release(wrapped)
        stream.synchronize()
        return NUMEL * 2

    return step


def sums(client: zerod.Client) -> Step:
    group = client.join(job="down", world_size=1, rank=0, device=0)
    units = [group.register(f"down{i}", DType.BFLOAT16, NUMEL, flags=s.UnitFlags.ON_HOST) for i in range(UNITS)]
    bucket = group.bucket(DType.BFLOAT16)
    stream = torch.cuda.Stream()
    wrapped = client.cuda_stream(stream.cuda_stream)
    entry = zerod.Entry()

    def step() -> int:
        group.backward_begin()
        for unit in units:
            bucket.reserve(unit, entry)
            bucket.submit(entry.id, wrapped)
        group.backward_end()
        group.step_begin()
        group.step_end()
        return UNITS * NUMEL * 4

    return step


def copies(up: bool) -> Step:
    pinned = torch.empty(NUMEL, dtype=torch.float32, pin_memory=True)
    device = torch.empty(NUMEL, dtype=torch.float32, device="cuda")
    stream = torch.cuda.Stream()

    def step() -> int:
        with torch.cuda.stream(stream):
            if up:
                device.copy_(pinned, non_blocking=True)
            else:
                pinned.copy_(device, non_blocking=True)
        stream.synchronize()
        return NUMEL * 4

    return step


def measure(steps: list[Step], seconds: float) -> list[float]:
    """GB/s of each, all at once."""
    rates = [0.0] * len(steps)
    start = threading.Barrier(len(steps))

    def run(index: int) -> None:
        torch.cuda.set_device(0)
        steps[index]()
        start.wait()
        began, nbytes = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            nbytes += steps[index]()
        rates[index] = nbytes / (time.perf_counter() - began) / 1e9

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(steps))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (2)")
    parser.add_argument("--rounds", type=int, default=3, help="of all measurements (3)")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    options = parser.parse_args()
    os.environ["ZEROD_TEST_BACKEND"] = "cuda"
    found: dict[str, list[float]] = {}
    with support.Daemon(arena="12G", host_arena="8G") as daemon:
        torch.cuda.init()
        with zerod.Client(daemon.socket) as one, zerod.Client(daemon.socket) as other:
            ways = {"zerod": (gathers(one), sums(other)), "pinned": (copies(True), copies(False))}
            for _ in range(options.rounds):
                for name, (up, down) in ways.items():
                    both = measure([up, down], options.seconds)
                    rates = {"up": measure([up], options.seconds)[0], "down": measure([down], options.seconds)[0],
                             "both: up": both[0], "both: down": both[1], "both: sum": sum(both)}
                    for key, value in rates.items():
                        found.setdefault(f"{name}, {key}", []).append(value)
            medians = {key: statistics.median(values) for key, values in found.items()}
            if options.json:
                print(json.dumps({"gb_s": found}))
            else:
                print(f"# {torch.cuda.get_device_name()}, {os.cpu_count()} processors, GB/s, medians of {options.rounds}")
                for key, values in found.items():
                    print(f"{key:20} {medians[key]:6.1f} ({min(values):.1f} to {max(values):.1f})")
                sum_gb_s = medians["zerod, both: sum"]
                print(f"# target: both directions, GB/s {sum_gb_s:.1f}, at least {TARGET_GB_S:.0f}: "
                      f"{'met' if sum_gb_s >= TARGET_GB_S else 'MISSED'}")
            sys.stdout.flush()
            os._exit(0)


if __name__ == "__main__":
    main()
