#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The losses of 200 steps of a small GPT: zt.AdamW on 1, 2 and 4 ranks beside one process.

Beside the formulas of docs/optimizer.md in one process losses and weights are equal bit by bit, with sums kept and with the
optimizer in the backward, in float32 and with bfloat16 weights. Beside torch.optim.AdamW with float32 masters the
largest relative difference of a loss is printed. On emulated devices.

    tests/bench/torch_losses.py [--steps N]     # $BUILD as in the tests
"""
from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("torch", "python")]
import harness  # noqa: E402
import models  # noqa: E402
import test_halves  # noqa: E402
import torch  # noqa: E402
from harness import support  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    print(f"# torch {torch.__version__}, {steps} steps", flush=True)
    daemon = support.Daemon(devices=4, arena=harness.ARENA)
    with daemon:
        for dtype in (None, torch.bfloat16):
            for world in (1, 2, 4):
                for in_backward in (False, True):
                    began = time.monotonic()
                    harness.compare(daemon.socket, world, models.GPT,
                                    partial(test_halves.optimizer, "AdamW", lr=1e-3, in_backward=in_backward), models.gpt_loss,
                                    steps=steps, dtype=dtype)
                    print(f"{str(dtype or torch.float32)[6:]}, {world} ranks, {'in the backward' if in_backward else 'sums kept'}: "
                          f"equal bit by bit ({time.monotonic() - began:.0f} s)", flush=True)
            seen = [harness.alone(lambda make=make: harness.reference(models.GPT, make, models.gpt_loss, 2, steps, dtype=dtype))[0]
                    for make in (partial(test_halves.optimizer, "AdamW", lr=1e-3), torch_adamw)]
            apart = max(abs(float(ours) / float(theirs) - 1) for ours, theirs in zip(seen[0][0], seen[1][0]))
            print(f"{str(dtype or torch.float32)[6:]}: losses of torch.optim.AdamW with float32 masters differ by a part of {apart:.1e} at most, "
                  f"from {float(seen[0][0][0]):.4f} to {float(seen[0][0][-1]):.4f}", flush=True)


def torch_adamw(module: torch.nn.Module) -> torch.optim.Optimizer:
    groups = [{"params": [p for p in module.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in module.parameters() if p.dim() <= 1], "lr": 3e-3, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3)


if __name__ == "__main__":
    main()
