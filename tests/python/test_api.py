#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python interface against a private daemon of the host backend, with numpy."""
from __future__ import annotations

import asyncio
import ctypes
import gc
import inspect
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import unittest
import weakref
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import support
import numpy as np

import zerod
from zerod import DType, library, structs
from zerod.reader import Reader

daemon: support.Daemon


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(host_arena="64M").for_module()


def make_weights(group: zerod.Group, numel: int = 1000, dtype: DType = DType.FLOAT32) -> zerod.Unit:
    """A published unit whose elements count from 0."""
    unit = group.register("weights", dtype, numel)
    with group.updating([unit]):
        shard = unit.shard()
        unit.shard_memory().numpy()[:] = np.arange(shard.offset_numel, shard.offset_numel + shard.true_numel)
    return unit


class Declarations(unittest.TestCase):
    def test_functions(self) -> None:
        """every function of the headers is declared, with as many arguments"""
        text = "".join(path.read_text() for path in sorted((support.ROOT / "include").glob("*.h")))
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        found = dict(re.findall(r"\bzerod_(\w+)\(([^()]*(?:\([^()]*\)[^()]*)*)\);", text))
        found.pop("init", None)
        self.assertEqual(set(found), set(library._FUNCTIONS))
        # A function pointer's own commas count as none.
        plain = {name: re.sub(r"\(\*\w+\)\([^()]*\)", "", arguments) for name, arguments in found.items()}
        counts = {name: 0 if a.strip() in ("", "void") else a.count(",") + 1 for name, a in plain.items()}
        self.assertEqual(counts, {name: len(arguments) for name, (_, arguments) in library._FUNCTIONS.items()})

    def test_structures(self) -> None:
        """sizes and offsets of all structures, and all constants, are the compiler's"""
        lines = ["#include <stdio.h>", "#include <zerod_optimizer.h>", "#include <zerod_read.h>", "int main(void) {"]
        words = []
        for name in dir(zerod.structs):
            made = getattr(zerod.structs, name)
            if isinstance(made, type) and issubclass(made, zerod.structs.Struct) and made is not zerod.structs.Struct:
                c = "struct zerod_" + re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
                words.append((name, [made.__dict__["_fields_"] and zerod.structs.ctypes.sizeof(made)]
                              + [getattr(made, field[0]).offset for field in made._fields_]))
                offsets = "".join(f', (unsigned long)__builtin_offsetof({c}, {f[0]})' for f in made._fields_)
                lines.append(f'printf("{name}{" %lu" * (1 + len(made._fields_))}\\n", '
                             f"(unsigned long)sizeof({c}){offsets});")
        enums = {"GroupFlags": "GROUP", "UnitFlags": "UNIT", "GatherFlags": "GATHER", "ReleaseFlags": "RELEASE",
                 "PublishFlags": "PUBLISH", "ReserveFlags": "RESERVE", "ReduceFlags": "REDUCE", "SkipFlags": "SKIP",
                 "BackwardEndFlags": "BACKWARD", "AllocFlags": "ALLOC", "Collectives": "COLLECTIVES",
                 "AgreeOp": "AGREE", "Rule": "RULE", "OptimizerFlags": "OPTIMIZER"}
        values = [(f"ZEROD_{prefix}_{m.name}", int(m)) for enum, prefix in enums.items()
                  for m in getattr(zerod.structs, enum)]
        values += [(f"ZEROD_{m.name}", int(m)) for m in DType]
        values += [("ZEROD_OK" if m == 0 else f"ZEROD_E_{m.name}", int(m)) for m in zerod.Status]
        values += [(f"ZEROD_{n}", getattr(zerod.structs, n)) for n in ("MAX_DIMS", "MAX_TICKETS", "MAX_AGREED")]
        for word, value in values:
            words.append((word, [value]))
            lines.append(f'printf("{word} %ld\\n", (long)({word}));')
        program = daemon.folder.name + "/structs"
        source = "\n".join(lines + ["return 0; }"])
        subprocess.run([os.environ.get("CC", "cc"), "-x", "c", "-I", str(support.ROOT / "include"), "-o", program, "-"],
                       input=source.encode(), check=True)
        printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
        self.assertEqual(printed, [" ".join([word, *map(str, numbers)]) for word, numbers in words])

    def test_fields(self) -> None:
        """a structure refuses a field that it does not have"""
        with self.assertRaisesRegex(TypeError, "tag, scope"):
            zerod.GatherOptions(tags="x")
        self.assertEqual(zerod.GatherOptions().struct_size, zerod.structs.ctypes.sizeof(zerod.GatherOptions))


