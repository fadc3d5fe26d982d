# SPDX-License-Identifier: Apache-2.0
"""peft's merge_and_unload() of sharded modules. Tried with peft 0.21."""
from __future__ import annotations

from typing import Any

import torch

from ..torch.sharded import as_plain
from .late import replaces


def install() -> None:
    """Harmless when repeated."""
    from peft.tuners.tuners_utils import BaseTuner

    @replaces(BaseTuner, "_unload_and_optionally_merge")
    def unload(plain: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        """Merges masters, not weights of param_dtype. The returned part of the sharded module runs like the whole."""
        its = self.model.__dict__.get("_zerod_part_of")
        model = None if its is None else its()
        if model is None:
            return plain(self, *args, **kwargs)
        with torch.no_grad(), as_plain():
            made = plain(self, *args, **kwargs)
        model.enter_by(made)
        return made
