#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A reader takes a trainer's weights: by zerod.reader, by NCCL's broadcast and by CUDA IPC, in one run.

The model has the shape of Qwen3-8B, or of its first layers, in bfloat16. The trainer is on the first GPU, and the reader on the
second one, or on the same one with --colocated, where NCCL is left out. The reader is an engine that holds its own parameters: a
time begins when the trainer has committed a step, and ends when the reader's device has written the last parameter. The values
are compared. Each parameter has a broadcast of its own, and a copy of its own from a handle that was opened before.

With --saved each commit is also copied to host memory, and read from there.

Then the steps of a durable job, which commits each one, on as many layers as --train says, with zt.AdamW: without a reader, and with
one that takes each commit.

    tests/bench/torch_readers.py [--layers N] [--iters N] [--train LAYERS] [--colocated] [--saved] [--json]     # $BUILD as in the tests
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch_train import TOKENS, VOCABULARY, Model, support

import zerod.torch as zt
from zerod.reader import Reader

TARGETS = {"apart": 60.0, "colocated": 20.0, "saved": 320.0}  # ms, for 16 GB
STEP_TARGET = 1.01
GPUS = torch.cuda.device_count()
WARM_UP = 2


def device_of(number: int) -> torch.device:
    if not GPUS:
        return torch.device("cpu")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def synchronize() -> None:
    if GPUS:
        torch.cuda.synchronize()


def made(layers: int, device: torch.device) -> Model:
    torch.manual_seed(0)
    with device:
        torch.set_default_dtype(torch.bfloat16)
        model = Model(layers)
        torch.set_default_dtype(torch.float32)
    return model


def process_group(rank: int, port: int) -> None:
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, device_id=torch.device("cuda", rank))


# ---- The reader's process ----

def reader_main(pipe: Any, number: int, layers: int, address: dict[str, str], port: int) -> None:
    """Answers (ms, whether the values are right) to each ("zerod", step, value), ("nccl",) and ("ipc", value)."""
    model = made(layers, device_of(number))
    parameters = dict(model.named_parameters())
    shared: dict[str, torch.Tensor] = {}

    def by_zerod(by: Reader, after: int) -> None:
        by.load(lambda tensors: [parameters[name].copy_(tensor) for name, tensor in tensors], after=after, maps=not by.saved)

    def by_nccl() -> None:
        for parameter in parameters.values():
            dist.broadcast(parameter, 0)

    def by_ipc() -> None:
        for name, parameter in parameters.items():
            parameter.copy_(shared[name])

    pipe.send("ready")
    with Reader(**address) as reader, Reader(**address, saved=True) as saved, torch.no_grad():
        while (request := pipe.recv()) is not None:
            way, value, argument = request
            if way == "nccl" and not dist.is_initialized():
                process_group(1, port)
            if way == "ipc" and not shared:
                shared = {name: build(*arguments) for name, (build, arguments) in argument.items()}
            synchronize()
            pipe.send("begins")
            began = time.perf_counter()
            {"zerod": lambda: by_zerod(reader, argument), "saved": lambda: by_zerod(saved, argument), "nccl": by_nccl, "ipc": by_ipc}[way]()
            synchronize()
            took = 1000 * (time.perf_counter() - began)
            pipe.send((took, all(bool((parameter == value).all()) for parameter in parameters.values())))


# ---- The trainer's ----

def measured(iters: int, once: Callable[[int], float]) -> list[float]:
    return [once(i) for i in range(WARM_UP + iters)][WARM_UP:]


def transfers(options: argparse.Namespace, pipe: Any, sharded: Any, port: int) -> dict[str, list[float]]:
    device = zt.model_of(sharded).device
    plain: Optional[Model] = None
    found: dict[str, list[float]] = {}

    def once(way: str, i: int) -> float:
        value = float(len(found) * 64 + i + 1)
        argument: Any = None
        model = sharded if plain is None else plain
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
        synchronize()
        if way in ("zerod", "saved"):
            argument = zt.commit(sharded) - 1
        if way == "saved":
            began = time.perf_counter()
            zt.save_commit(sharded).wait()
            found.setdefault("commit to host memory", []).append(1000 * (time.perf_counter() - began))
        elif way == "ipc" and plain is not None:
            argument = {name: reduced(parameter) for name, parameter in plain.named_parameters()}
        pipe.send((way, value, argument))
        if way == "nccl" and plain is not None:
            if not dist.is_initialized():
                process_group(0, port)
            assert pipe.recv() == "begins"
            for parameter in plain.parameters():
                dist.broadcast(parameter.data, 0)
            synchronize()
        else:
            assert pipe.recv() == "begins"
        took, right = pipe.recv()
        if not right:
            raise SystemExit(f"{way}: the reader has other values")
        return took

    for way in ["zerod"] + ["saved"] * options.saved:
        found[way] = measured(options.iters, lambda i: once(way, i))
    if GPUS:
        from torch.multiprocessing.reductions import reduce_tensor

        def reduced(parameter: torch.Tensor) -> Any:
            return reduce_tensor(parameter.data)

        plain = made(options.layers, device)
        for way in ["ipc"] if options.colocated else ["nccl", "ipc"]:
            found[way] = measured(options.iters, lambda i: once(way, i))
    return found