class Errors(unittest.TestCase):
    def test_connect(self) -> None:
        """without a daemon: ConnectionFailed, which is a ConnectionError, with the socket's path"""
        with self.assertRaisesRegex(ConnectionError, "CONNECT: .*/nowhere") as caught:
            zerod.Client("/nowhere/zerod.sock")
        self.assertEqual(caught.exception.status, zerod.Status.CONNECT)
        self.assertEqual(caught.exception.name, "CONNECT")

    def test_classes(self) -> None:
        """every status has a class, and an exception survives pickling"""
        import pickle

        for status in zerod.Status:
            if status != zerod.Status.OK:
                made = zerod.errors.error(status, "text")
                self.assertIsNot(type(made), zerod.ZerodError)
                self.assertEqual(pickle.loads(pickle.dumps(made)).args, made.args)

    def test_hidden_characters(self) -> None:
        """what is invisible, or turns the text round, is escaped where an exception is shown, and not in its text"""
        name = "a\u202eb\u200b\x1b[2J\U000e0041\u00e9\u6f22\U0001f600"
        made = zerod.errors.error(zerod.Status.NOT_FOUND, f"no job '{name}'")
        self.assertEqual(str(made), "NOT_FOUND: no job 'a\\u202eb\\u200b\\u001b[2J\\udb40\\udc41\u00e9\u6f22\U0001f600'")
        self.assertEqual(made.text, f"no job '{name}'")
        self.assertIn("\\u202e", repr(made))

    def test_library(self) -> None:
        """a library that cannot be loaded: ImportError with its path"""
        run = subprocess.run([sys.executable, "-c", "import zerod"], capture_output=True, text=True,
                             env={**os.environ, "ZEROD_LIBRARY": "/nowhere/lib.so",
                                  "PYTHONPATH": str(support.ROOT / "client" / "python")})
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("/nowhere/lib.so", run.stderr)

    def test_old_library(self) -> None:
        """a function that the library does not have: Unsupported when it is called"""
        with self.assertRaisesRegex(zerod.Unsupported, "zerod_of_tomorrow"):
            library._missing("of_tomorrow")()

    def test_mismatch(self) -> None:
        """ranks that describe a unit differently: Mismatch, which names both"""
        def body(group: zerod.Group) -> str:
            try:
                group.register("w", DType.FLOAT32, 100 + group.rank)
                group.barrier()
                return ""
            except zerod.Mismatch as mismatch:
                group.barrier()
                return mismatch.text

        self.assertRegex("".join(support.ranks(daemon.socket, 2, body)), "rank 0.*rank 1|rank 1.*rank 0|10[01].*10[01]")

    def test_deadline(self) -> None:
        """a rank that does not come: Deadline, a TimeoutError, which names it"""
        with zerod.Client(daemon.socket, deadline_ms=zerod.NO_DEADLINE) as client:
            with self.assertRaisesRegex(TimeoutError, "rank 1"):
                client.join(job="lonely", world_size=2, deadline_ms=20)
            client.set_deadline(20)
            with self.assertRaisesRegex(TimeoutError, "rank 1"):
                client.join(job="lonely", world_size=2)

    def test_release(self) -> None:
        """a release that waits for its answer: NotHeld; a detached one: by the next call"""
        def body(group: zerod.Group) -> None:
            unit = make_weights(group)
            with self.assertRaises(zerod.NotHeld):
                unit.release(options=None)
            unit.release()
            with self.assertRaisesRegex(zerod.NotHeld, "weights"):
                group.barrier()
                group.barrier()

        support.ranks(daemon.socket, 1, body)


