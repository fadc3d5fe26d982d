# SPDX-License-Identifier: Apache-2.0
"""python -m zerod.torch.demo trains a small GPT on a text, sharded by zerod. With --fsdp2 it then trains the same GPT with FSDP2.

The program starts its ranks itself, or is a rank that torchrun has started. Rank 0 prints.
"""
from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Iterator

import torch
import torch.nn.functional as F
from torch import nn

import zerod.torch as zt
from zerod import ConnectionFailed, ZerodError, private
from zerod.demo.common import (LINE, MIB, SIGNALS, Bar, Failed, death, exit_by_signal, memory_bar, number, read_text,
                               started_rank, starting, written)

from .environment import job_name

HEADS, RATE, TEMPERATURE = 4, 3e-3, 0.7
LAST = 10  # losses whose mean is shown
WARM = 3  # first steps, which are not timed
OVERHEARD = 5.0  # seconds in which ranks end after the first failure, so that its cause is known


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Bytes in, logits of the next byte out. The embedding is also the head."""

    def __init__(self, depth: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.tokens(index) + self.positions(torch.arange(index.shape[1], device=index.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# ---- The command line ----


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m zerod.torch.demo",
        description="Trains a small GPT on the bytes of a text, on GPUs or the CPU. zerod holds its parameters and gradients.",
        epilog="Exit status: 0 after success, 2 for a wrong command line or text, 128 + N if signal N has ended a rank, "
        "otherwise zerod's status of the failure, or 1.")
    add = parser.add_argument
    add("--ranks", type=number(1, 64), metavar="N", help="ranks, each a process (one per GPU, on the CPU 2, with torchrun its ranks)")
    add("--steps", type=number(1, 1000000), default=200, metavar="N", help="steps (%(default)s)")
    add("--batch", type=number(1, 4096), default=8, metavar="N", help="sequences of a rank in a step (%(default)s)")
    add("--length", type=number(1, 65536), default=64, metavar="N", help="bytes of a sequence (%(default)s)")
    add("--depth", type=number(1, 1000), default=4, metavar="N", help="blocks (%(default)s)")
    add("--width", type=number(4, 65536), default=128, metavar="N", help=f"of the model, a multiple of {HEADS} (%(default)s)")
    add("--seed", type=number(0, (1 << 63) - 1), default=1, metavar="N", help="of initial values and samples (%(default)s)")
    add("--bfloat16", action="store_true", help="gather and compute in bfloat16, with float32 masters")
    add("--text", action="append", metavar="FILE", help="train on this file. Can be repeated (default: this package's sources)")
    add("--fsdp2", action="store_true", help="afterwards train the same model with torch's fully_shard(), and print both")
    add("--json", action="store_true", help="no progress, and the summary as one JSON object")
    options = parser.parse_args(namespace=argparse.Namespace(zeroctl=""))
    world = os.environ.get("WORLD_SIZE") if "RANK" in os.environ else None
    if world and options.ranks not in (None, int(world)):
        parser.error(f"--ranks {options.ranks}: torchrun has started {world}")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    options.ranks = options.ranks or int(world or gpus or 2)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", options.ranks))
    if gpus and local > gpus:
        parser.error(f"{local} ranks need as many GPUs, and torch sees {gpus}")
    if options.width % HEADS:
        parser.error(f"--width {options.width}: not a multiple of {HEADS}")
    if options.fsdp2:
        try:
            from torch.distributed.fsdp import fully_shard  # noqa: F401
        except ImportError:
            parser.error(f"--fsdp2 needs torch 2.6 or newer, this is {torch.__version__}")
    return options


# ---- A rank ----


@dataclass
class Rank:
    options: argparse.Namespace
    rank: int
    text: torch.Tensor
    device: torch.device = torch.device("cpu")

    def say(self, *lines: str) -> None:
        if self.rank == 0 and not self.options.json:
            print(*lines, sep="\n", flush=True)

    def model(self) -> GPT:
        torch.manual_seed(self.options.seed)
        return GPT(self.options.depth, self.options.width, self.options.length)

    def train(self, title: str, model: nn.Module) -> dict[str, Any]:
        """Returns the losses of rank 0, and times. Both ways use it, with the same samples."""
        options, generator = self.options, torch.Generator().manual_seed(self.options.seed + self.rank)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        bar, losses, memory = Bar(title, options.steps, options.json or self.rank > 0), [], {}
        began, warm = time.monotonic(), min(WARM, options.steps - 1)
        per_step = options.ranks * options.batch * options.length
        for step in range(1, options.steps + 1):
            starts = torch.randint(len(self.text) - options.length, (options.batch,), generator=generator)
            batch = torch.stack([self.text[start:start + options.length + 1] for start in starts]).to(self.device)
            loss = F.cross_entropy(model(batch[:, :-1]).float().flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            if step == max(warm, 1):
                memory = self.memory(model, optimizer)
            optimizer.step()
            losses.append(loss.detach())
            if step == warm:
                self.synchronize()
                began = time.monotonic()
            elif step > warm and bar.due(step):
                bar.show(f"loss {losses[-1].item():.4f} {(step - warm) * per_step / (time.monotonic() - began):6.0f} tokens/s")
        self.synchronize()
        seconds = (time.monotonic() - began) / (options.steps - warm)
        values = torch.stack(losses).tolist()
        return {"loss_first": values[0], "loss_last": sum(values[-LAST:]) / len(values[-LAST:]), "step_seconds": seconds,
                "tokens_per_second": round(per_step / seconds), **memory}

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def memory(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Bytes of this rank between a backward and its step, when it has gradients. On GPUs also their peak."""
        states = [each for state in optimizer.state.values() for each in state.values()]
        held = [each for each in states if isinstance(each, torch.Tensor) and each.dim()]
        usage, peak, state, gradients = {}, 0, 0, 0
        if zt.is_sharded(model):
            usage = daemon_usage(self.options.zeroctl)
            peak, state = usage["peak"] // self.options.ranks, sum(each.read_local().nbytes for each in held)
            gradients = usage["target"] // self.options.ranks
            if self.options.ranks == 1:  # gradients remain where autograd has written them
                gradients = sum(each.grad.read_local().nbytes for each in model.parameters())
            kept = (usage["shard"] + usage["allocation"]) // self.options.ranks + gradients + state
        else:
            parts = [*model.parameters(), *(each.grad for each in model.parameters() if each.grad is not None), *held]
            kept = sum(each.to_local().nbytes for each in parts)
        on_gpu = self.device.type == "cuda"
        return {"kept_bytes": kept, "peak_bytes": peak + torch.cuda.max_memory_allocated() if on_gpu else None,
                "optimizer_bytes": state, "gradient_bytes": gradients, "daemon_bytes": usage}

    def write(self, model: nn.Module) -> str:
        """Writes text by the model. The rank does this alone: its gathers need no other rank."""
        generator = torch.Generator().manual_seed(self.options.seed)

        def drawn() -> Iterator[int]:
            window = self.text[:self.options.length].to(self.device)
            for _ in range(2 * LINE):
                odds = (model(window[None])[0, -1].float().cpu() / TEMPERATURE).softmax(0)
                code = torch.multinomial(odds, 1, generator=generator)
                window = torch.cat([window, code.to(self.device)])[-self.options.length:]
                yield int(code)

        with torch.no_grad():
            return written(drawn())

    # ---- The two ways ----

    def zerod(self) -> dict[str, Any]:
        model = zt.shard(self.model(), param_dtype=torch.bfloat16 if self.options.bfloat16 else None)
        self.device = zt.model_of(model).device
        before = self.write(model) if self.rank == 0 else ""
        zt.barrier(model)
        found = self.train("zerod", model)
        after = self.write(model) if self.rank == 0 else ""
        zt.barrier(model)
        return {**found, "writes_before": before, "writes_after": after, "device": self.device.type,
                "parameters": sum(parameter.numel() for parameter in model.parameters())}

    def fsdp2(self) -> dict[str, Any]:
        import torch.distributed as dist
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
        mesh = dist.init_device_mesh(self.device.type, (self.options.ranks,))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if self.options.bfloat16 else MixedPrecisionPolicy()
        model = self.model().to(self.device)
        for block in [*model.blocks, model]:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        found = self.train("FSDP2", model)
        dist.barrier()
        dist.destroy_process_group()
        return found

    def run(self) -> None:
        found = self.zerod()
        self.say("", *summary(self.options, found))
        peer = None
        if self.options.fsdp2:
            gc.collect()  # zerod's model and optimizer
            peer = self.fsdp2()
            self.say("", *comparison(found, peer))
        if self.rank == 0 and self.options.json:
            names = ("ranks", "steps", "batch", "length", "depth", "width", "seed", "bfloat16")
            print(json.dumps({"schema": 1, **{name: getattr(self.options, name) for name in names}, "text_bytes": len(self.text),
                              "zerod": found, **({"fsdp2": peer} if peer else {})}), flush=True)


