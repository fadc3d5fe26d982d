# SPDX-License-Identifier: Apache-2.0
"""The interface for users: shard(), no_sync() and the other functions of zerod.torch."""
from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager, contextmanager
from functools import reduce
from typing import Any, Callable, Iterable, Iterator, Optional

import torch
from torch import nn

from zerod import AgreeOp, Mismatch
from zerod import structs as s

from . import buffers, copies, durable as durables, footprint, offload as offloads, optimizer, overlap, placement, recovery, state
from . import share as shares, whole
from .context import Context, Settings
from .environment import DTYPES, dtype_of_sums, environment, job_name, members, next_environment, rows
from .gradients import multiply
from .join import Join
from .layout import Policy, check_devices, check_same, names_of_ignored, plan as blocks_of
from .model import Model
from .replicas import Replicas
from .rules import norms
from .sharded import ShardedTensor, as_plain, part_of
from .. import integrations


def shard(module: nn.Module, policy: Policy = None, param_dtype: Optional[torch.dtype] = None,
          reduce_dtype: Optional[torch.dtype] = None, persist_below: int = 0, prefetch: int = 1, slots: bool = False,
          stage: int = 3, op: str = "mean", process_group: Any = None, job: Optional[str] = None,
          name: Optional[str] = None, deadline_ms: int = 0, durable: Optional[str] = None,
          offload: Optional[str] = None, device_budget: Optional[int] = None, cast_forward_inputs: bool = True,
          ignored_params: Optional[Iterable[nn.Parameter]] = None, output_dtype: Optional[torch.dtype] = None) -> nn.Module:
    """Shards the module's parameters across all ranks, in place, and returns it. Every rank calls it.

    policy: the modules that are gathered as a whole: classes, names, modules, or a function of (name, module). None: every module
    in a ModuleList or Sequential, and other large embeddings and linear layers. param_dtype: the dtype of gathered weights and of
    the computation. The optimizer then works on masters of the parameters' own dtype. cast_forward_inputs: whether blocks then
    cast their floating inputs to it. reduce_dtype: the dtype of gradients that are sent. persist_below: units of fewer elements
    remain gathered. prefetch: the number of blocks that are gathered early. stage: 3; 2 holds the weights between forward and
    backward; 1 holds them from step to step, and allows one backward per step outside of no_sync(). op: "mean" or "sum" across
    ranks. process_group: of torch.distributed, or a DeviceMesh of one dimension: its ranks shard the module, instead of all
    ranks; its backend is not used. Of a DeviceMesh of two dimensions the second shards and the first replicates, as in
    fully_shard(): torch.distributed sums over the first. durable: the name of a job. Its weights and the optimizer's state remain
    in the daemon when all ranks end, as of the last step() of all ranks: committed_step() returns that step. A later shard()
    finds them there, and ignores the module's own values. offload: "params" stores the shards in the daemon's host memory,
    "optimizer" the masters, gradients and the optimizer's state, "all" both, as does "params": parameters outside of a forward
    are then tensors of the CPU, and the CPU runs the optimizer. device_budget: so many bytes of each rank's device are for blocks
    that are not offloaded: plan() shows which blocks. None and 0: all blocks are offloaded. ignored_params: parameters that
    remain plain ones on each rank. They are not sharded, moved or cast, and their gradients are the rank's own. output_dtype: the
    dtype to which the floating outputs of the module are cast.

    Modules inside that are already sharded become its blocks. ValueError if policy is then given as well, or options differ. All
    ranks receive the weights of rank 0. Mismatch if ranks have different models, offload or device_budget; ConnectionFailed
    without a daemon; OutOfMemory with the sizes.
    """
    arguments = {name: value for name, value in locals().items() if name != "module"}
    _check(arguments)
    if getattr(module, "_zerod_model", None) is not None:
        raise ValueError("the module is sharded already")
    arguments["ignored_params"] = set(ignored_params or ())
    ignored = names_of_ignored(module, arguments["ignored_params"])
    policy = _merged(module, policy, arguments)
    settings = Settings(reduce_dtype, persist_below, prefetch, slots, stage, s.ReduceOp[op.upper()],
                        param_dtype if cast_forward_inputs else None, output_dtype)
    plans = blocks_of(module, policy, param_dtype, ignored)
    env = environment()
    check_devices(plans, env.device, ignored)
    for unit in (unit for block in plans for unit in block.units):
        if unit.source_dtype not in DTYPES:
            raise ValueError(f"{unit.members[0].name}: parameters of {unit.source_dtype} cannot be sharded: convert them, or "
                             "give them in ignored_params")
        if durable is not None and dtype_of_sums(unit.source_dtype) != torch.float32:
            raise ValueError(f"{unit.members[0].name} is {unit.source_dtype}, which durable= does not support: convert it to "
                             "float32")
    if durable is not None:
        if ignored:
            raise ValueError(f"durable= with ignored_params ({min(ignored.values())}): the daemon keeps sharded parameters only")
        durables.refuse(env, durable, name or "model", process_group, job)
    if deadline_ms:
        env.client.set_deadline(deadline_ms)
    mesh = rows(process_group)
    offloads.check(offload, stage, mesh, device_budget)
    rank, world, ranks = members(process_group)
    placement.place(plans, world, offload, device_budget or 0)
    host = offloads.Offload(env, offload, {unit.placement for block in plans for unit in block.units}, rank, job or job_name())
    if durable is None:
        recovery.check_kept(module, None)
        group = env.client.join(job=job or job_name(), group=(name or f"model{env.models}") + ranks, world_size=world,
                                rank=rank, deadline_ms=deadline_ms, **env.place(rank))
        env.models += 1
    else:
        group = durables.join(env, durable, name or "model", rank, world, deadline_ms)
    replicas = None if mesh is None else Replicas(mesh, deadline_ms)
    check_same(group, plans, f"offload={offload!r} and device_budget={device_budget or 0}", replicas)
    kept = None if durable is None else durables.Durable(env, durable, name or "model", group, offload)
    if kept is not None:
        recovery.check_kept(module, kept)
        kept.check_same(plans)
    optimizer.register()
    context = Context(env, group, settings, host, replicas, kept)
    buffers.place(context, module)
    model = Model(module, plans, context, getattr(module, "_zerod_recovery", None) or recovery.Recovery(arguments), ignored)
    object.__setattr__(module, "_zerod_model", model)
    whole.install(model, module)
    integrations.install()
    copies.install(model, module, shard)
    env.trim(rank)
    return module