def steps(layers: int, iters: int, number: int) -> dict[str, list[float]]:
    """The trainer's steps in ms: alone, and with a reader of each commit."""
    device = device_of(0)
    torch.manual_seed(0)
    with device:
        model = zt.shard(Model(layers), param_dtype=torch.bfloat16, durable="steps")
    optimizer = zt.AdamW(model.parameters(), lr=1e-4)
    address = zt.share(model)
    tokens = torch.randint(VOCABULARY, (1, TOKENS + 1), device=device)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    taken = context.Value("i", 0)
    found: dict[str, list[float]] = {}
    for way in ("commits alone", "with a reader"):
        process = context.Process(target=follow, args=(address, number, stop, taken), daemon=True)
        if way == "with a reader":
            process.start()
            for _ in range(600):  # imports of torch would slow the steps down
                if taken.value or not process.is_alive():
                    break
                time.sleep(0.1)
        before, times = taken.value, []
        for _ in range(WARM_UP + iters):
            synchronize()
            began = time.perf_counter()
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            synchronize()
            times.append(1000 * (time.perf_counter() - began))
        found[way] = times[WARM_UP:]
    print(f"# the reader took {taken.value - before} commits of {len(times)}", flush=True)
    stop.set()
    process.join()
    return found


def follow(address: dict[str, str], number: int, stop: Any, taken: Any) -> None:
    device_of(number)
    step = 0
    with Reader(**address) as reader:
        while not stop.is_set():
            try:
                step = reader.load(lambda tensors: [None for _ in tensors], after=step, deadline_ms=2000)
            except Exception as error:
                print(f"# the reader: {error}", flush=True)
                return
            taken.value += 1


def said(what: str, times: list[float]) -> None:
    print(f"{what:24} ms {statistics.median(times):8.1f} ({min(times):.1f} to {max(times):.1f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=36, help="of Qwen3-8B's 36: 16.4 GB")
    parser.add_argument("--iters", type=int, default=10)
    parser.add_argument("--train", type=int, default=4, metavar="LAYERS", help="layers of the model that trains; 0: none does (4)")
    parser.add_argument("--colocated", action="store_true", help="trainer and reader on one GPU")
    parser.add_argument("--saved", action="store_true", help="also by a copy in host memory, which needs twice the model's bytes")
    parser.add_argument("--json", action="store_true", help="all times as one JSON object, last")
    options = parser.parse_args()
    os.environ["ZEROD_TEST_BACKEND"] = "cuda" if GPUS else "host"
    number = 0 if options.colocated or GPUS < 2 else 1
    host_arena = ("60G" if GPUS else "8G") if options.saved else ""
    with support.Daemon(2, "60G" if GPUS else "4G", host_arena=host_arena) as daemon:
        os.environ.update(ZEROD_SOCKET=daemon.socket, ZEROD_JOB="readers", RANK="0", WORLD_SIZE="1")
        sharded = zt.shard(made(options.layers, device_of(0)))
        address = zt.share(sharded)
        nbytes = sum(parameter.nbytes for parameter in sharded.parameters())
        print(f"# torch {torch.__version__}, trainer on device 0, reader on device {number}, {nbytes / 1e9:.1f} GB", flush=True)
        context = multiprocessing.get_context("spawn")
        pipe, other = context.Pipe()
        port = 20000 + os.getpid() % 10000
        process = context.Process(target=reader_main, args=(other, number, options.layers, address, port), daemon=True)
        process.start()
        assert pipe.recv() == "ready"
        found = transfers(options, pipe, sharded, port)
        pipe.send(None)
        process.join()
        for way, times in found.items():
            said(way, times)
        for way, target in (("zerod", TARGETS["colocated" if number == 0 else "apart"]), ("saved", TARGETS["saved"])):
            if GPUS and options.layers == 36 and way in found:
                took = statistics.median(found[way])
                print(f"target, ms, {way}: {took:.1f}, at most {target:.0f}: {'met' if took <= target else 'MISSED'}")
        zt.unshard(sharded)
    if options.train:
        with support.Daemon(arena="100G" if GPUS else "4G", devices=2) as daemon:
            os.environ.update(ZEROD_SOCKET=daemon.socket)
            trained = steps(options.train, options.iters, number)
            for way, times in trained.items():
                said(way, times)
            ratio = statistics.median(trained["with a reader"]) / statistics.median(trained["commits alone"])
            print(f"target, steps with a reader over those without: {ratio:.3f}, at most {STEP_TARGET}: "
                  f"{'met' if ratio <= STEP_TARGET else 'MISSED'}")
            found.update(trained)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
