# SPDX-License-Identifier: Apache-2.0
"""transformers.Trainer with sharded modules. Tried with transformers 4.57 to 5.24.

In a checkpoint, rank 0 writes the weights in the format of save_pretrained(). The optimizer's state is in a folder of
torch.distributed.checkpoint, in which every rank writes its own slices. Any number of ranks can resume from it.
"""
from __future__ import annotations

import os
from functools import wraps
from types import SimpleNamespace
from typing import Any

from ..torch import api, whole
from .accelerate import FOLDER, bare, check_batches, is_sharded, owner_of

_ELSEWHERE = {"zerod": f"the optimizer's state is in the folder {FOLDER} beside this file: resume with a module from zerod.torch.shard()"}


def install() -> None:
    """Harmless when repeated."""
    from transformers.trainer import Trainer
    from transformers.trainer_utils import has_length

    start = Trainer.set_initial_training_values
    save, load, save_model = Trainer._save_optimizer_and_scheduler, Trainer._load_optimizer_and_scheduler, Trainer.save_model
    if hasattr(save, "_zerod"):
        return

    @wraps(start)
    def start_training(self: Any, args: Any, dataloader: Any, *others: Any) -> Any:
        # With max_steps every rank makes the same number of steps. Epochs then only matter for what happens at their ends.
        alike = args.max_steps > 0 and args.gradient_accumulation_steps == 1 and "epoch" not in (args.save_strategy, args.eval_strategy,
                                                                                                 args.logging_strategy)
        if api.is_sharded(self.model) and not alike:
            from accelerate.utils import gather_object

            check_batches(gather_object([len(dataloader) if has_length(dataloader) else None]))
        return start(self, args, dataloader, *others)

    @wraps(save)
    def save_optimizer(self: Any, output_dir: str) -> None:
        if is_sharded(self.optimizer) and owner_of(self.optimizer) is not getattr(self.model, "_zerod_model", None):
            raise ValueError("trainer.model is not the sharded module any more whose parameters the optimizer steps: make another Trainer "
                             "for another model")
        if not api.is_sharded(self.model):
            return save(self, output_dir)
        kept, self.optimizer = self.optimizer, SimpleNamespace(state_dict=lambda: _ELSEWHERE)
        try:
            save(self, output_dir)  # the scheduler's state, and a file from which load() knows that a checkpoint exists
        finally:
            self.optimizer = kept
        api.save(os.path.join(output_dir, FOLDER), self.model, bare(kept))

    @wraps(load)
    def load_optimizer(self: Any, checkpoint: Any) -> None:
        if checkpoint is None or not api.is_sharded(self.model) or not os.path.isdir(os.path.join(checkpoint, FOLDER)):
            return load(self, checkpoint)
        kept, self.optimizer = self.optimizer, SimpleNamespace(load_state_dict=lambda _: None)
        try:
            load(self, checkpoint)
        finally:
            self.optimizer = kept
        api.load(os.path.join(checkpoint, FOLDER), self.model, bare(kept))

    @wraps(save_model)
    def save_weights(self: Any, output_dir: Any = None, _internal_call: bool = False) -> None:
        if not api.is_sharded(self.model):
            return save_model(self, output_dir, _internal_call)
        with whole.states_on_cpu(self.args.should_save):
            weights = self.model.state_dict()  # every rank takes part
        write = self._save
        self._save = lambda folder=None, state_dict=None: write(folder, state_dict=weights)
        try:
            save_model(self, output_dir, _internal_call)
        finally:
            del self._save

    save_optimizer._zerod = True  # type: ignore[attr-defined]
    Trainer.set_initial_training_values = start_training
    Trainer._save_optimizer_and_scheduler, Trainer._load_optimizer_and_scheduler, Trainer.save_model = \
        save_optimizer, load_optimizer, save_weights
