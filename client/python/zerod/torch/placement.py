# SPDX-License-Identifier: Apache-2.0
"""The units of a model with offload that remain on the device, if shard(device_budget=...) allows some.

The choice depends only on the layout, the number of ranks and the arguments. All ranks therefore make the same choice, and plan()
makes it without a daemon. A block remains as a whole, because its units are gathered together. The blocks that remain are spread
evenly across the model, so that each copy of an offloaded block has the time of several blocks. The root is first: no block
computes while its weights arrive at a step's start, or while its gradients leave at a backward's end.
"""
from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Optional

from .footprint import unit_bytes
from .layout import BlockPlan
from .offload import ON_DEVICE, Placement, offloaded


def place(blocks: list[BlockPlan], world: int, offload: Optional[str], device_budget: int) -> int:
    """Sets each unit's placement. Returns how many bytes of the budget are used by units that remain on the device."""
    host = offloaded(offload)

    def device_bytes(block: BlockPlan, placement: Placement) -> int:
        return sum(unit_bytes(block.name, unit, world, placement).device for unit in block.units)

    blocks = [block for block in blocks if block.units]
    costs = [device_bytes(block, ON_DEVICE) - device_bytes(block, host) for block in blocks]
    stay = set(staying(costs, device_budget)) if device_budget else set()
    for index, block in enumerate(blocks):
        for unit in block.units:
            unit.placement = ON_DEVICE if index in stay else host
    return sum(costs[index] for index in stay)


def staying(costs: list[int], budget: int) -> list[int]:
    """The indices of blocks that remain: as many as fit when they are spread evenly, starting with the first one.

    Of n blocks k are those at 0, n/k, 2n/k, ..., rounded up. Blocks that are larger than the budget do not count. If blocks have
    different sizes, the rest of the budget is for the first blocks that still fit.
    """
    fitting = [index for index, cost in enumerate(costs) if cost <= budget]
    most = bisect_right(list(accumulate(sorted(costs[index] for index in fitting))), budget)
    chosen: set[int] = set()
    for count in range(most, 0, -1):
        spread = {fitting[-(-number * len(fitting) // count)] for number in range(count)}
        if sum(costs[index] for index in spread) <= budget:
            chosen = spread
            break
    left = budget - sum(costs[index] for index in chosen)
    for index in fitting:
        if index not in chosen and costs[index] <= left:
            chosen.add(index)
            left -= costs[index]
    return sorted(chosen)
