# SPDX-License-Identifier: Apache-2.0
"""zerod.torch: a PyTorch model trains through zerod.

    import zerod.torch as zt
    model = zt.shard(MyModel())                       # job, rank, device from torchrun's environment
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    ...                                               # the training loop stays as it is

docs/pytorch.md describes what is supported, and the costs.
"""
try:
    import torch  # noqa: F401
except ModuleNotFoundError as missing:
    raise ImportError(f"zerod.torch needs torch 2.4 or newer: {missing}") from None

from .api import (abandon, barrier, clip_grad_norm_, commit, committed_step, full_grad, full_parameters, full_state, is_sharded, join,
                  load, load_state_dict, model_of, no_sync, optimizer_in_backward, plan, recover, save, save_commit, set_full_state, shard, share, skip,
                  state_dict, summary, unshard)
from .optimizers import SGD, Adam, AdamW
from .sharded import NeedsWhole, ShardedParameter, ShardedTensor, ShardedWrite
from .steps import StepAbandoned, StepTorn
from zerod import Status, errors

errors.HINTS.append((Status.PEER_LOST, "ended normally",
                     "call zt.barrier(model) at the end of the program, so that no rank ends while others train"))

__all__ = ["Adam", "AdamW", "NeedsWhole", "SGD", "ShardedParameter", "ShardedTensor", "ShardedWrite", "StepAbandoned", "StepTorn",
           "abandon", "barrier", "clip_grad_norm_", "commit", "committed_step", "full_grad", "full_parameters", "full_state", "is_sharded",
           "join", "load", "load_state_dict", "model_of", "no_sync", "optimizer_in_backward", "plan", "recover", "save", "save_commit", "set_full_state",
           "shard", "share", "skip", "state_dict", "summary", "unshard"]
