# SPDX-License-Identifier: Apache-2.0
"""A character-level language model with backpropagation by hand.

    12 characters -> embedding -> hidden1, hidden2, hidden3 (tanh) -> output -> the same embedding -> the next character

A pass borrows one layer's arrays at a time from a Lender. The same code therefore runs on shards and on whole parameters.
"""
from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ContextManager, Iterator, NamedTuple, Optional, Protocol, Sequence

import numpy as np

from .common import LINE, written

CONTEXT, EMBED = 12, 16
# Uneven widths: the layers' shards differ.
WIDTHS = (CONTEXT * EMBED, 192, 160, 224, EMBED)
NAMES = ("embedding", "hidden1", "hidden2", "hidden3", "output")
EMBEDDING, OUTPUT = 0, len(NAMES) - 1
BETA1, BETA2, EPSILON = 0.9, 0.99, 1e-8
RATE = 0.01  # Adam's rate in the first step
TEMPERATURE = 0.7  # of written text; below 1 likely characters become more likely

Arrays = tuple[np.ndarray, np.ndarray]  # weight and bias, or their gradients


class Layer(NamedTuple):
    """A unit: a weight of shape `shape`, then a bias. Initial weights are uniform within +-scale, biases 0."""

    name: str
    shape: tuple[int, int]
    bias: int
    scale: float

    @property
    def weights(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def numel(self) -> int:
        return self.weights + self.bias

    def arrays(self, flat: np.ndarray) -> Arrays:
        return flat[:self.weights].reshape(self.shape), flat[self.weights:]

    def initial(self, seed: int) -> np.ndarray:
        values = np.zeros(self.numel, np.float32)
        random = np.random.default_rng([seed, NAMES.index(self.name)]).random(self.weights, np.float32)
        values[:self.weights] = self.scale * (2 * random - 1)
        return values


def make_layers(vocabulary: int) -> list[Layer]:
    dense = [Layer(name, (rows, columns), columns, math.sqrt(3 / rows))
             for name, rows, columns in zip(NAMES[1:], WIDTHS, WIDTHS[1:])]
    return [Layer(NAMES[EMBEDDING], (vocabulary, EMBED), vocabulary, 0.5), *dense]


@dataclass
class Plan:
    """The plan, known to all processes of a run. `tokens` are the text's characters, as indices into `alphabet`."""

    tokens: np.ndarray
    alphabet: np.ndarray
    ranks: int
    batch: int
    steps: int
    seed: int
    socket: str = ""
    job: str = ""
    pause_step: int = 0  # in its forward all ranks wait for the launcher; 0: never

    def __post_init__(self) -> None:
        self.layers = make_layers(len(self.alphabet))

    @property
    def numel(self) -> int:
        return sum(layer.numel for layer in self.layers)

    @property
    def unsharded_bytes(self) -> int:
        """Bytes of parameters, gradients and two moments in one process."""
        return 4 * 4 * self.numel

    def initial(self) -> list[np.ndarray]:
        return [layer.initial(self.seed) for layer in self.layers]

    def samples(self, step: int, rank: int) -> Arrays:
        """A rank's batch: (batch, CONTEXT) characters, and the (batch,) characters that follow. Any process computes the same."""
        places = np.random.default_rng([self.seed, step, rank]).integers(len(self.tokens) - CONTEXT, size=self.batch)
        windows = self.tokens[places[:, None] + np.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, -1]

    def rate(self, step: int) -> float:
        """The learning rate of step 1, 2, ..., which falls to zero."""
        return RATE * (1 - (step - 1) / self.steps)


class Lender(Protocol):
    """Lends arrays of one layer, which are valid inside the `with`."""

    def parameters(self, layer: int, tag: str, following: Optional[int] = None) -> ContextManager[Arrays]:
        """The layer's parameters. `following` is the layer that is needed next."""

    def backward(self) -> ContextManager[None]:
        """Surrounds all gradients of a step."""

    def gradient(self, layer: int) -> ContextManager[Arrays]:
        """Arrays to write. Their former content is undefined."""


class Whole:
    """All layers of one process."""

    def __init__(self, layers: Sequence[Layer], values: list[np.ndarray]) -> None:
        self.layers, self.values = layers, values
        self.gradients = [np.empty_like(each) for each in values]

    def parameters(self, layer: int, tag: str, following: Optional[int] = None) -> ContextManager[Arrays]:
        return nullcontext(self.layers[layer].arrays(self.values[layer]))

    def backward(self) -> ContextManager[None]:
        return nullcontext()

    def gradient(self, layer: int) -> ContextManager[Arrays]:
        return nullcontext(self.layers[layer].arrays(self.gradients[layer]))


# ---- Passes ----


def forward(inputs: np.ndarray, lender: Lender) -> list[np.ndarray]:
    """The outputs of all layers, those of the lookup first."""
    with lender.parameters(EMBEDDING, "lookup", 1) as (weight, _):
        outputs = [weight[inputs].reshape(len(inputs), -1)]
    for layer in range(1, OUTPUT + 1):
        with lender.parameters(layer, "forward", (layer + 1) % len(NAMES)) as (weight, bias):
            output = outputs[-1] @ weight + bias
        outputs.append(output if layer == OUTPUT else np.tanh(output))
    return outputs


def forward_backward(inputs: np.ndarray, targets: np.ndarray, lender: Lender) -> float:
    """Writes the gradients of all layers. Returns the mean cross-entropy, in nats."""
    outputs = forward(inputs, lender)
    rows = np.arange(len(targets))
    with lender.backward(), lender.gradient(EMBEDDING) as (tied, tied_bias):
        with lender.parameters(EMBEDDING, "logits", OUTPUT) as (weight, bias):
            logits = outputs[-1] @ weight.T + bias
            logits -= logits.max(axis=1, keepdims=True)
            error = np.exp(logits)
            sums = error.sum(axis=1)
            loss = np.log(sums) - logits[rows, targets]
            error /= sums[:, None]
            error[rows, targets] -= 1
            error /= len(targets)
            below = error @ weight
        np.matmul(error.T, outputs[OUTPUT], out=tied)
        error.sum(axis=0, out=tied_bias)
        for layer in range(OUTPUT, 0, -1):
            error = below if layer == OUTPUT else below * (1 - outputs[layer] ** 2)
            with lender.parameters(layer, "backward", layer - 1 or None) as (weight, _):
                below = error @ weight.T
            with lender.gradient(layer) as (gradient, bias_gradient):
                np.matmul(outputs[layer - 1].T, error, out=gradient)
                error.sum(axis=0, out=bias_gradient)
        places = (np.arange(len(tied))[:, None] == inputs.ravel()).astype(below.dtype)
        tied += places @ below.reshape(-1, EMBED)
    return float(loss.mean(dtype=np.float64))


def adam(values: np.ndarray, gradient: np.ndarray, moments: np.ndarray, step: int, rate: float) -> None:
    """One step on any slice of the parameters. The two moments start as zeros."""
    first, second = moments
    first *= BETA1
    first += (1 - BETA1) * gradient
    second *= BETA2
    second += (1 - BETA2) * gradient * gradient
    values -= rate / (1 - BETA1**step) * first / (np.sqrt(second / (1 - BETA2**step)) + EPSILON)


def write(plan: Plan, values: list[np.ndarray]) -> str:
    """Writes text by the model, on one line. Each character is drawn from the model's prediction."""
    return written(_draw(plan, Whole(plan.layers, values)))


def _draw(plan: Plan, whole: Whole) -> Iterator[int]:
    random, window = np.random.default_rng(plan.seed), plan.tokens[:CONTEXT]
    for _ in range(8 * LINE):
        with whole.parameters(EMBEDDING, "") as (weight, bias):
            logits = (forward(window[None], whole)[-1] @ weight.T + bias)[0]
        odds = np.cumsum(np.exp((logits - logits.max()) / TEMPERATURE))
        token = min(int(np.searchsorted(odds, random.random() * odds[-1])), len(odds) - 1)
        window = np.append(window[1:], token)
        yield plan.alphabet[token]
