# SPDX-License-Identifier: Apache-2.0
"""Support for other packages with sharded modules, in one file for each package."""
from __future__ import annotations

import warnings
from functools import partial
from importlib.metadata import version
from typing import Callable


def install() -> None:
    """Installs the support of packages that the program has imported or will import. Harmless when repeated."""
    from . import accelerate, peft, torch, transformers
    from .late import when_imported

    torch.install()
    when_imported("accelerate.accelerator", partial(_try, "accelerate", accelerate.install, "1.10 to 1.15"))
    when_imported("peft.tuners.tuners_utils", partial(_try, "peft", peft.install, "0.21"))
    when_imported("transformers.trainer", partial(_try, "transformers", transformers.install, "4.57 to 5.24"))


def _try(package: str, change: Callable[[], None], tried: str) -> None:
    try:
        change()
    except (ImportError, AttributeError) as missing:
        warnings.warn(f"{package} {version(package)} does not work with sharded modules: {missing}. Versions {tried} were tried")