class Memory(unittest.TestCase):
    def test_gather(self) -> None:
        """three ranks see the whole, by numpy, with views of a unit, and bytes go with the lease"""
        def body(group: zerod.Group) -> None:
            views = [zerod.view("a", 0, (7, 11)), zerod.view("b", 128, ()), zerod.view("c", 192, (5,))]
            unit = group.register("u", DType.INT64, views=views)
            self.assertEqual(unit.numel, 197)
            with group.updating([unit]):
                shard = unit.shard()
                unit.shard_memory().numpy()[:] = np.arange(shard.true_numel) + shard.offset_numel
            with unit.gathered() as buffer:
                np.testing.assert_array_equal(buffer.memory().numpy(), np.arange(197))
                np.testing.assert_array_equal(buffer["a"].numpy(), np.arange(77).reshape(7, 11))
                self.assertEqual(buffer["b"].numpy(), 128)
                self.assertEqual(list(buffer), ["a", "b", "c"])
            with self.assertRaises(KeyError):
                unit.view(0, "d")
            group.barrier()
            self.assertEqual(group.client.device(group.rank % 2).gathered_bytes, 0)

        support.ranks(daemon.socket, 3, body)

    def test_batch(self) -> None:
        """corked gathers of many units, waited for at once, on a stream of the CPU"""
        def body(group: zerod.Group) -> None:
            units = [group.register(f"u{i}", DType.INT32, 50) for i in range(20)]
            with group.updating(units):
                for i, unit in enumerate(units):
                    unit.shard_memory().numpy()[:] = i
            seen = []
            with group.client.host_stream() as stream:
                with group.client.corked():
                    tickets = [unit.gather_begin() for unit in units]
                addresses = group.client.wait_many(tickets, stream)
                for unit, address in zip(units, addresses):
                    stream.launch(lambda u=unit, a=address: seen.append(int(u.memory(a).numpy().sum())))
                stream.synchronize()
                zerod.release_many(units, stream)
            self.assertEqual(seen, [i * 50 for i in range(20)])

        support.ranks(daemon.socket, 2, body)

    def test_dlpack(self) -> None:
        """DLPack: one memory, seen by numpy"""
        def body(group: zerod.Group) -> None:
            unit = make_weights(group, 12)
            with unit.gathered() as buffer:
                memory = zerod.Memory(buffer.address, (3, 4), DType.FLOAT32, group.client.dlpack_device)
                array = np.from_dlpack(memory)
                np.testing.assert_array_equal(array, np.arange(12).reshape(3, 4))
                self.assertEqual(array.__array_interface__["data"][0], buffer.address)

        support.ranks(daemon.socket, 1, body)

    def test_dlpack_ends(self) -> None:
        """a capsule that was taken, dropped or refused keeps its memory mapped no longer than its tensor; a refusal has its own error"""
        def is_mapped() -> bool:
            ranges = [line.split()[0].split("-") for line in open("/proc/self/maps")]
            return any(int(first, 16) <= memory.address < int(last, 16) for first, last in ranges)

        with zerod.Client(daemon.socket) as client:
            allocation = client.alloc("views", 48 << 20)  # a segment of its own, which goes back to the device
            memory = allocation.memory((1024,), DType.FLOAT32)
            taken = np.from_dlpack(memory)
            memory.__dlpack__()
            with self.assertRaisesRegex((RuntimeError, BufferError), "nsupported dtype"):
                np.from_dlpack(allocation.memory((1024,), DType.BFLOAT16))
            allocation.free()
            client.trim()
            client.device()
            self.assertTrue(is_mapped())
            del taken
            zerod.memory.capsule(4096, (2,), DType.UINT8, (zerod.memory.KDLCUDA, 0))
            self.assertFalse(is_mapped())

    def test_dlpack_types(self) -> None:
        """DLPack's codes: bfloat16 is 4, float8 10 and 12, bool 6"""
        for dtype, expected in ((DType.BFLOAT16, (4, 16)), (DType.FLOAT8_E4M3, (10, 8)), (DType.FLOAT8_E5M2, (12, 8)),
                                (DType.BOOL, (6, 8)), (DType.UINT8, (1, 8))):
            capsule = zerod.memory.capsule(4096, (2, 3), dtype, (zerod.memory.KDLCUDA, 1))
            data, device, index, ndim, code, bits, lanes, shape, strides, offset = struct.unpack(
                "PiiiBBHPPQ", ctypes.string_at(zerod.memory._capsule_pointer(capsule, b"dltensor"), 48))
            self.assertEqual((data, device, index, ndim, lanes, offset), (4096, zerod.memory.KDLCUDA, 1, 2, 1, 0))
            self.assertEqual((code, bits), expected)
            self.assertEqual([(ctypes.c_int64 * 2).from_address(at)[:] for at in (shape, strides)], [[2, 3], [3, 1]])

    def test_allocation(self) -> None:
        """an allocation is zeroed, writable, and charged until it is freed"""
        with zerod.Client(daemon.socket) as client:
            before = client.device(0).allocated_bytes
            with client.alloc("job", 4096, name="state") as allocation:
                array = allocation.memory((1024,), DType.FLOAT32).numpy()
                self.assertEqual(array.sum(), 0)
                array[:] = 1
                self.assertGreaterEqual(client.device(0).allocated_bytes, before + 4096)
            self.assertEqual(client.device(0).allocated_bytes, before)

    def test_host(self) -> None:
        """a unit and an allocation in host memory, which is a device of its own, behind those of ranks"""
        def body(group: zerod.Group) -> None:
            client = group.client
            found = client.devices()
            self.assertEqual([info.host for info in found], [2, 2, 2])
            self.assertEqual([client.is_host_memory(info.index) for info in found], [False, False, True])
            before = found[2].allocated_bytes
            unit = group.register("host", DType.FLOAT32, 1000, flags=zerod.structs.UnitFlags.ON_HOST)
            with group.updating([unit]):
                unit.shard_memory().numpy()[:] = 5
            with unit.gathered() as buffer, client.alloc("host", 4096, 2) as room:
                self.assertEqual(buffer.memory().numpy().sum(), 5000)
                self.assertEqual((room.on_host, unit.on_host), (True, True))
                self.assertEqual(client.device(2).allocated_bytes, before + 4096 + 4 * unit.padded_numel)

        support.ranks(daemon.socket, 1, body)

    def test_place(self) -> None:
        """a unit that is moved to host memory and back, and is alone or not"""
        def body(group: zerod.Group) -> None:
            unit = group.register("moves", DType.FLOAT32, 1000)
            with group.updating([unit]):
                unit.shard_memory().numpy()[:] = 5
            for on_host in (True, True, False):
                unit.place(on_host, deadline_ms=60000)
                self.assertEqual(unit.on_host, on_host)
                self.assertTrue((unit.shard_memory().numpy() == 5).all())
                with unit.gathered() as buffer:
                    self.assertEqual(buffer.memory().numpy().sum(), 5000)
            group.barrier()

        support.ranks(daemon.socket, 1, body)
        support.ranks(daemon.socket, 2, body)

    def test_restarted(self) -> None:
        """with reconnect_ms a group goes on with the next daemon: here one that keeps nothing"""
        with support.Daemon() as own, zerod.Client(own.socket, reconnect_ms=60000) as client:
            with client.join(job="lm", world_size=1, rank=0, flags=zerod.GroupFlags.DURABLE) as group:
                unit = group.register("w", DType.FLOAT32, 256)
                group.commit(1)
                own.restart(signal.SIGKILL)
                with self.assertRaisesRegex(zerod.Restarted, "zerod_group_get"):
                    group.commit(2)
                self.assertEqual(group.info().committed_step, 0)
                self.assertEqual(unit.shard().version, 0)
                group.commit(1)

    def test_load(self) -> None:
        """what one rank has read comes to all shards, bfloat16 bit by bit"""
        bits = np.arange(999, dtype=np.uint16)

        def body(group: zerod.Group) -> None:
            unit = group.register("u", DType.BFLOAT16, 999)
            with group.updating([unit]):
                unit.load(bits.ctypes.data if group.rank == 1 else None)
            with unit.gathered() as buffer:
                np.testing.assert_array_equal(buffer.memory().numpy(), bits)

        support.ranks(daemon.socket, 2, body)


