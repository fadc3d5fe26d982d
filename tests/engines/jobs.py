# SPDX-License-Identifier: Apache-2.0
"""Training jobs on zerod.torch, whose commits an engine in another process takes, and the tokens of transformers for each."""
from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torch"))
import harness
import test_frameworks
import torch
import zerod.torch as zt
from harness import support
from zerod import NotFound, PeerLost, reader

PROMPTS, TOKENS, UPDATES = [[5, 6, 7], [100, 200, 300, 400]], 12, 3
QWEN3 = {"kind": "Qwen3", "tie_word_embeddings": True, "intermediate_size": 256}
MOE = {"kind": "Qwen3Moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def setUpModule() -> None:
    """Starts the daemon. Engines leave files in the folder for temporary ones."""
    test_frameworks.setUpModule()
    tempfile.tempdir = os.environ["TMPDIR"] = test_frameworks.scratch.name


def make(kind: str, seed: int = 0, **changes: Any) -> Any:
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, kind + "Config")(
        vocab_size=512, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=1, initializer_range=0.2, **changes)
    return getattr(transformers, kind + "ForCausalLM")(config).eval()


def tokens(model: Any) -> "list[list[int]]":
    return [model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=TOKENS,
                           do_sample=False, eos_token_id=None)[0, len(prompt):].tolist() for prompt in PROMPTS]


def plain(module: Any, **model: Any) -> Any:
    made = make(**model)
    made.load_state_dict({name: p.whole() for name, p in module.named_parameters(remove_duplicate=False)})
    return made


class Job:
    """Trains in processes that are forked here. Processes that are forked later call the rest."""

    def __init__(self, world: int, **model: Any) -> None:
        pipes = [multiprocessing.Pipe() for _ in range(world)]
        self.model, self.pipes = model, [mine for mine, _ in pipes]
        self.processes = harness.start(test_frameworks.daemon.socket, world, lambda rank: self._train(pipes[rank][1]))
        self.address = self._answer()

    def _answer(self) -> Any:
        return [pipe.recv() for pipe in self.pipes][0]

    def _train(self, pipe: Any) -> None:
        module = harness.shard(make(**self.model))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        pipe.send(zt.share(module, checkpoint=True))
        while pipe.recv():
            ids = torch.randint(512, (2, 16))
            module(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            pipe.send((zt.commit(module), tokens(plain(module, **self.model))))

    def update(self) -> "tuple[int, list[list[int]]]":
        """Trains one step. The step of its commit, and transformers' tokens with the weights."""
        for pipe in self.pipes:
            pipe.send(True)
        return self._answer()

    def end(self) -> None:
        for pipe in self.pipes:
            with suppress(BrokenPipeError):  # it has ended
                pipe.send(False)


def beside(jobs: "list[Job]", call: "Callable[[], Any]") -> None:
    """Calls call() in a process of its own, and then ends the jobs."""
    def run() -> None:
        os.environ["ZEROD_SOCKET"] = test_frameworks.daemon.socket
        try:
            call()
        finally:
            for job in jobs:
                job.end()

    harness.collect([*(process for job in jobs for process in job.processes), harness.fork(run)])


def hold(address: "dict[str, Any]", mark: str, tensors: Any) -> Any:
    """The tensors. After the first one it makes the file, and waits until the job has its next commit, or has ended."""
    reader.DEPTH = 1  # not all is read ahead
    yield next(tensors)
    with reader.Reader(**address) as other:
        step = other.wait().step
        Path(mark).touch()
        try:
            other.wait(step)
        except (NotFound, PeerLost):
            pass
    yield from tensors


def meanwhile(mark: str, call: "Callable[[], Any]") -> "Callable[[], Any]":
    """Calls call() when the file is there. Returns a function that waits for its result."""
    results: list[Any] = []

    def run() -> None:
        support.until(Path(mark).exists)
        results.append(call())

    thread = threading.Thread(target=run)
    thread.start()
    return lambda: (thread.join(), results[0])[1]


class Hold:
    """vLLM's workers have its method."""

    def hold_next(self, address: "dict[str, Any]", mark: str) -> None:
        """The last worker's next load is held."""
        model = self.model_runner.model
        plain = model.load_weights

        def load_weights(tensors: Any) -> Any:
            model.load_weights = plain
            return plain(hold(address, mark, tensors))

        if self.rank == self.parallel_config.world_size - 1:
            model.load_weights = load_weights
