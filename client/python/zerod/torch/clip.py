# SPDX-License-Identifier: Apache-2.0
"""Norms and clipping of gradients over all ranks."""
from __future__ import annotations

import math

import torch

from .model import Model
from .rules import norms


def clip_grad_norm_(model: Model, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """See zerod.torch.clip_grad_norm_()."""
    norm_type = float(norm_type)
    if norm_type == 0 or math.isnan(norm_type):
        raise ValueError(f"norm_type is {norm_type}, which gives no norm: use 2, another number that is not 0, inf or -inf")
    if model.gradients.fetcher.runs_optimizer:
        raise RuntimeError("clip_grad_norm_() does not work with optimizer_in_backward(): the norm is known when all "
                           "gradients are, and the optimizer has used them by then. Use an ordinary optimizer")
    model.steps.begin(waits=True)
    with torch._C.DisableTorchFunctionSubclass():
        gradients = [member.parameter.grad for unit in model.trainable for member in unit.members
                     if member.parameter.grad is not None]
    if not gradients:
        return torch.zeros((), device=model.device)
    # The daemon's norm of its sums is not used: the program may have edited its gradients since.
    each = torch.tensor(norms(gradients, norm_type), dtype=torch.float64)
    norm = float(torch.linalg.vector_norm(each, norm_type))
    factor = max_norm / (norm + 1e-6)
    if not factor >= 1.0:  # of NaN as well
        for device in {gradient.device for gradient in gradients}:
            torch._foreach_mul_([gradient for gradient in gradients if gradient.device == device], factor)
    return torch.tensor(norm, dtype=torch.promote_types(gradients[0].dtype, torch.float32), device=model.device)