class Lifetimes(unittest.TestCase):
    def test_closed(self) -> None:
        """an object whose owner has closed raises, by every method and property, and closes again without harm"""
        def use(obj: object, *but: str) -> None:
            for name in sorted(set(dir(type(obj))) - {"closed", "end", *but}):
                method = getattr(type(obj), name)
                if name.startswith("_") or not callable(method):
                    continue
                needed = [p for p in inspect.signature(method).parameters.values() if p.default is p.empty]
                filled = {p.name: FILL.get(p.name, 1) for p in needed[1:] if p.kind is p.POSITIONAL_OR_KEYWORD}
                with self.subTest(f"{type(obj).__name__}.{name}"), self.assertRaisesRegex(zerod.InvalidState, "any more: the"):
                    made = method(obj, **filled)
                    if hasattr(made, "__enter__"):
                        made.__enter__()

        for ended in ("client", "group", "each"):
            client = zerod.Client(daemon.socket)
            group = client.join(job="closed")
            unit, bucket = make_weights(group), group.bucket(DType.FLOAT32, slot_bytes=4096)
            stream, allocation = client.host_stream(), client.alloc("closed", 4096)
            FILL = {"units": [unit], "unit": unit, "stream": stream, "streams": stream, "entry": zerod.Entry(), "sources": [(unit, 1)],
                    "values": [1.0], "tickets": [1], "function": print, "name": "weights", "dtype": DType.FLOAT32, "shape": (1,),
                    "parts": [structs.OptimizerPart()], "step": structs.OptimizerStep(),
                    "source_dtype": DType.FLOAT32, "op": zerod.AgreeOp.SUM, "views": [zerod.view("v", 0, (1,))], "job": "closed"}
            if ended == "each":
                unit.unregister()
                bucket.destroy()
            if ended == "client":
                client.close()
                client.close()
                use(client, "close", "scope_abandon")
            else:
                group.leave()
                stream.destroy()
                allocation.free()
            use(unit, "view", "memory")
            use(bucket, "memory")
            use(group, "leave", "register")
            use(stream, "destroy")
            use(allocation, "free")
            group.leave()
            allocation.free()
            client.close()

    def test_views(self) -> None:
        """a view of memory that was freed, or whose client was closed, is stale and ends nothing; none is made anew"""
        with zerod.Client(daemon.socket) as client:
            allocation = client.alloc("views", 48 << 20)  # a segment of its own, which goes back to the device
            memory = allocation.memory((1024,), DType.FLOAT32)
            array, taken = memory.numpy(), np.from_dlpack(memory)
            allocation.free()
            client.trim()
            client.device()
            self.assertEqual(array.shape, taken.shape)
            array[:] = taken + 1
            with self.assertRaisesRegex(zerod.NotHeld, "no host memory"):
                del array, taken
                memory.numpy()
            kept = client.alloc("views", 4096).memory((1024,), DType.FLOAT32).numpy()
        kept[:] = kept + 1

    def test_streams(self) -> None:
        """functions of a stream that the program has dropped run, at the latest when the client closes"""
        ran: list[int] = []
        with zerod.Client(daemon.socket) as client:
            stream = client.host_stream()
            for i in range(50):
                stream.launch(lambda i=i: ran.append(i))
            del stream
            gc.collect()
        self.assertEqual(ran, list(range(50)))

    def test_stream_of_threads(self) -> None:
        """a function that another thread launches while one waits for the stream lasts until it has run"""
        def launch_as_well(status: int) -> None:
            client.check = check
            stream.launch(gate.wait)
            function = partial(ran.append, 1)
            references.append(weakref.ref(function))
            stream.launch(function)
            check(status)

        ran: list[int] = []
        references: list[Any] = []
        gate = threading.Event()
        with zerod.Client(daemon.socket) as client, client.host_stream() as stream:
            check, client.check = client.check, launch_as_well
            stream.synchronize()
            gc.collect()  # ctypes makes cycles
            lasts = references[0]() is not None
            gate.set()
            stream.synchronize()
            gc.collect()
            self.assertTrue(lasts)
            self.assertEqual(ran, [1])
            self.assertIsNone(references[0]())

    def test_stream_of_a_handler(self) -> None:
        """a function lasts until it has run, if a signal handler waits for the stream before the function is in it"""
        def launch(*arguments: Any) -> int:
            patch.stop()
            stream.synchronize()
            stream.launch(gate.wait)
            return int(zerod.client.calls.host_stream_launch(*arguments))

        ran: list[int] = []
        gate, function = threading.Event(), partial(ran.append, 1)
        patch = mock.patch.object(zerod.client.calls, "host_stream_launch", launch)
        with zerod.Client(daemon.socket) as client, client.host_stream() as stream:
            patch.start()
            stream.launch(function)
            reference = weakref.ref(function)
            del function
            gc.collect()
            lasts = reference() is not None
            gate.set()
            self.assertTrue(lasts)
            stream.synchronize()
        self.assertEqual(ran, [1])


