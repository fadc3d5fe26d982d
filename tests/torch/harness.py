# SPDX-License-Identifier: Apache-2.0
"""Common parts of the tests of zerod.torch: ranks as forked processes, and the single process that they must equal.

The reference sums the gradients of the same micro-batches in float32 or float64, in rank order, and scales the sum by 1/world,
as the daemon does. Everything is compared bit for bit.
"""
from __future__ import annotations

import faulthandler
import itertools
import os
import pickle
import select
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import support  # noqa: E402  (sets the path of the package)

# Not torch.set_num_threads(): it makes torch's thread pool in this process. A child makes the pool anew in the first of
# its threads that computes, and another thread that starts meanwhile, such as autograd's for a GPU, fails: "Invalid
# thread pool!".
os.environ["OMP_NUM_THREADS"] = "1"
import torch  # noqa: E402
import torch._dynamo  # noqa: E402  (imported here once, not in every process)
import models  # noqa: E402
import zerod.torch  # noqa: E402
import zerod.torch.environment  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._pytree import tree_map_only  # noqa: E402

if models.DEVICE != "cpu":
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
if models.DEVICE == "cpu":
    os.environ.setdefault("ZEROD_LAG", "1")  # publishes and releases are late, as behind a GPU's stream
os.environ.setdefault("ZEROD_POISON", "1")  # released memory is filled with NaN, where the library can do that
OPTIONS = eval(f"dict({os.environ.get('ZEROD_TORCH_OPTIONS', '')})")  # of shard(): "slots=True, offload='all'"
TIMEOUT_S = int(os.environ.get("ZEROD_TORCH_TEST_TIMEOUT", "120"))
LAST_S = 20  # afterwards
ARENA = "128M" if models.DEVICE == "cpu" else "1G"
if "ZD_SEVERAL" in os.environ:  # each rank has a device of its own, where torch sees the one GPU (tests/several)
    zerod.torch.environment.Environment.place = lambda self, rank: {"device": int(os.environ["LOCAL_RANK"])}
_jobs = iter(range(1, 1 << 30))


def combined(*axes: "Sequence[Any]") -> "Iterator[tuple[Any, ...]]":
    """Combinations of the axes' values: all if $ZEROD_TORCH_ALL is set. Otherwise each combination of the longer axes comes once,
    with the values of the shortest in turn."""
    fewest = 1 if "ZEROD_TORCH_ALL" in os.environ else min(map(len, axes))
    for places in itertools.product(*(range(len(axis)) for axis in axes)):
        if sum(places) % fewest == 0:
            yield tuple(axis[place] for axis, place in zip(axes, places))


class Failed(AssertionError):
    """A rank has raised: its traceback."""


def example(folder: str, document: str, words: str) -> None:
    """train.py in the folder: the program in the document that has the words."""
    text = (support.ROOT / document).read_text()
    [program] = [part.split("```")[0] for part in text.split("```python\n")[1:] if words in part.split("```")[0]]
    Path(folder, "train.py").write_text(program)


def check_threads() -> None:
    """Failed where torch computes with threads here, or has opened a GPU: a forked child has neither."""
    if torch.get_num_threads() > 1:
        raise Failed(f"torch computes with {torch.get_num_threads()} threads: ranks are forked before that")
    if torch.cuda.is_initialized():
        raise Failed("torch has opened a GPU: ranks are forked before that")


def _late(*_: Any) -> None:
    """The process has not ended in time: prints where each thread is, and ends it.

    A handler of Python has the interpreter's lock. faulthandler reads the frames of other threads while they run, and sometimes ends
    with a segmentation fault then. outcomes() asks for it if the main thread runs no handlers.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [f"{names.get(ident)}, not ended within {TIMEOUT_S} s:\n" + "".join(traceback.format_stack(frame))
              for ident, frame in sys._current_frames().items()]
    os.write(2, "".join(stacks).encode())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGALRM)


def fork(body: Callable[[], Any]) -> tuple[int, int]:
    """Runs body in a child; its pickled result, or traceback, comes by the descriptor."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    os.close(reader)
    status = 1
    try:
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(TIMEOUT_S)
        faulthandler.register(signal.SIGQUIT, chain=True)  # prints where each thread is, and ends
        if models.DEVICE != "cpu":
            torch.set_default_device(models.DEVICE)
        torch.manual_seed(0)
        data = pickle.dumps((True, tree_map_only(torch.Tensor, torch.Tensor.cpu, body())))
        status = 0
    except BaseException:
        data = pickle.dumps((False, traceback.format_exc()))
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(data)
    import zerod.torch.environment as environment

    environment._close()
    os._exit(status)


