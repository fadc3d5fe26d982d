# SPDX-License-Identifier: Apache-2.0
"""torch.nn.utils.clip_grad_norm_() with parameters that shard() was told to ignore."""
from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.utils import clip_grad

from ..torch.rules import by_owner
from .late import replaces


def install() -> None:
    """clip_grad_norm_() raises if gradients that are not sharded differ between ranks: each rank would clip differently."""
    if not hasattr(clip_grad, "_get_total_norm"):  # of torch 2.4 and 2.5
        return

    @replaces(clip_grad, "_get_total_norm")
    def total_norm(plain: Any, tensors: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        made = plain(tensors, *args, **kwargs)
        for owner, _ in by_owner(tensors):
            if not owner.ignored:
                continue
            norm = float(made)
            nan = math.isnan(norm)
            low, high, some, others = owner.agree([0.0, 0.0, 1.0, 0.0] if nan else [-norm, norm, 0.0, 1.0], "max")
            if some and others or not some and -low < high:
                raise RuntimeError(f"the norm of these gradients is {'nan' if some else -low} on one rank and {high} on another: those of "
                                   f"ignored_params, such as {min(owner.ignored.values())}, are each rank's own. Clip the others alone, as "
                                   "zerod.torch.clip_grad_norm_() does")
        return made
