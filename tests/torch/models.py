# SPDX-License-Identifier: Apache-2.0
"""Models that the tests train."""
from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


DEVICE = os.environ.get("ZEROD_TORCH_DEVICE", "cpu")


class MLP(nn.Module):
    """Sizes that no world divides."""

    def __init__(self, width: int = 37, depth: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(13, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(depth))
        self.last = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.last(x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """With tied embeddings. `wrap` runs a block."""

    def __init__(self, depth: int = 3, width: int = 24, heads: int = 2, vocabulary: int = 53, length: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.vocabulary = vocabulary
        self.length = length
        self.wrap = lambda block, x: block(x)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.tokens(index) + self.positions(torch.arange(index.shape[1], device=index.device))
        for block in self.blocks:
            x = self.wrap(block, x)
        return self.head(self.norm(x))


def dtype_of(module: nn.Module) -> torch.dtype:
    """The dtype of the module's computation: the parameters of a sharded module are masters of another dtype."""
    model = getattr(module, "_zerod_model", None)
    return model.units[0].dtype if model is not None else next(module.parameters()).dtype


def numbers(rank: int, micro: int, *shape: int) -> torch.Tensor:
    """The batch of a rank's micro-batch."""
    return torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(1000 * micro + rank), device="cpu").to(DEVICE)


def mlp_loss(module: nn.Module, rank: int, micro: int) -> torch.Tensor:
    x = numbers(rank, micro, 6, 13).to(dtype_of(module))
    loss = module(x).float().square().mean()
    loss.backward()
    return loss.detach().cpu()


def partly_frozen() -> MLP:
    model = MLP()
    model.layers[0].requires_grad_(False)
    return model


def freezing_loss(module: nn.Module, rank: int, micro: int) -> torch.Tensor:
    """mlp_loss() of partly_frozen(), which freezes and unfreezes blocks before."""
    if rank == 0 or hasattr(module, "_zerod_model"):  # one process does it once
        if micro in (1, 3):
            module.layers[1].requires_grad_(micro == 3)
        if micro == 2:
            module.layers[0].requires_grad_(True)
    return mlp_loss(module, rank, micro)


def tokens(module: nn.Module, rank: int, micro: int) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(1000 * micro + rank)
    return torch.randint(module.vocabulary, (2, module.length), generator=generator, device="cpu").to(DEVICE)


def gpt_loss(module: nn.Module, rank: int, micro: int) -> torch.Tensor:
    batch = tokens(module, rank, micro)
    logits = module(batch[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    return loss.detach().cpu()


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1)


def adamw_foreach(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1, foreach=True)


def adamw_fused(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1, fused=True)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def spoil(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Before a step: writes what it writes, and ends the process."""
    with torch.no_grad():
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.data.fill_(7.0)
            for value in optimizer.state[parameter].values():
                value.fill_(9.0)
    os._exit(9)