def _check(arguments: dict[str, Any]) -> None:
    """ValueError for an argument of shard() that is invalid for any module."""
    for name, values in (("stage", (1, 2, 3)), ("op", ("mean", "sum"))):
        if arguments[name] not in values:
            raise ValueError(f"{name} is {arguments[name]!r}: {', '.join(map(repr, values))} are possible")
    for name in ("param_dtype", "reduce_dtype", "output_dtype"):
        dtype = arguments[name]
        known = isinstance(dtype, torch.dtype) and dtype in DTYPES and dtype.is_floating_point and dtype != torch.float64
        if dtype is not None and not known:
            raise ValueError(f"{name} is {dtype!r}: give None, torch.float32, torch.bfloat16 or torch.float16")
    for name in ("persist_below", "prefetch", "deadline_ms"):
        if not isinstance(arguments[name], int) or arguments[name] < 0:
            raise ValueError(f"{name} is {arguments[name]!r}: give a number from 0")


def _merged(module: nn.Module, policy: Policy, arguments: dict[str, Any]) -> Policy:
    """The policy. Modules inside that are already sharded become blocks of this one, as in fully_shard()."""
    inner = {name: each for name, each in module.named_modules() if name and is_sharded(each)}
    if not inner:
        return policy
    if policy is not None:
        raise ValueError(f"policy= beside {next(iter(inner))}, which is sharded already: leave it out, and such modules are the blocks")
    for name, each in inner.items():
        for key, value in model_of(each).recovery.arguments.items():
            if key not in ("policy", "name", "job", "ignored_params") and value != arguments[key]:
                raise ValueError(f"{name} was sharded with {key}={value}, and this call has {arguments[key]}: blocks of a model have "
                                 "the same options")
        for label, parameter in each.named_parameters(name):
            if (parameter in model_of(each).ignored) != (parameter in arguments["ignored_params"]):
                raise ValueError(f"{label} is in ignored_params of one call of shard(), and not of the other: {name} was sharded "
                                 "before")
    for each in inner.values():
        unshard(each)
    return list(inner.values())