def outcomes(children: list[tuple[int, int]]) -> list[tuple[bool, Any]]:
    """Of each child whether it has returned, and what; else its traceback, or how it ended."""
    results = []
    for pid, reader in children:
        if not select.select([reader], [], [], TIMEOUT_S + LAST_S)[0]:
            os.kill(pid, signal.SIGQUIT)
        with os.fdopen(reader, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(pid, 0)
        results.append(pickle.loads(data) if data else (False, f"the process ended with status {status}"))
    return results


def collect(children: list[tuple[int, int]]) -> list[Any]:
    results = outcomes(children)
    bad = [f"rank {rank}: {result}" for rank, (good, result) in enumerate(results) if not good]
    if bad:
        raise Failed("\n".join(bad))
    return [result for _, result in results]


def ranks(socket: str, world: int, body: Callable[[int], Any]) -> list[Any]:
    """body(rank) in world processes, with torchrun's environment; what they returned."""
    return collect(start(socket, world, body))


def start(socket: str, world: int, body: Callable[[int], Any], job: Optional[str] = None) -> list[tuple[int, int]]:
    """The processes of ranks(), for outcomes() or collect()."""
    check_threads()
    job = job or f"torch-test{next(_jobs)}"

    def child(rank: int) -> Callable[[], Any]:
        def run() -> Any:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank),
                              LOCAL_WORLD_SIZE=str(world), ZEROD_SOCKET=socket, ZEROD_JOB=job)
            if models.DEVICE != "cpu":
                torch.cuda.set_device(rank % torch.cuda.device_count())
            result = body(rank)
            for model in _models:
                model.group.barrier()
            return result

        return run

    return [fork(child(rank)) for rank in range(world)]


_models: list[Any] = []


def shard(module: nn.Module, **options: Any) -> nn.Module:
    """zerod.torch.shard(), also with OPTIONS, and a barrier before the process ends."""
    import zerod.torch as zt

    zt.shard(module, **{**OPTIONS, **options})
    _models.append(module._zerod_model)
    return module


def alone(body: Callable[[], Any]) -> Any:
    """body() in one process of its own."""
    check_threads()
    return collect([fork(body)])[0]


def slices(module: nn.Module) -> dict[str, tuple[int, torch.Tensor]]:
    """This rank's part of each parameter: where it begins, and its values."""
    found = {}
    for unit in module._zerod_model.units:
        for member in unit.members:
            first, _ = unit.bounds(member)
            begin = first + unit.shard.offset_numel - member.offset
            found[member.name] = (begin, member.parameter.detach().read_local().cpu().clone())
    return found


def whole(parts: list[dict[str, tuple[int, torch.Tensor]]]) -> dict[str, torch.Tensor]:
    """The parameters, flat, put together from all ranks' parts."""
    names = parts[0].keys()
    return {name: torch.cat([values for _, values in sorted((part[name] for part in parts), key=lambda p: p[0])
                             if values.numel()] or [torch.empty(0)]) for name in names}


Loss = Callable[[nn.Module, int, int], Any]  # (model, rank, micro-batch): backward is called inside; losses returned


def step_with(optimizer: torch.optim.Optimizer) -> None:
    """step() without the default device of fork(), on which torch would keep step counts."""
    with torch.device("cpu"):
        optimizer.step()


def train(module: nn.Module, optimizer: torch.optim.Optimizer, losses: Loss, rank: int, steps: int,
          accumulate: int = 1, before_step: Optional[Callable] = None) -> list[Any]:
    """The training loop of a rank, as a user writes it."""
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(accumulate):
            seen.append(losses(module, rank, step * accumulate + micro))
        if before_step is not None:
            before_step(module, optimizer)
        step_with(optimizer)
    return seen


def as_is(values: torch.Tensor) -> torch.Tensor:
    return values


