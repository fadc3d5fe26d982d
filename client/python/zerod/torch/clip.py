# SPDX-License-Identifier: Apache-2.0
"""Norms and clipping of gradients over all ranks."""
from __future__ import annotations

import math

import torch

import zerod

from .model import Model


def clip_grad_norm_(model: Model, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """See zerod.torch.clip_grad_norm_()."""
    if model.overlap is not None:
        raise RuntimeError("clip_grad_norm_() does not work with optimizer_in_backward(): the norm is known when all "
                           "gradients are, and the optimizer has used them by then. Use an ordinary optimizer")
    model.begin_step()
    if not model.step_open:
        return torch.zeros((), device=model.device)
    grads = [member.parameter.grad.as_subclass(torch.Tensor) for unit in model.trainable for member in unit.members
             if member.parameter.grad is not None]
    if norm_type == 2.0 and model.replicas is None:
        norm = math.sqrt(model.step_info().norm_squared)
    elif math.isinf(norm_type):
        here = max((float(grad.abs().max()) for grad in grads if grad.numel()), default=0.0)
        norm = model.group.agree(zerod.AgreeOp.MAX, [here])[0]
    else:
        here = sum(float(grad.double().abs().pow(norm_type).sum()) for grad in grads)
        norm = model.group.agree(zerod.AgreeOp.SUM, [here])[0] ** (1 / norm_type)
    factor = max_norm / (norm + 1e-6)
    if factor < 1.0:
        for device in {grad.device for grad in grads}:
            torch._foreach_mul_([grad for grad in grads if grad.device == device], factor)
    return torch.tensor(norm, device=model.device)