WAITING = """
import signal, sys, zerod
signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
with zerod.Client(sys.argv[1], deadline_ms=60000) as client, client.join("signals", world_size=2) as group:
    try:
        group.barrier()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    group.barrier()
    print("passed", flush=True)
    group.barrier()
"""


class Signals(unittest.TestCase):
    def test_a_wait_is_interrupted(self) -> None:
        """SIGINT ends a wait with KeyboardInterrupt, a handler that returns does not; the group is as before"""
        child = subprocess.Popen([sys.executable, "-c", WAITING, daemon.socket], stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, "PYTHONPATH": str(support.ROOT / "client/python")})
        with child, zerod.Client(daemon.socket, deadline_ms=60000) as client:
            group = client.join("signals", world_size=2, rank=1, device=1)
            support.until(lambda: "rank 1 to reach the barrier" in support.zeroctl(daemon, "sessions", "--json"))
            for number, line in ((signal.SIGUSR1, "handled"), (signal.SIGINT, "interrupted")):
                child.send_signal(number)
                self.assertEqual(child.stdout.readline(), line + "\n")
            group.barrier()
            self.assertEqual(child.stdout.readline(), "passed\n")
            group.barrier()
            group.leave()
            self.assertEqual(child.wait(60), 0)


READER = """
import sys, zerod
with zerod.Client(sys.argv[1]) as client:
    mapped, _ = client.unit_map(client.commit_wait("read"), "u", 4)
    print("mapped", flush=True)
    sys.stdin.readline()
    try:
        mapped.release()
    except (zerod.NotHeld, zerod.NotFound):
        pass
"""


