#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""finetune - a language model of transformers learns a text of yours, sharded by zerod.

    torchrun --nproc-per-node 2 finetune.py --text FILE --model Qwen/Qwen3-0.6B --save checkpoint

It shows a progress bar, and text of the model before and after the training. A second run continues from --save. Without --model
it makes a small Llama with random weights that reads bytes, and downloads nothing.
"""
from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed

import zerod.torch as zt


class Bytes:
    """The tokenizer of the small model."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


def make(name: str | None, dtype: torch.dtype) -> tuple[Any, Any]:
    """(model, tokenizer)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    if name is not None:
        return AutoModelForCausalLM.from_pretrained(name, dtype=dtype), AutoTokenizer.from_pretrained(name)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
                         bos_token_id=0, eos_token_id=0)
    return LlamaForCausalLM(config).to(dtype), Bytes()


@torch.no_grad()
def sample(model: Any, tokenizer: Any, prompt: str, device: torch.device, count: int = 40) -> str:
    """The model's continuation of the prompt, with the likeliest token each time. One rank can call it alone: gathers are
    one-sided."""
    tokens = tokenizer.encode(prompt)
    for _ in range(count):
        logits = model(input_ids=torch.tensor([tokens[-256:]], device=device)).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokenizer.decode(tokens)


def bar(step: int, steps: int, loss: float, began: float, model: Any) -> None:
    """One line: progress, loss, speed, memory."""
    summary = zt.summary(model)
    full = 30 * step // steps
    line = (f"[{'#' * full}{'.' * (30 - full)}] {step}/{steps}  loss {loss:.3f}  "
            f"{(time.monotonic() - began) / step * 1e3:.0f} ms a step  device {summary.allocated_bytes >> 20} MiB, "
            f"at most {summary.peak_bytes >> 20}")
    end = "\r" if sys.stdout.isatty() and step < steps else "\n"
    if sys.stdout.isatty() or step == steps or step % 10 == 0:
        print(line, end=end, flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--text", type=Path, default=Path(__file__))
    options.add_argument("--model", help="of transformers: a folder, or a name on the hub")
    options.add_argument("--save", help="folder of the checkpoint; where it is there already, the run goes on")
    options.add_argument("--steps", type=int, default=50)
    options.add_argument("--batch", type=int, default=4, help="sequences a rank and step")
    options.add_argument("--length", type=int, default=128)
    options.add_argument("--rate", type=float, default=1e-3)
    options.add_argument("--prompt", default="import ")
    options.add_argument("--bfloat16", action="store_true", help="compute in bfloat16, with float32 masters")
    args = options.parse_args()

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if world > 1:
        torch.distributed.init_process_group("gloo")  # only for checkpoints; zerod sums the gradients
    model, tokenizer = make(args.model, torch.float32)
    zt.shard(model, param_dtype=torch.bfloat16 if args.bfloat16 else None)
    device = zt.model_of(model).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate)
    done = 0
    if args.save and Path(args.save, ".metadata").exists():
        done = zt.load(args.save, model, optimizer, step=0)["step"]
        if rank == 0:
            print(f"resumed from {args.save}, saved behind step {done}")
    text = torch.tensor(tokenizer.encode(args.text.read_text(errors="replace")))
    generator = torch.Generator().manual_seed(1000 * done + rank)
    if rank == 0:
        print(f"step {done}, before: {sample(model, tokenizer, args.prompt, device)!r}")

    began = time.monotonic()
    for step in range(1, args.steps + 1):
        starts = torch.randint(len(text) - args.length, (args.batch,), generator=generator)
        batch = torch.stack([text[start:start + args.length] for start in starts]).to(device)
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        zt.clip_grad_norm_(model, 1.0)
        optimizer.step()
        if rank == 0:
            bar(step, args.steps, loss.item(), began, model)
    if rank == 0:
        print(f"step {done + args.steps}, after: {sample(model, tokenizer, args.prompt, device)!r}")
    if args.save:
        zt.save(args.save, model, optimizer, step=done + args.steps)
    zt.barrier(model)
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
