#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""durable - ranks are killed at random moments of their steps, and continue from the last step that the daemon preserves.

With a daemon (zerod --backend host --devices 2 --arena 256M --foreground, or --backend cuda with as many GPUs):

    python3 durable.py [--ranks 2] [--steps 40] [--kills 4]

No checkpoint is written. The program trains once without kills and once with them, and compares weights and the optimizer's state
of both runs bit by bit. The second one remains in the daemon until `zeroctl end-job`.

The trainer shows the form of every program that survives its own end: shard(durable=...), and a loop that starts at
committed_step(). The launcher replaces torchrun: when one rank ends, it ends the others and starts all again.
"""
from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import zerod
import zerod.torch as zt

# ---- The trainer: one rank ----


def batch(step: int, rank: int, device: torch.device) -> torch.Tensor:
    """The data of a step, which are the same after a restart."""
    return torch.randn(16, 64, generator=torch.Generator().manual_seed(1000 * step + rank)).to(device)


def train(job: str, steps: int) -> None:
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)))
    model = zt.shard(model, param_dtype=torch.bfloat16, durable=job or None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = zt.committed_step(model)
    print(f"begins with step {first}", flush=True)
    for step in range(first, steps):
        x = batch(step, rank, zt.model_of(model).device).bfloat16()
        optimizer.zero_grad()
        F.mse_loss(model(x).float(), x.float().roll(1, 1)).backward()
        optimizer.step()  # this also commits weights, masters and moments
        print(f"step {step}", flush=True)
    print("result", digest(zt.state_dict(model, optimizer, full=True)), flush=True)
    zt.barrier(model)


def digest(state: dict) -> str:
    """A digest of every bit of the weights and of the optimizer's state."""
    made = hashlib.sha256()
    values = dict(state["model"])
    for name, kept in state["optimizer"]["state"].items():
        values.update({f"{name} {key}": value for key, value in kept.items()})
    for name, value in sorted(values.items()):
        made.update(name.encode() + bytes(value.cpu().contiguous().flatten().view(torch.uint8).tolist()))
    return made.hexdigest()


# ---- The launcher ----


def start(args: argparse.Namespace, job: str) -> "list[subprocess.Popen[str]]":
    return [subprocess.Popen([sys.executable, __file__, "--trainer", "--job", job, "--steps", str(args.steps)], text=True,
                             stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                             env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(args.ranks),
                                  "ZEROD_JOB": f"run-of-{os.getpid()}"})
            for rank in range(args.ranks)]


def run(args: argparse.Namespace, job: str, kill_after: int) -> str:
    """Starts all ranks once, and kills some of them in the step after `kill_after` steps, unless that is -1.

    Returns the digest if the ranks have finished, otherwise "".
    """
    ranks = start(args, job)
    seen, began, result = -1, time.monotonic(), ""
    assert ranks[0].stdout is not None
    for line in ranks[0].stdout:
        result = line.split()[1] if line.startswith("result") else result
        if line.startswith("begins"):
            print("  " + line.strip(), flush=True)
        seen, took, began = seen + 1, time.monotonic() - began, time.monotonic()
        if seen == kill_after:
            time.sleep(random.uniform(0, took if seen else 0.01))  # the rank is then at an unknown place in the step
            victims = random.choice([ranks, [random.choice(ranks)]])
            print(f"  SIGKILL to {len(victims)} of {args.ranks} ranks after {line.strip()!r}", flush=True)
            for victim in victims:
                victim.send_signal(signal.SIGKILL)
            break
    killed = seen == kill_after
    for each in ranks:
        if killed:  # the others would receive PEER_LOST
            each.kill()
        each.wait()
    if not killed and any(each.returncode for each in ranks):
        raise SystemExit("a rank has failed")
    return "" if killed else result


def launch(args: argparse.Namespace) -> None:
    random.seed(args.seed)
    print("without kills:", flush=True)
    expected = run(args, "", -1)
    job = f"durable-{os.getpid()}"
    print(f"with {args.kills} kills, seed {args.seed}:", flush=True)
    for _ in range(args.kills):
        if run(args, job, random.randint(0, max(1, args.steps // (args.kills + 1) - 1))):
            raise SystemExit("the ranks have ended before they were killed")
    result = run(args, job, -1)
    print(f"weights and optimizer's state after {args.steps} steps: "
          + ("equal, bit by bit" if result == expected else f"DIFFERENT: {result[:16]} against {expected[:16]}"))
    print(f"to end it: zeroctl end-job {job}")
    if result != expected:
        raise SystemExit(1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--kills", type=int, default=4)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of victims and delays (random)")
    options.add_argument("--trainer", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--job", default="", help=argparse.SUPPRESS)
    args = options.parse_args()
    if not args.trainer:
        return launch(args)
    try:
        train(args.job, args.steps)
    except zerod.PeerLost as lost:
        raise SystemExit(f"rank {os.environ['RANK']}: {lost}")


if __name__ == "__main__":
    main()
