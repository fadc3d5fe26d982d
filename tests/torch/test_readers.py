#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""zerod.reader beside ranks that train: each commit that is read has the weights of that step, bit by bit."""
from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import unittest
from functools import partial
from typing import Any, Callable, Optional
from unittest import mock

import harness
import models
import torch
import zerod.torch as zt
from harness import support
from zerod import Client, Deadline, DType, InvalidState, NotFound, NotHeld, PeerLost, Status
from zerod.integrations.checkpoint import places
from zerod.interrupts import asked
from zerod.library import calls
from zerod.reader import Reader, Weight
from zerod.structs import NO_DEADLINE
from zerod.torch.environment import repeated

STEPS = 6
one_taken = multiprocessing.Event()


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=4, arena=harness.ARENA, host_arena="64M").for_module()


def train(address: "dict[str, str]", options: "dict[str, Any]", rank: int) -> Any:
    """Trains, and gives the whole weights of each commit."""
    module = harness.shard(harness.seeded(models.GPT), **options)
    module.register_parameter("tied", next(module.parameters()))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    assert zt.share(module, published) == address
    seen = {}
    for step in range(1, STEPS + 1):
        models.gpt_loss(module, rank, step)
        optimizer.step()
        optimizer.zero_grad()
        committed = zt.committed_step(module) if "durable" in options else zt.commit(module)
        assert committed == step, (committed, step)
        assert one_taken.wait(60)
        seen[step] = {published(name): p.whole().cpu() for name, p in module.named_parameters(remove_duplicate=False) if published(name)}
    return seen


def published(name: str) -> Optional[str]:
    return None if name.endswith("norm1.bias") else f"model.{name}"


def read(address: "dict[str, str]") -> Any:
    """The weights of each commit that is there when the one before was read, until the job ends."""
    os.environ["ZEROD_SOCKET"] = daemon.socket
    seen: dict[int, dict[str, torch.Tensor]] = {}
    with Reader(**address) as reader:
        step = repeated(time.monotonic() + 20, NotFound, reader.wait).step - 1
        while step < STEPS:
            found: dict[str, torch.Tensor] = {}

            def take(tensors: Any) -> None:
                found.clear()
                found.update((name, tensor.cpu().clone()) for name, tensor in tensors)

            try:
                step = reader.load(take, after=step)
            except (NotFound, PeerLost):  # the job has ended
                break
            seen[step] = found
            one_taken.set()
    return seen


def load_late(_: Any) -> None:
    time.sleep(0.001)
    raise NotHeld(Status.STALE_VERSION, "late")


def moe() -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(Qwen3MoeConfig(
        vocab_size=32, hidden_size=32, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True))


def gemma() -> Any:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
    return Gemma3ForConditionalGeneration(Gemma3Config(text_config={**sizes, "vocab_size": 32, "num_key_value_heads": 2, "head_dim": 8},
                                                       vision_config={**sizes, "image_size": 28, "patch_size": 14}))


def from_checkpoint(make: Callable[[], Any]) -> Any:
    made = make()
    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        return type(made).from_pretrained(folder)