def reference(make: Callable[[], nn.Module], optimize: Callable, losses: Loss, world: int, steps: int,
              accumulate: int = 1, dtype: Optional[torch.dtype] = None, local: bool = False,
              before_step: Optional[Callable] = None, reduce_dtype: Optional[torch.dtype] = None,
              rows: int = 1, optimizer_device: str = models.DEVICE) -> tuple[Any, Any]:
    """(losses of each rank, flat parameters by name) of one process that does what all ranks do.

    local: each rank sums its micro-batches before the ranks are summed, as no_sync() does. rows: of a mesh: the ranks of
    a row are summed in each micro-batch, the rows before the step. An optimizer's `rounded`, if it has one, rounds the
    masters as param_dtype does.
    """
    masters = seeded(make).to(optimizer_device)
    module = seeded(make).to(models.DEVICE)
    if dtype is not None:
        cast(module, dtype)
    names = [name for name, _ in masters.named_parameters()]
    optimizer = optimize(masters)
    rounded = getattr(optimizer, "rounded", as_is) if dtype is not None else as_is
    seen: list[list[Any]] = [[] for _ in range(world)]
    ours, theirs = dict(masters.named_parameters()), dict(module.named_parameters())
    for step in range(steps):
        targets: list[dict[str, torch.Tensor]] = [{} for _ in range(rows)]
        kept: list[dict[str, torch.Tensor]] = [{} for _ in range(world)]
        for micro in range(accumulate):
            sums: list[dict[str, torch.Tensor]] = [{} for _ in range(rows)]
            for rank in range(world):
                into = sums[rank * rows // world]
                for name in names:
                    theirs[name].grad = None
                seen[rank].append(losses(module, rank, step * accumulate + micro))
                if local:  # in the wider dtype of both
                    for name in names:
                        if theirs[name].grad is not None:
                            kept[rank][name] = kept[rank].get(name, 0) + theirs[name].grad.to(reduce_dtype or ours[name].dtype)
                    if micro < accumulate - 1:
                        continue
                for name in names:
                    gradient = kept[rank].pop(name, None) if local else theirs[name].grad
                    if gradient is not None:
                        sent = ours if local and world == 1 else theirs  # nothing is sent by a rank that is alone
                        gradient = gradient.to(reduce_dtype or sent[name].dtype)
                        gradient = gradient.to(zerod.torch.environment.dtype_of_sums(gradient.dtype))
                        into[name] = into[name] + gradient if name in into else gradient.clone()
            for row, into in zip(sums, targets):
                for name, value in row.items():
                    value = value * (rows / world)
                    into[name] = into[name] + value if name in into else value
        for name in names:
            found = [row[name] for row in targets if name in row]
            target = sum(found[1:], found[0]) * (1 / rows) if found else None
            ours[name].grad = None if target is None else target.to(ours[name])
        if before_step is not None:
            before_step(masters, optimizer)
        step_with(optimizer)
        with torch.no_grad():
            for name in names:
                theirs[name].copy_(rounded(ours[name]))
    return seen, {name: ours[name].detach().flatten().cpu() for name in names}


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """The same module in every process, on the CPU."""
    torch.manual_seed(0)
    with torch.device("cpu"):
        return make()


def cast(module: nn.Module, dtype: torch.dtype) -> None:
    """The parameters alone, as param_dtype does."""
    done = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None and parameter.is_floating_point():
                if id(parameter) not in done:
                    done[id(parameter)] = nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad)
                owner._parameters[name] = done[id(parameter)]


def same(actual: Any, expected: Any, where: str = "") -> None:
    """Failed where two nested results differ in any bit."""
    if isinstance(expected, torch.Tensor):
        if actual.dtype != expected.dtype or not torch.equal(actual, expected):
            difference = (actual.double() - expected.double()).abs().max() if actual.shape == expected.shape else "shape"
            raise Failed(f"{where} differs: {difference}, {actual.dtype} {tuple(actual.shape)} against "
                         f"{expected.dtype} {tuple(expected.shape)}")
    elif isinstance(expected, dict):
        if set(actual) != set(expected):
            raise Failed(f"{where}: {sorted(actual)} against {sorted(expected)}")
        for key in expected:
            same(actual[key], expected[key], f"{where}{key}")
    elif isinstance(expected, (list, tuple)):
        if len(actual) != len(expected):
            raise Failed(f"{where}: {len(actual)} against {len(expected)}")
        for i, (a, b) in enumerate(zip(actual, expected)):
            same(a, b, f"{where}[{i}]")
    elif actual != expected:
        raise Failed(f"{where}: {actual} against {expected}")


def compare(socket: str, world: int, make: Callable[[], nn.Module], optimize: Callable, losses: Loss, steps: int = 4,
            accumulate: int = 1, dtype: Optional[torch.dtype] = None, train_with: Callable = train,
            local: bool = False, before_step: Optional[Callable] = None, empty: bool = True,
            **options: Any) -> list[Any]:
    """Trains in world ranks and in one process: losses and parameters are equal, and nothing stays gathered.

    $ZEROD_TORCH_WORLD, if set, is the number of ranks. With 1, and without poison mode, buffers are the shards.
    """
    world = int(os.environ.get("ZEROD_TORCH_WORLD", world))

    def rank_body(rank: int) -> Any:
        module = shard(seeded(make), param_dtype=dtype, **options)
        optimizer = optimize(module)
        seen = train_with(module, optimizer, losses, rank, steps, accumulate, before_step)
        model = module._zerod_model
        model.settle()
        model.group.barrier()
        gathered = model.client.device(model.device_index).gathered_bytes
        model.group.barrier()
        return seen, slices(module), gathered, vars(model.counts)

    def alone_body() -> Any:
        return reference(make, optimize, losses, world, steps, accumulate, dtype, local, before_step,
                         options.get("reduce_dtype"),
                         optimizer_device="cpu" if options.get("offload") else models.DEVICE)

    results = ranks(socket, world, rank_body)
    expected_losses, expected = alone(alone_body)
    same([result[0] for result in results], expected_losses, "loss")
    same(whole([result[1] for result in results]), expected, "parameter ")
    if empty:
        same([result[2] for result in results], [0] * world, "gathered bytes")
    return [result[3] for result in results]
