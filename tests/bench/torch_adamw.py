#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where AdamW for weights in host memory is sooner: on the CPU, or on the GPU with all states on their way through it.

Four times 193 million float32 masters, gradients and moments, and bfloat16 weights, in pinned memory, without zerod. The CPU
runs torch's fused AdamW and rounds. The GPU gets pieces of all but the weights, steps, rounds, and sends back masters,
moments and weights, with several buffers, so that both directions of the link work at once. Then both at once, for half of
the parameters each. ns for each parameter, the best of three.

    tests/bench/torch_adamw.py
"""
from __future__ import annotations

import os
import threading
import time
from typing import Callable

import torch

NUMEL, UNITS = 193_000_000, 4
REPEATS = 3
Unit = dict[str, torch.Tensor]
CONSTANTS = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": False, "maximize": False}


def unit() -> Unit:
    made = {name: torch.full((NUMEL,), 0.01) for name in ("master", "gradient", "mean", "square")}
    made["weight"] = torch.zeros(NUMEL, dtype=torch.bfloat16)
    for tensor in made.values():
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
    return made


def adamw(master: torch.Tensor, gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor) -> None:
    step = torch.ones((), device=master.device)
    torch._fused_adamw_([master], [gradient], [mean], [square], [], [step], **CONSTANTS)


def by_cpu(units: list[Unit]) -> None:
    for each in units:
        adamw(each["master"], each["gradient"], each["mean"], each["square"])


def rounded(units: list[Unit]) -> None:
    for each in units:
        each["weight"].copy_(each["master"])


def by_gpu(units: list[Unit], piece: int, buffers: int) -> None:
    up, compute, down = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
    rooms = [[torch.empty(piece, device="cuda") for _ in range(4)] for _ in range(buffers)]
    weights = [torch.empty(piece, device="cuda", dtype=torch.bfloat16) for _ in range(buffers)]
    free = [torch.cuda.Event() for _ in range(buffers)]
    for index, (each, begin) in enumerate((each, begin) for each in units for begin in range(0, NUMEL, piece)):
        end, turn = min(NUMEL, begin + piece), index % buffers
        states, weight = [room[:end - begin] for room in rooms[turn]], weights[turn][:end - begin]
        up.wait_event(free[turn])
        with torch.cuda.stream(up):
            for state, name in zip(states, ("master", "gradient", "mean", "square")):
                state.copy_(each[name][begin:end], non_blocking=True)
        compute.wait_stream(up)
        with torch.cuda.stream(compute):
            adamw(*states)
            weight.copy_(states[0])
        down.wait_stream(compute)
        with torch.cuda.stream(down):
            for state, name in ((states[0], "master"), (states[2], "mean"), (states[3], "square"), (weight, "weight")):
                each[name][begin:end].copy_(state, non_blocking=True)
        free[turn].record(down)
    torch.cuda.synchronize()


def ns(work: Callable[[], None], units: int) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times) / units / NUMEL * 1e9


def main() -> None:
    print(f"# torch {torch.__version__}, {torch.cuda.get_device_name()}, {os.cpu_count()} processors")
    units = [unit() for _ in range(UNITS)]
    for threads in (8, 12, 16):
        torch.set_num_threads(threads)
        by_cpu(units)
        stepped, cast = ns(lambda: by_cpu(units), UNITS), ns(lambda: rounded(units), UNITS)
        print(f"CPU, {threads} threads: AdamW {stepped:.3f}, rounding {cast:.3f}")
    for piece, buffers in ((25_000_000, 2), (25_000_000, 3), (8_000_000, 3), (2_000_000, 4)):
        print(f"GPU, {buffers} pieces of {piece}: {ns(lambda: by_gpu(units, piece, buffers), UNITS):.3f}")
    for threads in (8, 12, 15):
        torch.set_num_threads(threads)

        def both() -> None:
            other = threading.Thread(target=by_gpu, args=(units[2:], 8_000_000, 3))
            other.start()
            by_cpu(units[:2])
            rounded(units[:2])
            other.join()

        print(f"both, {threads} threads: {ns(both, UNITS):.3f}")


if __name__ == "__main__":
    main()