def unshard(module: nn.Module) -> nn.Module:
    """Ends the sharding of the module, and returns it. Its parameters are then plain ones with whole values. Every rank calls it.

    The daemon frees the model's memory, including gradients. The parameters are the same objects. An optimizer's state remains
    sharded: make another optimizer, or take its state with state_dict(full=True) before. If the program drops a model with its
    optimizer, its memory is freed without this call.
    """
    model_of(module).unshard()
    return module


def recover(module: nn.Module, deadline_ms: int = 60000) -> int:
    """Continues with a module that was sharded with durable=, after the daemon has ended and another one runs.

    Every rank calls it, after a call has raised ConnectionFailed (Restarted, if ZEROD_RECONNECT_MS is set) or Aborted. Waits at
    most deadline_ms for the next daemon. Weights and the optimizer's state are then those of the last commit, whose step it
    returns. The former daemon's memory is no longer mapped: other tensors over it must not be used. NotFound if the next daemon
    has no commit of the job.
    """
    made = recovery.of(module)
    next_environment(deadline_ms)
    model = getattr(module, "_zerod_model", None)
    if model is not None:
        model.take_apart()
    shard(module, **made.arguments)
    made.finish(module)
    if model is not None and model.shared is not None:
        share(module, *model.shared[1:])
    return committed_step(module)


def model_of(module: nn.Module) -> Model:
    """The model of a sharded module. ValueError for other modules."""
    found = getattr(module, "_zerod_model", None)
    if found is None:
        raise ValueError(f"{type(module).__name__} is not sharded: zerod.torch.shard() has not returned it")
    return found


def is_sharded(module: Any) -> bool:
    """Whether shard() has returned it."""
    return getattr(module, "_zerod_model", None) is not None


@contextmanager
def no_sync(module: nn.Module) -> Iterator[None]:
    """Backwards inside do not sum their gradients across ranks. The next backward outside includes them in its sum."""
    gradients = model_of(module).gradients
    before, gradients.sync = gradients.sync, False
    try:
        yield
    finally:
        gradients.sync = before


def skip(module: nn.Module) -> None:
    """Replaces a forward and its backward on a rank that has no batch for them. Every rank runs a backward, or calls this.

    Other ranks' gradients receive zeros from this rank: with op="mean" they are still divided by the number of ranks. A parameter
    for which no rank has a gradient has none. step() follows as always. Inside of no_sync() it has no effect. RuntimeError in a
    forward or backward of the model.
    """
    model_of(module).skip()


@contextmanager
def join(module: nn.Module, *steppers: Any, step: Optional[Callable[[], Any]] = None, backwards: int = 1) -> Iterator[None]:
    """Used around a training loop that ranks leave after different numbers of steps. It returns when all ranks have left the
    loop.

    A rank that leaves the loop early continues to take part in the others' steps. It calls skip(), and then step() of each of
    `steppers`: the optimizers and schedulers that the loop steps. `step` replaces these calls if all ranks also make other calls
    between backward and zero_grad(), such as clipping. backwards: the number of backwards per step outside of no_sync(). All
    ranks enter it with the same arguments. It costs one agreement per step.

    RuntimeError if ranks have different learning rates, because a scheduler is missing, or if a rank leaves the loop between a
    backward and its step; Mismatch if a step has another number of backwards; NotImplementedError in a join() of another model.
    StepAbandoned if another rank leaves the loop by an exception.
    """
    joined = Join(model_of(module), module, steppers, step, backwards)
    try:
        yield
        joined.follow()
    except BaseException as failure:
        joined.fail(failure)
        raise