class Readers(unittest.TestCase):
    def test_ends(self) -> None:
        """a reader that has mapped a shard stops, is killed, or ends: updates and frees go on, and then the memory is back"""
        for how in (signal.SIGSTOP, signal.SIGKILL, None):
            child = subprocess.Popen([sys.executable, "-c", READER, daemon.socket], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
                                     env={**os.environ, "PYTHONPATH": str(support.ROOT / "client/python")})
            with self.subTest(how=how), child, ExitStack() as ends, zerod.Client(daemon.socket, deadline_ms=60000) as client:
                ends.callback(child.kill)
                group = client.join("read")
                unit = group.register("u", DType.FLOAT32, 1 << 20)
                group.update_begin([unit])
                group.publish([unit])
                group.commit(1)
                self.assertEqual(child.stdout.readline(), "mapped\n")
                if how:
                    child.send_signal(how)
                    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                group.update_begin([unit])
                group.publish([unit])
                group.leave()
                if how == signal.SIGSTOP:
                    with self.assertRaisesRegex(zerod.Deadline, rf"\(pid {child.pid}\) to unmap segment"):
                        client.trim(deadline_ms=1)
                    child.send_signal(signal.SIGCONT)
                if how != signal.SIGKILL:
                    child.stdin.write("end\n")
                    child.stdin.close()
                client.trim()
                self.assertNotIn("read", support.zeroctl(daemon, "map"))


