# SPDX-License-Identifier: Apache-2.0
"""zerod: the Python interface of libzerod.

    import zerod

    with zerod.Client() as client, client.join(job="demo", world_size=2, rank=rank, device=rank) as group:
        unit = group.register("weights", zerod.DType.FLOAT32, views=[zerod.view("w", 0, (16, 64))])
        with group.updating([unit]):
            unit.shard_memory().numpy()[:] = rank
        with unit.gathered() as weights:
            print(weights["w"].numpy().sum())

Structures have the names and fields of zerod.h: include/zerod.h is the reference. This package does not import torch. zerod.torch
does.
"""
from .client import Allocation, Client, Stream
from .errors import (Aborted, AlreadyExists, ConnectionFailed, Deadline, DeviceFailed, Forked, InvalidArgument,
                     Interrupted, InvalidState, LimitExceeded, Mismatch, NotFound, NotHeld, OutOfMemory, PeerLost,
                     PermissionDenied, Poisoned, Restarted, Torn, Unsupported, ZerodError)
from .group import Group
from .library import calls
from .memory import Memory
from .structs import (AgreeOp, AllocFlags, AllocOptions, BackwardEndFlags, BackwardEndOptions, BackwardOptions,
                      BucketOptions, Collectives, DeviceInfo, DType, Entry, GatherFlags, GatherOptions, GroupFlags,
                      GroupInfo, GroupOptions, Options, PublishFlags, PublishOptions, ReduceFlags, ReduceOp,
                      ReduceOptions, ReleaseFlags, ReleaseOptions, ReserveFlags, ReserveOptions, Shard, SkipFlags,
                      SkipOptions, Source, Status, StepInfo, Target, UnitFlags, UnitOptions, View, WaitOptions,
                      MAX_AGREED, MAX_DIMS, MAX_TICKETS, NO_DEADLINE, NO_SLOT, view)
from .unit import Bucket, Gathered, Unit, absent, release_many

__all__ = [name for name in dir() if not name.startswith("_")]
__version__ = "0.2.0"


def version() -> int:
    """The library's version: major * 1 000 000 + minor * 1000 + patch."""
    return calls.version()