def optimizer_in_backward(module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Runs the optimizer of a sharded module in the backward, and returns it. Every rank calls it.

    The optimizer runs for each unit when all ranks have the unit's gradient, in a thread, while the backward continues: on the
    CPU with offload, otherwise on the device, where the sum of each unit is freed after its use. step() waits for the thread,
    steps the remaining units (with offload, those that device_budget keeps on the device), and ends the step. The training loop
    does not change: one backward per step outside of no_sync(). clip_grad_norm_(), GradScaler and programs that read gradients
    raise. StepTorn replaces StepAbandoned if a rank has abandoned a backward after a unit was updated. ValueError for optimizers
    that combine elements, durable=, a mesh of several rows without offload, and an optimizer that has only some of a unit's
    parameters.
    """
    overlap.install(model_of(module), optimizer)
    return optimizer


def clip_grad_norm_(module: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scales the gradients of the sharded module so that their norm across all ranks is at most max_norm.

    Gradients of ignored_params neither count nor are scaled. Returns the norm before. Every rank calls it, after the last
    backward and before step(). The norm is that of the values in `.grad`, including an unscale, a scaling or an earlier clip.
    norm_type: 2, inf, -inf or another number that is not 0 (ValueError). Blocks until all ranks' gradients are summed.
    """
    model, norm_type = model_of(module), float(norm_type)
    if norm_type == 0 or math.isnan(norm_type):
        raise ValueError(f"norm_type is {norm_type}, which gives no norm: use 2, another number that is not 0, inf or -inf")
    if model.gradients.fetcher.runs_optimizer:
        raise RuntimeError("clip_grad_norm_() does not work with optimizer_in_backward(): the norm is known when all "
                           "gradients are, and the optimizer has used them by then. Use an ordinary optimizer")
    unread = model.gradients.unread()
    model.steps.begin(waits=True)
    with as_plain():
        gradients = [member.parameter.grad for unit in model.trainable for member in unit.members
                     if member.parameter.grad is not None]
    if not gradients:
        return torch.zeros((), device=model.device)
    # The daemon's norm of its sums is not used, because the program can have changed its gradients since.
    each = torch.tensor(norms(gradients, norm_type), dtype=torch.float64)
    norm = float(torch.linalg.vector_norm(each, norm_type))
    factor = max_norm / (norm + 1e-6)
    if not factor >= 1.0:  # also for NaN
        multiply(gradients, factor, unread)
    dtype = reduce(torch.promote_types, {gradient.dtype.to_real() for gradient in gradients}, torch.float32)
    return torch.tensor(norm, dtype=dtype, device=model.device)


def full_grad(parameter: nn.Parameter) -> Optional[torch.Tensor]:
    """The whole gradient in `.grad`, as a copy in its dtype and shape. None if no rank has one. Every rank calls it.

    Waits for the sums, like every first use of a gradient. `parameter.grad = whole` sets it: each rank uses its range. ValueError
    for a parameter of no sharded model; RuntimeError for a gradient that ended with a step.
    """
    part = part_of(parameter)
    if part is None:
        raise ValueError(f"full_grad() of a parameter of shape {tuple(parameter.shape)}, which is not one of a sharded model")
    with as_plain():
        if isinstance(parameter.grad, ShardedTensor):
            parameter.grad.read_local()  # afterwards no rank has a gradient if none has one
        gradient = parameter.grad
    if gradient is None or isinstance(gradient, ShardedTensor):
        return None if gradient is None else gradient.whole().clone()
    return part.owner.gather(part, part.cut(gradient))


def full_state(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    """optimizer.state[parameter] with whole tensors, as copies; {} before the first step. Every rank calls it.

    ValueError for a parameter of no sharded model, or of another optimizer.
    """
    return state.whole_state(optimizer, parameter)


def set_full_state(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, values: dict[str, Any]) -> None:
    """Sets optimizer.state[parameter] to the result of full_state(), of this or of a plain program. Every rank calls it.

    ValueError for other keys or shapes than the optimizer's, a parameter of no sharded model, or of another optimizer.
    """
    state.set_whole_state(optimizer, parameter, values)


def full_parameters(module: nn.Module, write: bool = False) -> AbstractContextManager[nn.Module]:
    """Inside, the module has whole parameters: copies in memory of torch. RuntimeError at the end if one was changed.

    With write=True they may be changed, and their values on rank 0 become all ranks' weights. Every rank enters it if write is
    True, or if param_dtype differs from the parameters' own dtype.
    """
    return whole.full_parameters(model_of(module), module, write)


def state_dict(module: nn.Module, optimizer: Optional[torch.optim.Optimizer] = None, full: bool = False) -> dict[str, Any]:
    """{"model": ..., "optimizer": ...} for torch.distributed.checkpoint, or with full=True of whole tensors.

    Sharded tensors represent whole ones: any number of ranks can read a checkpoint. With full=True every rank takes part, and has
    all tensors. module.state_dict() alone also returns whole tensors.
    """
    model = model_of(module)
    made: dict[str, Any] = {"model": module.state_dict() if full else state.model_state(model, module)}
    if optimizer is not None:
        made["optimizer"] = state.optimizer_state(model, optimizer, full)
    return made


def load_state_dict(module: nn.Module, loaded: dict[str, Any], optimizer: Optional[torch.optim.Optimizer] = None) -> None:
    """Loads the result of state_dict(full=True), on any number of ranks. Every rank calls it."""
    module.load_state_dict(loaded["model"])
    if optimizer is not None:
        state.load_optimizer_state(model_of(module), optimizer, loaded["optimizer"])


def save(path: str, module: nn.Module, optimizer: Optional[torch.optim.Optimizer] = None, **extra: Any) -> None:
    """Saves a checkpoint with torch.distributed.checkpoint. Each rank writes its own slices.

    Values that are not sharded, ignored_params and buffers, are rank 0's. Further arguments are also saved. With more than one
    rank torch.distributed must be initialized.
    """
    import torch.distributed.checkpoint as dcp

    dcp.save({**state_dict(module, optimizer), **({"extra": extra} if extra else {})}, checkpoint_id=path,
             planner=state.save_planner(model_of(module)))


def load(path: str, module: nn.Module, optimizer: Optional[torch.optim.Optimizer] = None, **extra: Any) -> dict[str, Any]:
    """Reads a checkpoint of save(), on any number of ranks. Returns its further values.

    `extra` has their names and defaults. Every rank calls it. FileNotFoundError for a folder without a checkpoint. Loading runs
    code that the checkpoint can choose, because torch.distributed.checkpoint unpickles its metadata: load only checkpoints that
    you trust.
    """
    import torch.distributed.checkpoint as dcp

    if "://" not in str(path) and not os.path.exists(os.path.join(path, ".metadata")):
        raise FileNotFoundError(f"{path} has no checkpoint")
    model = model_of(module)
    if optimizer is not None:
        state.make_state(model, optimizer)
    asked = {**state_dict(module, optimizer), **({"extra": extra} if extra else {})}
    with model.updates.writes():
        dcp.load(asked, checkpoint_id=path, planner=state.planner())
    state.load_model_state(module, asked["model"])
    if optimizer is not None:
        state.load_optimizer_state(model, optimizer, asked["optimizer"])
    return asked.get("extra", {})


def share(module: nn.Module, names: "Callable[[str], Optional[str]]" = lambda name: name, checkpoint: bool = False) -> dict[str, str]:
    """Lets other processes read the parameters with zerod.reader. Every rank calls it, between two steps.

    names: returns a parameter's name for readers, or None to leave it out. checkpoint: for a model of transformers, readers see
    the tensors of the checkpoint that save_pretrained() writes, which inference engines read. `names` then receives their names.
    Returns the arguments of Reader(): "job", "group", and for a private daemon its "socket_path". Readers see commits: of
    commit(), or each step with durable=. Ignored parameters and buffers are not included. ValueError: checkpoint, and the module
    is not a model of transformers, or a tensor is composed of several parameters.
    """
    return shares.share(model_of(module), module, names, checkpoint)


def commit(module: nn.Module, step: Optional[int] = None) -> int:
    """Makes the present weights visible to readers, as `step`, which must rise. None: the last step plus one. Every rank calls
    it.

    Returns the step. It waits until the device has run all submitted work. ValueError with durable=, which commits each step.
    """
    model = model_of(module)
    if model.context.durable is not None:
        raise ValueError("commit() of a module that was sharded with durable=: each step() is a commit")
    return shares.commit(model, step)


def save_commit(module: nn.Module) -> shares.Saving:
    """Copies the last commit into host memory, from which Reader(saved=True) reads it also when the trainer has gone on.

    Every rank calls it, after commit() and before the next step. Returns at once: training goes on, and Saving.wait() waits. A call
    waits for this rank's earlier one. A copy that has failed is a warning there, unless wait() has raised it. The copy replaces that
    of an earlier commit. ValueError: nothing is committed.
    """
    return shares.save_commit(model_of(module))


def committed_step(module: nn.Module) -> int:
    """The last step() that the daemon preserves, of a module that was sharded with durable=. 0: none, or not durable.

    Steps are counted from the start of the job. A restarted program continues with the next step.
    """
    model = model_of(module)
    model.settle()
    return 0 if model.durable is None else model.durable.step


def summary(module: nn.Module) -> footprint.Summary:
    """Counts and memory of the sharded module. str() of it is one line, and str() of each of its `units` another."""
    return footprint.summary(model_of(module))


def plan(module: nn.Module, world_size: int, policy: Policy = None, param_dtype: Optional[torch.dtype] = None,
         prefetch: int = 1, offload: Optional[str] = None, device_budget: Optional[int] = None, halves: bool = False,
         in_backward: bool = False, ignored_params: Optional[Iterable[nn.Parameter]] = None) -> footprint.Plan:
    """The bytes that shard() with these arguments would need on each rank's device and in host memory. print() shows them.

    It also shows which units device_budget keeps on the device. Needs no daemon. The module is not changed, and can be on the
    meta device. For stage 3. A gather in place needs less: one rank's slice. The padding of its shard is not counted: less than 2
    MiB per unit on GPUs. halves: with zerod.torch.AdamW; in_backward: an optimizer in the backward, without offload (ValueError).
    """
    if in_backward and offload is not None:
        raise ValueError(f"in_backward=True with offload={offload!r}: plan the same without in_backward")
    offloads.check(offload, stage=3, mesh=None, device_budget=device_budget)
    blocks = blocks_of(module, policy, param_dtype, names_of_ignored(module, set(ignored_params or ())))
    used = placement.place(blocks, world_size, offload, device_budget or 0)
    return footprint.plan(blocks, world_size, prefetch, offload, device_budget or 0, used, halves, in_backward)


def abandon(module: nn.Module) -> None:
    """Gives up this rank's step, after an exception outside of the model's forward and backward, for example in the loss.

    After an exception inside of them this call is not needed. step() of the other ranks raises StepAbandoned. This rank does not
    call step().
    """
    model = model_of(module)
    was_open = model.steps.open  # a read of gradients has begun the step: settle() gives it up
    model.settle()
    if not was_open:
        model.gradients.abandon()


_BARRIER = [0.0] * 7  # no other agreement has as many values: a rank in another call fails at once


def barrier(module: nn.Module, deadline_ms: int = 0) -> None:
    """Waits for all ranks of the module. A program should call it last: when a rank has ended, the others can only gather."""
    model = model_of(module)
    model.settle()
    for last in (False, True):
        try:
            model.group.agree(AgreeOp.MIN, _BARRIER, deadline_ms)
            break
        except Mismatch:  # another rank is in another call, which raises there; then it calls this
            if last:
                raise
    model.group.barrier(deadline_ms)
    if model.replicas is not None:
        model.replicas.exchange([0])