class Steps(unittest.TestCase):
    def test_sum_that_goes(self) -> None:
        """a sum without a place in the target, from reduce_wait() to return_target()"""
        def body(group: zerod.Group) -> None:
            unit = group.register("u", DType.FLOAT32, 300)
            bucket = group.bucket(DType.FLOAT32, slot_bytes=1 << 16)
            entry = zerod.Entry()
            unit.set_target(False)
            group.backward_begin()
            bucket.reserve(unit, entry)
            bucket.memory(entry, unit).numpy()[:] = group.rank + 1
            bucket.submit(entry.id)
            unit.reduce_wait()
            self.assertEqual(set(unit.target_memory().numpy().tolist()), {3.0})
            unit.return_target()
            group.backward_end()
            with self.assertRaises(zerod.InvalidState):
                unit.target()
            group.step_begin()
            group.step_end()

        support.ranks(daemon.socket, 2, body)

    def test_step(self) -> None:
        """a whole step over two ranks: gradients, target, float32 masters, publish, commit of nothing"""
        def body(group: zerod.Group) -> float:
            unit = group.register("u", DType.BFLOAT16, 300)
            bucket = group.bucket(DType.FLOAT32, slot_bytes=1 << 16)
            entry = zerod.Entry()
            mean = zerod.ReduceOptions(op=zerod.ReduceOp.MEAN)
            group.backward_begin()
            bucket.reserve(unit, entry)
            bucket.memory(entry, unit).numpy()[:] = np.arange(300) * (group.rank + 1)
            bucket.submit(entry.id, None, mean)
            lent = unit.reduce_wait()
            group.backward_end()
            info = group.step_begin()
            self.assertEqual((info.step, info.overflow), (1, 0))
            self.assertEqual(lent.data, unit.target().data)
            self.assertEqual(group.step_norms([unit]), [info.norm_squared])
            with self.assertRaises(zerod.InvalidState):
                group.step_scalars()
            shard = unit.shard()
            master = unit.target_memory().numpy().copy()
            expected = 1.5 * np.arange(300, dtype=np.float32)[shard.offset_numel:][: shard.true_numel]
            np.testing.assert_array_equal(master, expected)
            group.update_begin([unit])
            group.publish_from([(unit, master.ctypes.data)], DType.FLOAT32)
            group.step_end()
            with unit.gathered() as buffer:
                bits = buffer.memory().numpy().astype(np.uint32) << 16
            np.testing.assert_allclose(bits.view(np.float32), 1.5 * np.arange(300), rtol=1 / 256)
            return info.norm_squared

        norms = support.ranks(daemon.socket, 2, body)
        self.assertEqual(norms[0], norms[1])
        self.assertAlmostEqual(norms[0], float((1.5 * np.arange(300.0)) @ (1.5 * np.arange(300.0))), places=0)

    def test_tickets(self) -> None:
        """ticket forms; a unit that one rank skips; views without gradients; SKIP_REST"""
        def body(group: zerod.Group) -> None:
            first = group.register("a", DType.FLOAT32, views=[zerod.view("x", 0, (4,)), zerod.view("y", 64, (4,))])
            second = group.register("b", DType.FLOAT32, 8)
            bucket = group.bucket(DType.FLOAT32)
            entry, stream = zerod.Entry(), group.client.host_stream()
            holes = zerod.ReserveOptions(flags=zerod.ReserveFlags.ZERO_HOLES)
            group.backward_begin()
            bucket.reserve(first, entry, holes)
            bucket.memory(entry, first).numpy()[:4] = 1
            bucket.submit(entry.id, None, zerod.ReduceOptions(**zerod.absent([1])))
            if group.rank == 1:
                data = np.full(8, 3, np.float32)
                bucket.reduce(second, data.ctypes.data, stream)
            end = group.backward_end_begin(zerod.BackwardEndOptions(flags=zerod.BackwardEndFlags.SKIP_REST))
            step = group.step_begin_ticket()
            group.client.complete(end)
            group.client.complete(step, stream)
            stream.synchronize()
            self.assertEqual(group.step_get().norm_squared, 4 * 2.0**2 + 8 * 3.0**2)
            group.step_end(stream)
            group.client.complete(group.barrier_begin())
            self.assertEqual(group.agree(zerod.AgreeOp.MAX, [group.rank, -group.rank]), [1, 0])
            self.assertEqual(group.agree(zerod.AgreeOp.SUM, [group.rank] * zerod.MAX_AGREED), [1] * zerod.MAX_AGREED)

        support.ranks(daemon.socket, 2, body)

    def test_scopes(self) -> None:
        """a scope holds what was gathered in it, becomes a claim, and ends; a context holds all or none"""
        def body(group: zerod.Group) -> None:
            unit = make_weights(group)
            client = group.client
            scope = group.forward_begin()
            address = unit.gather(None, zerod.GatherOptions(scope=scope))
            client.forward_end(scope, grad=True)
            self.assertEqual(unit.gather(None, zerod.GatherOptions(scope=scope)), address)
            client.claim_end(scope)
            with self.assertRaises(zerod.NotFound):
                client.claim_end(scope)
            with group.context([unit]) as addresses:
                np.testing.assert_array_equal(unit.memory(addresses[0]).numpy(), np.arange(1000))
            scope = group.forward_begin()
            client.scope_abandon(scope)

        support.ranks(daemon.socket, 2, body)


