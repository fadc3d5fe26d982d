#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rl - reinforcement learning: ranks train a small Llama of transformers, and an engine in another process generates.

    torchrun --nproc-per-node 2 rl.py

The task is to repeat the previous token: each generated token that repeats it is rewarded. In each update the engine reads the
trainers' last commit with zerod.reader and generates a group of answers to each prompt. The ranks train on them. They do not take
part in the transfer. The engine uses the GPU after those of the ranks if there is one, otherwise the first.
"""
from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.functional import cross_entropy

import zerod.torch as zt
from zerod.reader import Reader

VOCABULARY = 32
PROMPT, ANSWER = 4, 12  # tokens


def make() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None))


def reward(tokens: torch.Tensor) -> torch.Tensor:
    """For each token of an answer, whether it repeats the previous one."""
    return (tokens[:, PROMPT:] == tokens[:, PROMPT - 1:-1]).float()


# ---- The engine ----

def engine(pipe: Any, address: dict[str, str], world: int, prompts: int, group: int) -> None:
    """Sends (answers, milliseconds of the transfer) for each requested step."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", world if world < torch.cuda.device_count() else 0)
        torch.cuda.set_device(device)
    model = make().to(device).eval()
    parameters = dict(model.named_parameters())
    with Reader(**address) as reader, torch.no_grad():
        while (step := pipe.recv()) is not None:
            began = time.monotonic()
            reader.load(lambda tensors: [parameters[name].copy_(tensor) for name, tensor in tensors], after=step - 1, maps=True)
            if device.type == "cuda":
                torch.cuda.synchronize()
            taken = time.monotonic() - began
            tokens = torch.randint(VOCABULARY, (prompts, PROMPT), device=device).repeat_interleave(group, 0)
            made = model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), do_sample=True, max_new_tokens=ANSWER)
            pipe.send((made.cpu(), 1000 * taken))


# ---- The trainers ----

def loss_of(model: Any, tokens: torch.Tensor, group: int) -> torch.Tensor:
    """The policy's gradient. The weight of a token is the sum of the rewards from it on, relative to its group's mean."""
    earned = reward(tokens).flip(1).cumsum(1).flip(1)  # the sum from each token on
    by_prompt = earned.view(-1, group, ANSWER)
    advantage = ((by_prompt - by_prompt.mean(1, keepdim=True)) / (by_prompt.std(1, keepdim=True) + 1e-4)).view(-1, ANSWER)
    logits = model(input_ids=tokens).logits[:, PROMPT - 1:-1]
    surprise = cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, PROMPT:].reshape(-1), reduction="none").view(-1, ANSWER)
    return (advantage * surprise).mean()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--updates", type=int, default=60)
    options.add_argument("--prompts", type=int, default=16, help="in an update, of all ranks")
    options.add_argument("--group", type=int, default=16, help="answers to a prompt")
    options.add_argument("--rate", type=float, default=3e-3)
    args = options.parse_args()

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if args.prompts % world:
        options.error(f"{args.prompts} prompts cannot be shared by {world} ranks")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if world > 1:
        dist.init_process_group("gloo")  # only for the answers
    model = zt.shard(make())
    device = zt.model_of(model).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.0)
    address = zt.share(model)
    pipe: Any = None
    if rank == 0:
        context = multiprocessing.get_context("spawn")
        pipe, other = context.Pipe()
        process = context.Process(target=engine, args=(other, address, world, args.prompts, args.group), daemon=True)
        process.start()

    for update in range(1, args.updates + 1):
        step = zt.commit(model)
        answers: list[Any] = [None]
        if rank == 0:
            pipe.send(step)
            answers = [pipe.recv()]
        if world > 1:
            dist.broadcast_object_list(answers)
        tokens, taken = answers[0]
        loss = loss_of(model, tokens.chunk(world)[rank].to(device), args.group)
        optimizer.zero_grad()
        loss.backward()
        zt.clip_grad_norm_(model, 1.0)
        optimizer.step()
        if rank == 0 and (update % 5 == 0 or update in (1, args.updates)):
            earned = reward(tokens).mean().item()
            print(f"update {update:3}/{args.updates}  reward {earned:.3f} |{'#' * round(40 * earned):40}|  weights in {taken:.1f} ms", flush=True)
    if rank == 0:
        pipe.send(None)
        process.join()
    zt.barrier(model)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
