# SPDX-License-Identifier: Apache-2.0
"""Buffers of a sharded module: each rank's own, on the device of computation."""
from __future__ import annotations

import torch
from torch import nn

import zerod

from .context import Context
from .whole import passed


def place(context: Context, module: nn.Module) -> None:
    """Moves the buffers to the device. A buffer on the meta device receives the values of rank 0, or of a mesh's first row.

    Every rank calls it. ValueError on all ranks if rank 0 has no values: state_dict() would not have any either.
    """
    rows = context.replicas
    is_first = rows is None or rows.row == 0
    named = [(owner, name, f"{prefix}.{name}" if prefix else name) for prefix, owner in module.named_modules()
             for name, buffer in owner._buffers.items() if buffer is not None]
    if not named:
        return
    is_meta = [bool(owner._buffers[name].is_meta) for owner, name, _ in named]  # type: ignore[union-attr]
    at_root = [each and is_first and context.rank == 0 for each in is_meta]
    told = context.agree([float(each) for each in is_meta + at_root], zerod.AgreeOp.MAX)
    if rows is not None:
        told = [float(each) for each in rows.exchange([int(each) for each in told])]
    for (owner, name, label), wanted, has_none in zip(named, told, told[len(named):]):
        buffer = owner._buffers[name]
        assert buffer is not None
        if has_none and name in owner._non_persistent_buffers_set:
            raise ValueError(f"{label} is a buffer on the meta device on rank 0, and state_dict() does not have it: it would have no "
                             "values. Construct the module with its buffers on another device")
        placed = torch.zeros_like(buffer, device=context.device) if buffer.is_meta else buffer.to(context.device)
        if wanted and not has_none and buffer.numel():
            flat = placed.detach().contiguous().view(-1).view(torch.uint8)
            root = passed(context, label, flat, flat.numel())[0] if is_first else torch.empty_like(flat)
            if rows is not None:
                rows.broadcast([root])
            if buffer.is_meta:
                placed = root.view(buffer.dtype).view(buffer.shape)
        owner._buffers[name] = placed