class Readers(unittest.TestCase):
    def test_steps(self) -> None:
        """a reader has the weights of each commit that it reads, under the names that share() was given"""
        for world, options in ((1, {}), (2, {"param_dtype": torch.bfloat16}), (4, {}), (2, {"offload": "all"}), (2, {"durable": "reads"}),
                               (2, {"slots": True, "persist_below": 4000}), (2, {"param_dtype": torch.bfloat16, "persist_below": 1 << 20})):
            with self.subTest(world=world, **options):
                one_taken.clear()
                address = {"job": f"job-{world}-{len(options)}", "group": "model0"}
                if "durable" in options:
                    address = {"job": options["durable"], "group": "model"}
                ranks = harness.start(daemon.socket, world, partial(train, address, options), address["job"])
                *ran, seen = harness.collect([*ranks, harness.fork(partial(read, address))])
                for step, weights in seen.items():
                    self.assertEqual(weights.keys(), ran[0][step].keys())
                    for name, tensor in weights.items():
                        torch.testing.assert_close(tensor, ran[0][step][name].to(tensor.dtype), rtol=0, atol=0)

    def test_pinned(self) -> None:
        """updates save a commit that a reader has pinned, also fused ones, of halves, on the host, in the backward and of a durable job"""
        def body(optimize: Any, options: "dict[str, Any]", in_backward: bool, rank: int) -> None:
            module = harness.shard(harness.seeded(models.GPT), **options)
            optimizer = optimize(module.parameters(), lr=0.01)
            if in_backward:
                zt.optimizer_in_backward(module, optimizer)
            address = zt.share(module)
            for step in range(1, 5):
                models.gpt_loss(module, rank, step)
                optimizer.step()
                optimizer.zero_grad()
                if "durable" not in options:  # a step is a commit there
                    zt.commit(module)
                if step == 1:
                    weights = {name: p.whole().cpu() for name, p in module.named_parameters(remove_duplicate=False)}
                    reader = Reader(**address, pin_seconds=600) if rank == 0 else None
                    committed = reader and reader.wait()
                    zt.barrier(module)
            if reader:
                rows = json.loads(support.zeroctl(daemon, "map", "--json"))["rows"]
                self.assertEqual({row["name"] for row in rows if row.get("purpose") == "save"}, {weight.unit for weight in reader.weights()})
                for name, tensor in reader.tensors(committed):
                    torch.testing.assert_close(tensor.cpu(), weights[name].to(tensor.dtype), rtol=0, atol=0)
                reader.release()
                with self.assertRaisesRegex(NotHeld, "the last commit is step 4"):
                    list(reader.tensors(committed))
                reader.close()

        halves = {"param_dtype": torch.bfloat16}
        for world, optimize, options, in_backward in ((1, torch.optim.AdamW, {}, False), (2, zt.AdamW, {}, False), (2, zt.AdamW, halves, False),
                                                      (4, zt.AdamW, {"offload": "all"}, False), (2, torch.optim.AdamW, halves, True),
                                                      (2, zt.AdamW, {"slots": True}, True), (2, torch.optim.AdamW, {"durable": "pins", **halves}, False)):
            with self.subTest(world=world, optimize=optimize, in_backward=in_backward, **options):
                harness.ranks(daemon.socket, world, partial(body, optimize, options, in_backward))

    def test_saved(self) -> None:
        """a commit in host memory is read whole while and after the ranks train on, until the next one is there"""
        def body(options: "dict[str, Any]", rank: int) -> None:
            module = harness.shard(harness.seeded(models.GPT), **options)
            optimizer = zt.AdamW(module.parameters(), lr=0.01)
            address, weights = zt.share(module), {}
            if "durable" not in options:
                with self.assertRaisesRegex(ValueError, r"save_commit\(\) before the first commit\(\)"):
                    zt.save_commit(module)
            for step in range(1, 6):
                models.gpt_loss(module, rank, step)
                optimizer.step()
                optimizer.zero_grad()
                if "durable" not in options:  # a step is a commit there
                    zt.commit(module)
                weights[step] = {name: p.whole().cpu() for name, p in module.named_parameters(remove_duplicate=False)}
                if step in (1, 4):
                    saving = zt.save_commit(module)
                    self.assertEqual(saving.step, step)
            self.assertEqual((saving.wait(), saving.wait()), (4, 4))
            zt.barrier(module)
            if rank == 0:
                with Reader(**address, saved=True) as reader:
                    committed = reader.wait(1)
                    self.assertEqual(committed.step, 4)
                    for name, tensor in reader.tensors(committed):
                        torch.testing.assert_close(tensor.cpu(), weights[4][name].to(tensor.dtype), rtol=0, atol=0)
                    with self.assertWarnsRegex(UserWarning, "save_commit.. of a later step"), self.assertRaises(Deadline):
                        reader.load(load_late, deadline_ms=1)
            zt.barrier(module)
            with mock.patch.object(zt.save_commit(module), "wait", side_effect=NotHeld(Status.STALE_VERSION, "late")), \
                    self.assertWarnsRegex(RuntimeWarning, "step 5 was not copied to host memory: STALE_VERSION: late"):
                zt.save_commit(module)
            saving = zt.save_commit(module)
            with mock.patch.object(Client, "complete", side_effect=NotHeld(Status.STALE, "the ticket was dropped")):
                self.assertEqual(saving.wait(), 5)
            saving = zt.save_commit(module)
            with mock.patch.object(Client, "complete", side_effect=NotHeld(Status.STALE_VERSION, "late")):
                for _ in range(2):
                    with self.assertRaisesRegex(NotHeld, "late"):
                        saving.wait()

        for world, options in ((1, {}), (2, {"param_dtype": torch.bfloat16}), (4, {"slots": True}), (2, {"offload": "all"}),
                               (2, {"durable": "saves"})):
            with self.subTest(world=world, **options):
                harness.ranks(daemon.socket, world, partial(body, options))

    def test_mapped(self) -> None:
        """load(maps=True) gives what is on the reader's device as it is there, and repeats what an update has overtaken, also after an exception"""
        def body(world: int, options: "dict[str, Any]", rank: int) -> None:
            module = harness.shard(harness.seeded(models.GPT), **options)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            address, plain, on_host = zt.share(module), Reader._map, "offload" in {**harness.OPTIONS, **options}
            mapped: "set[str]" = set()

            def step() -> None:
                models.gpt_loss(module, rank, 1)
                optimizer.step()
                optimizer.zero_grad()

            def noted(reader: Reader, *arguments: Any) -> Any:
                found = plain(reader, *arguments)
                mapped.update(found)
                return found

            for updates, fails in ((False, False), (True, False), (True, not on_host)):
                step()
                committed = zt.commit(module)
                weights = {name: p.whole().cpu() for name, p in module.named_parameters(remove_duplicate=False)}
                seen: "list[dict[str, torch.Tensor]]" = []

                def take(tensors: Any) -> None:
                    found = list(tensors)
                    if updates and not seen:
                        step()
                    seen.append({name: tensor.cpu().clone() for name, tensor in found})
                    if fails and len(seen) == 1:
                        raise KeyError("a value of the next step")

                if rank == 0:
                    with Reader(**address, pin_seconds=600) as reader, mock.patch.object(Reader, "_map", noted):
                        self.assertEqual(reader.load(take, maps=True), committed)
                    self.assertEqual(len(seen), 1 + (updates and not on_host))
                    torch.testing.assert_close(seen[-1], {name: weights[name].to(tensor.dtype) for name, tensor in seen[-1].items()},
                                               rtol=0, atol=0)
                    self.assertEqual(seen[-1].keys(), weights.keys())
                elif updates:
                    step()
            zt.barrier(module)
            if rank == 0:
                self.assertEqual(len(mapped) > 0, not on_host)
                self.assertEqual(mapped == weights.keys(), world == 1 and not on_host)

        for world, options in ((1, {}), (2, {"param_dtype": torch.bfloat16}), (4, {"slots": True}), (2, {"offload": "all"})):
            with self.subTest(world=world, **options):
                harness.ranks(daemon.socket, world, partial(body, world, options))

    def test_narrow(self) -> None:
        """slices of weights, of rows and of columns, are those of torch.narrow(), copied in pieces or mapped, and other bytes are not read"""
        def body(options: "dict[str, Any]", rank: int) -> None:
            module = harness.shard(harness.seeded(models.GPT), **options)
            address, plain = zt.share(module), Client.unit_read
            zt.commit(module)
            weights = {name: p.whole().cpu() for name, p in module.named_parameters(remove_duplicate=False)}
            nbytes: "list[int]" = []

            def noted(*arguments: Any, rows: int = 1, **rest: Any) -> Any:
                nbytes.append(sum(arguments[4:5]) * rows)
                return plain(*arguments, rows=rows, **rest)

            for dim in (0, -1) if rank == 0 else ():
                narrow = {name: (dim, tensor.shape[dim] // 3, -(-tensor.shape[dim] // 2)) for name, tensor in weights.items()}
                with Reader(**address) as reader, mock.patch("zerod.reader.PIECE_BYTES", 100), mock.patch.object(Client, "unit_read", noted):
                    reader.weights()
                    nbytes.clear()
                    seen = {name: tensor.cpu() for name, tensor in reader.tensors(reader.wait(), narrow=narrow)}
                    for name, tensor in seen.items():
                        self.assertTrue(torch.equal(tensor, weights[name].to(tensor.dtype).narrow(*narrow[name])), name)
                    self.assertEqual(seen.keys(), weights.keys())
                    self.assertEqual(sum(nbytes), sum(tensor.nbytes for tensor in seen.values()))
                    some = dict(list(narrow.items())[::2])
                    reader.load(lambda tensors: seen.update((name, tensor.cpu().clone()) for name, tensor in tensors), maps=True, narrow=some)
                    for name, tensor in weights.items():
                        expected = tensor.narrow(*narrow[name]) if name in some else tensor
                        self.assertTrue(torch.equal(seen[name], expected.to(seen[name].dtype)), name)
            zt.barrier(module)

        for world, options in ((1, {}), (2, {"param_dtype": torch.bfloat16}), (4, {"slots": True}), (2, {"offload": "all"})):
            with self.subTest(world=world, **options):
                harness.ranks(daemon.socket, world, partial(body, options))

    def test_checkpoint(self) -> None:
        """with checkpoint=True readers see what save_pretrained() writes: each expert's weights, and tied ones under both names"""
        from safetensors.torch import load_file
        from transformers.core_model_loading import Transpose, WeightConverter

        def body(make: "Callable[[], Any]", rank: int) -> None:
            module, ids = harness.shard(harness.seeded(make)), torch.arange(12, device=models.DEVICE)[None]
            address = zt.share(module, checkpoint=True)
            module(input_ids=ids, labels=ids).loss.backward()
            torch.optim.SGD(module.parameters(), lr=0.1).step()
            zt.commit(module)
            with Reader(**address) as reader:
                seen = {name: tensor.cpu() for name, tensor in reader.tensors(reader.wait())}
            plain = moe()
            plain.load_state_dict({name: p.whole() for name, p in module.named_parameters(remove_duplicate=False)})
            with tempfile.TemporaryDirectory() as folder:
                plain.save_pretrained(folder)
                saved = load_file(folder + "/model.safetensors")
            self.assertIn("model.layers.1.mlp.experts.3.up_proj.weight", saved)
            self.assertTrue(torch.equal(seen.pop("lm_head.weight"), saved["model.embed_tokens.weight"]))
            torch.testing.assert_close(seen, saved, rtol=0, atol=0)
            module._weight_conversions = [WeightConverter("mlp.gate.weight", "mlp.gate.weight", operations=[Transpose()])]
            with self.assertRaisesRegex(ValueError, "the checkpoint's tensor model.layers.0.mlp.gate.weight is not a contiguous part"):
                zt.share(module, checkpoint=True)
            with self.assertRaisesRegex(ValueError, "of a MLP, which is no model of transformers"):
                zt.share(harness.shard(models.MLP()), checkpoint=True)

        for make in (moe, partial(from_checkpoint, moe)):
            harness.ranks(daemon.socket, 2, partial(body, make))
        for make in (moe, gemma):  # whose tied weights have the same names as in a model that was made
            self.assertEqual(sorted(places(from_checkpoint(make))), sorted(places(make())))

    def test_interrupted(self) -> None:
        """one Ctrl-C ends a load whose threads, or which itself, wait for the daemon, and nothing of the load remains"""
        def waits(client: Client, *_: Any, **__: Any) -> None:
            client.commit_wait("job", after=9)

        def body() -> None:
            with Client(daemon.socket) as client, client.join("job") as group, Reader("job", socket_path=daemon.socket) as reader:
                unit = group.register("u", DType.FLOAT32, 300)
                reader.weights = lambda: [Weight("w", "u", 0, torch.Size([300]), torch.float32)]
                reader.client.set_deadline(NO_DEADLINE)
                group.update_begin([unit])
                group.publish([unit])
                group.commit(1)
                for name, maps in (("unit_read", False), ("unit_map", True)):
                    main = threading.main_thread().ident
                    threading.Thread(target=lambda: (support.until(lambda: "a step after 9" in support.zeroctl(daemon, "sessions")),
                                                     signal.pthread_kill(main, signal.SIGINT))).start()
                    with mock.patch.object(Client, name, waits), self.assertRaises(KeyboardInterrupt):
                        reader.load(list, maps=maps)
                    self.assertEqual([staging.taken for staging in reader._staging], [False])
                    self.assertEqual(reader.load(list, maps=maps), 1)
                for name, make in (("alloc", lambda: reader.client.alloc("left", 1)), ("unit_map", lambda: reader.client.unit_map(reader.wait(), "u", 8))):
                    plain = getattr(calls, name)
                    with mock.patch.object(calls, name, lambda *given: (plain(*given), setattr(asked, "raised", KeyboardInterrupt()))[0]), \
                            self.assertRaises(KeyboardInterrupt):
                        make()
                support.until(lambda: "left" not in support.zeroctl(daemon, "jobs"))

        harness.collect([harness.fork(body)])

    def test_wrong(self) -> None:
        """no job of that name, a model that is not shared, a name that it does not have, a step that is committed already"""
        def body(rank: int) -> None:
            module = harness.shard(models.MLP())
            group = module._zerod_model.context.group
            with self.assertRaisesRegex(NotFound, "no group 'none' in job 'none'"):
                Reader("none", "none").wait()
            with self.assertRaisesRegex(ValueError, "pin_seconds=0: 0.001 to"):
                Reader("none", "none", pin_seconds=0)
            with self.assertRaisesRegex(NotFound, "no device 99"):
                Reader("none", "none", device=99)
            zt.commit(module, 5)
            with Reader(group.job, group.name, pin_seconds=0.001) as reader, self.assertRaises(Deadline), \
                    self.assertWarnsRegex(UserWarning, "a load has lasted longer than pin_seconds=0.001, and begins again: late"):
                reader.load(load_late, deadline_ms=1)
            with self.assertRaisesRegex(ValueError, "step 5 is not after step 5"):
                zt.commit(module, 5)
            with Reader(group.job, group.name) as reader:
                committed = reader.wait()
                with self.assertRaisesRegex(NotFound, "no group 'model0' in job '.*.weights'"):
                    reader.weights()
                zt.barrier(module)  # no rank shares before all have looked
                zt.share(module)
                zt.share(module, lambda name: f"{name}.longer")
                with self.assertRaisesRegex(ValueError, "names gives the name 'same' to first.weight and first.bias"):
                    zt.share(module, lambda name: "same")
                zt.share(module)
                zt.commit(module)
                committed = reader.wait(committed.step)
                with self.assertRaisesRegex(KeyError, "no weights other"):
                    list(reader.tensors(committed, ["first.bias", "other"]))
                with self.assertRaisesRegex(KeyError, "no weights another"):
                    list(reader.tensors(committed, narrow={"another": (0, 0, 1)}))
                with self.assertRaisesRegex(IndexError, r"narrow\(1, 0, 1\) of first.bias, of \[.*Dimension out of range"):
                    list(reader.tensors(committed, narrow={"first.bias": (1, 0, 1)}))
                with self.assertRaisesRegex(ValueError, r"of first.bias, of .*start \(1\) \+ length \(999\) exceeds dimension size"):
                    list(reader.tensors(committed, narrow={"first.bias": (0, 1, 999)}))
                for maps in (False, True):
                    with self.assertRaisesRegex(RuntimeError, "returned before it read first.bias: it must read all"):
                        reader.load(next, maps=maps)
                expected = {name: p.whole().cpu() for name, p in module.named_parameters()}
                with mock.patch("zerod.reader.PIECE_BYTES", 64):
                    abandoned, *both = (reader.tensors(committed) for _ in range(3))
                    next(abandoned)
                    seen = [dict(some) for some in zip(*zip(*both))]
                    abandoned.close()
                    next(unread := reader.tensors(committed))
            for weights in seen:  # after the reader was closed
                torch.testing.assert_close({name: tensor.cpu() for name, tensor in weights.items()}, expected, rtol=0, atol=0)
            with self.assertRaisesRegex(InvalidState, "closed"):
                list(unread)

        harness.ranks(daemon.socket, 2, body)


if __name__ == "__main__":
    support.main()