def daemon_usage(zeroctl: str) -> dict[str, int]:
    """The job's bytes by purpose, and the peak of their sum, across all ranks, from zeroctl's listing."""
    path = os.environ.get("ZEROD_SOCKET") or (private.socket_path() if private.wanted() else private.SYSTEM)
    listed = subprocess.run([zeroctl, "--socket", path, "--json", "jobs"], stdout=subprocess.PIPE)
    if listed.returncode:  # it has printed why
        raise SystemExit(listed.returncode)
    (usage,) = [row["usage"] for row in json.loads(listed.stdout)["rows"] if (row["name"], row["uid"]) == (job_name(), os.getuid())]
    return {name[:-len("_bytes")]: value for name, value in usage.items() if name != "peak_gathered_bytes"}


# ---- The report ----


def summary(options: argparse.Namespace, found: dict[str, Any]) -> list[str]:
    whole = 4 * 4 * found["parameters"]
    usage = {name: value // options.ranks for name, value in found["daemon_bytes"].items()}
    passing = max(usage["peak"] - usage["shard"] - usage["allocation"] - usage["target"], 0)
    ends, end = [], 0
    for letter, size in (("S", usage["shard"] + usage["allocation"]), ("A", found["optimizer_bytes"]),
                         ("T", found["gradient_bytes"]), ("+", passing)):
        ends.append((letter, end := end + size))
    lines = {
        "model": f"{found['parameters']} parameters on {options.ranks} rank{'s' * (options.ranks > 1)}, {found['device']}",
        "loss": f"{found['loss_first']:.4f} -> {found['loss_last']:.4f} (of 5.5452 by guessing)",
        "writes before": found["writes_before"], "writes after": found["writes_after"],
        "time": f"{1e3 * found['step_seconds']:.1f} ms a step, {found['tokens_per_second']} tokens/s",
        "memory of a rank": memory_bar(ends, whole) + f" of {whole / MIB:.2f} MiB unsharded",
    }
    return [f"  {name:<17} {text}" for name, text in lines.items()] + [
        "  S: shards, T: sums of gradients, +: the daemon's peak beyond both (gathered blocks); A: AdamW's moments, torch's"]


def comparison(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    lines = [["", "a step", "loss", "kept", "peak of the GPU"]]
    for title, found in (("zerod", ours), ("FSDP2", theirs)):
        sizes = [f"{found[name] / MIB:.2f} MiB" for name in ("kept_bytes", "peak_bytes") if found[name] is not None]
        lines.append([title, f"{1e3 * found['step_seconds']:.1f} ms", f"{found['loss_last']:.4f}", *sizes])
    return ["  " + line[0].ljust(8) + "".join(f"{cell:>17}" for cell in line[1:len(lines[1])]) for line in lines] + [
        "  kept: a rank's parameters, gradients and moments before a step"]


# ---- The launcher ----


def launch(options: argparse.Namespace) -> int:
    """Runs the ranks, and ends them all when one has failed. Raises Failed."""
    for each in SIGNALS:
        signal.signal(each, exit_by_signal)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"OMP_NUM_THREADS": "1", **os.environ, "WORLD_SIZE": str(options.ranks), "LOCAL_WORLD_SIZE": str(options.ranks),
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": f"demo-{os.getpid()}"}
    ranks: "list[subprocess.Popen[bytes]]" = []
    failed: list[tuple[int, Any]] = []
    deadline = 0.0
    try:
        with starting():
            for rank in range(options.ranks):
                ranks.append(subprocess.Popen([sys.executable, "-m", "zerod.torch.demo", *sys.argv[1:]], preexec_fn=started_rank,
                                              env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}))
        codes = [each.poll() for each in ranks]
        while None in codes and (not failed or time.monotonic() < deadline):
            time.sleep(0.02)
            codes = [each.poll() for each in ranks]
            if not failed and any(codes):
                failed, deadline = [each for each in enumerate(codes) if each[1]], time.monotonic() + OVERHEARD
    finally:
        for each in ranks:
            each.terminate()
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGCONT)  # a stopped rank would not end
        for each in ranks:
            each.wait()
    # The end of a killed rank can be reported later than those of the ranks that have lost it.
    ended = [(rank, each.returncode) for rank, each in enumerate(ranks)]
    failed = [each for each in ended if each[1] < 0 and each[1] != -signal.SIGTERM] + failed
    if failed:
        raise Failed(*death(*failed[0]))
    return 0


def main() -> int:
    options = parse()
    try:
        text = read_text(options.text, options.length + 1)
        with suppress(ConnectionFailed):
            options.zeroctl = private.program("zeroctl")
        if not options.zeroctl:
            raise Failed(1, "zeroctl was not found beside the package, beside $ZEROD_LIBRARY or on $PATH")
        if "RANK" not in os.environ:
            return launch(options)
        Rank(options, int(os.environ["RANK"]), torch.frombuffer(bytearray(text), dtype=torch.uint8).long()).run()
    except Failed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return failure.status
    except ZerodError as failure:
        print(f"demo: rank {os.environ['RANK']}: {failure}", file=sys.stderr)
        return -failure.status
    except BrokenPipeError:  # of the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return 0


if __name__ == "__main__":
    sys.exit(main())
