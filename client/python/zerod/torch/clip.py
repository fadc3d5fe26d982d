# SPDX-License-Identifier: Apache-2.0
"""Norms and clipping of gradients over all ranks."""
from __future__ import annotations

import math
from typing import Sequence

import torch

import zerod

from .model import Model


def clip_grad_norm_(model: Model, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """See zerod.torch.clip_grad_norm_()."""
    norm_type = float(norm_type)
    if norm_type == 0 or math.isnan(norm_type):
        raise ValueError(f"norm_type is {norm_type}, which gives no norm: use 2, another number that is not 0, inf or -inf")
    if model.overlap is not None:
        raise RuntimeError("clip_grad_norm_() does not work with optimizer_in_backward(): the norm is known when all "
                           "gradients are, and the optimizer has used them by then. Use an ordinary optimizer")
    model.begin_step()
    if not model.step_open:
        return torch.zeros((), device=model.device)
    found: dict[torch.device, list[torch.Tensor]] = {}
    for unit in model.trainable:
        for member in unit.members:
            if member.parameter.grad is not None and member.parameter.grad.numel():
                grad = member.parameter.grad.as_subclass(torch.Tensor)
                found.setdefault(grad.device, []).append(grad)
    norm = _total(model, [_norm(_each_norm(grads, norm_type), norm_type) for grads in found.values()], norm_type)
    factor = max_norm / (norm + 1e-6)
    if not factor >= 1.0:  # of NaN as well
        for grads in found.values():
            torch._foreach_mul_(grads, factor)
    return torch.tensor(norm, device=model.device)


def _each_norm(grads: list[torch.Tensor], norm_type: float) -> Sequence[torch.Tensor]:
    """The norms of the tensors, at least in float32."""
    if all(grad.dtype == torch.float32 for grad in grads):
        return torch._foreach_norm(grads, norm_type)
    return [torch.linalg.vector_norm(grad, norm_type, dtype=torch.promote_types(grad.dtype, torch.float32)) for grad in grads]


def _norm(norms: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norm of tensors that have these norms, on the CPU."""
    return torch.linalg.vector_norm(torch.stack([norm.double() for norm in norms]), norm_type).cpu()


def _total(model: Model, norms: list[torch.Tensor], norm_type: float) -> float:
    """The norm over all ranks, of which this one has tensors with these norms.

    The daemon's norm of its sums is not used: the program may have edited its gradients since.
    """
    if math.isinf(norm_type):
        op = zerod.AgreeOp.MAX if norm_type > 0 else zerod.AgreeOp.MIN
        return model.group.agree(op, [float(_norm(norms, norm_type)) if norms else 0.0 if norm_type > 0 else math.inf])[0]
    here = float(_norm(norms, norm_type).pow(norm_type)) if norms else 0.0
    return float(torch.tensor(model.group.agree(zerod.AgreeOp.SUM, [here])[0], dtype=torch.float64).pow(1 / norm_type))
