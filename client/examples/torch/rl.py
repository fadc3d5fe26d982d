#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rl - reinforcement learning: ranks train a small Llama of transformers, and an engine in another process generates.

    torchrun --nproc-per-node 2 rl.py

The task is to repeat the previous token: each generated token that repeats it is rewarded. In each update the engine takes the
trainers' last commit and generates a group of answers to each prompt. The ranks train on them. They do not take part in the
transfer. The engine is vLLM where that is installed, otherwise transformers. It uses the GPU after those of the ranks if there is
one, otherwise the first.
"""
from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator

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
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None))


def reward(tokens: torch.Tensor) -> torch.Tensor:
    """For each token of an answer, whether it repeats the previous one."""
    return (tokens[:, PROMPT:] == tokens[:, PROMPT - 1:-1]).float()


# ---- The engine ----

Engine = tuple[Callable[[int], None], Callable[[torch.Tensor], torch.Tensor]]  # takes a step's commit; generates answers to prompts


def vllm_engine(address: dict[str, Any], device: torch.device) -> Engine:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # this is a process of its own already
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams
    from vllm.config import WeightTransferConfig

    with tempfile.TemporaryDirectory() as folder:
        make().save_pretrained(folder)
        llm = LLM(folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=PROMPT + ANSWER,
                  gpu_memory_utilization=0.1, weight_transfer_config=WeightTransferConfig(backend="zerod"))
    llm.init_weight_transfer_engine({"init_info": address})
    answer = SamplingParams(max_tokens=ANSWER, ignore_eos=True, detokenize=False)

    def take(step: int) -> None:
        llm.start_weight_update()
        llm.update_weights({"update_info": {"step": step}})
        llm.finish_weight_update()
        llm.reset_prefix_cache()

    def generate(prompts: torch.Tensor) -> torch.Tensor:
        made = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts.tolist()], answer, use_tqdm=False)
        return torch.cat((prompts, torch.tensor([list(one.outputs[0].token_ids) for one in made])), 1)

    return take, generate


def transformers_engine(address: dict[str, Any], device: torch.device) -> Engine:
    model = make().to(device).eval()
    parameters = dict(model.named_parameters())
    reader = Reader(**address)

    @torch.no_grad()
    def take(step: int) -> None:
        reader.load(lambda tensors: [parameters[name].copy_(tensor) for name, tensor in tensors], after=step - 1, maps=True)

    def generate(prompts: torch.Tensor) -> torch.Tensor:
        tokens = prompts.to(device)
        return model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), do_sample=True, max_new_tokens=ANSWER).cpu()

    return take, generate


@contextmanager
def only_gpu_after(world: int) -> Iterator[None]:
    """Processes that start now see one GPU: the one after those of the ranks, or the first."""
    former = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = former.split(",") if former else [str(number) for number in range(torch.cuda.device_count())]
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[world if world < len(gpus) else 0]
    yield
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if former is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = former


def engine(pipe: Any, address: dict[str, Any], prompts: int, group: int) -> None:
    """Sends (answers, milliseconds of the transfer) for each requested step."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name, make_engine = ("vLLM", vllm_engine) if importlib.util.find_spec("vllm") else ("transformers", transformers_engine)
    take, generate = make_engine(address, device)
    print(f"{name} generates on {'GPU ' + os.environ['CUDA_VISIBLE_DEVICES'] if device.type == 'cuda' else 'the CPU'}", flush=True)
    while (step := pipe.recv()) is not None:
        began = time.monotonic()
        take(step)
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken = time.monotonic() - began
        pipe.send((generate(torch.randint(VOCABULARY, (prompts, PROMPT)).repeat_interleave(group, 0)), 1000 * taken))


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
    address = zt.share(model, checkpoint=True)
    pipe: Any = None
    if rank == 0:
        context = multiprocessing.get_context("spawn")
        pipe, other = context.Pipe()
        process = context.Process(target=engine, args=(other, address, args.prompts, args.group), daemon=True)
        with only_gpu_after(world):
            process.start()
        other.close()  # if the engine ends, recv() raises EOFError

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