class Watches(unittest.TestCase):
    def test_async(self) -> None:
        """waits of asyncio: two at once, a deadline, a cancelled one, a reader that is closed, a forked child, a daemon that dies"""
        with support.Daemon() as own, zerod.Client(own.socket) as client, client.join(job="watched") as group:
            group.commit(1)
            asyncio.run(self.wait(own, group))
            with self.assertRaises(zerod.ConnectionFailed):
                group.leave()

    async def wait(self, own: support.Daemon, group: zerod.Group) -> None:
        reader, other = (Reader("watched", socket_path=own.socket) for _ in range(2))
        self.assertEqual((await reader.wait_async()).step, 1)
        later = [asyncio.create_task(reader.wait_async(after)) for after in (1, 1, 2)]
        with self.assertRaisesRegex(zerod.Deadline, "rank 0 to commit a step after 1"):
            await reader.wait_async(1, deadline_ms=1)
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.wait_async(1), 0.01)
        with reader.client.commit_watch("watched", after=1) as watch:
            self.in_child(watch)
            self.assertIsNone(watch.take())
            group.commit(2)
            self.assertEqual([(await first).step for first in later[:2]], [2, 2])
            self.assertEqual(watch.take().step, 2)
        with self.assertRaisesRegex(zerod.InvalidState, "the watch was closed"):
            watch.fileno()
        self.assertFalse(later[2].done())
        group.commit(3)
        self.assertEqual((await later[2]).step, 3)
        for one, end, error in ((reader, reader.close, zerod.InvalidState), (other, own.process.kill, zerod.ConnectionFailed)):
            lost = asyncio.create_task(one.wait_async(3))
            await asyncio.sleep(0)  # it has begun
            end()
            with self.assertRaises(error):
                await lost
        other.close()

    def in_child(self, watch: Any) -> None:
        child = os.fork()
        if child == 0:
            try:
                watch.take()
            except zerod.Forked:
                watch.client.close()
                watch.close()
                os._exit(7)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)


if __name__ == "__main__":
    support.main()
