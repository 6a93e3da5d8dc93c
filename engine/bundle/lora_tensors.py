"""The tensors by which a linear graph takes adapters: y += ((x a^T) * mask) b, for every matrix that they may change.

J = ranks of all adapters that a pass has rows of, side by side; the mask [1, N, J] says which of them are a row's own.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from engine.bundle.forms import Form
from engine.bundle.lora import LoraModule

FLOAT = "float32"
A, B, MASK = "lora_a_", "lora_b_", "lora_mask_"


def ranks_axis(module: LoraModule) -> str:
    """The name of the free axis J of one matrix."""
    return f"lora_ranks_{module.name}"


def lora_forms(modules: Iterable[LoraModule], rows: str) -> dict[str, Form]:
    """Inputs of a graph whose layers these matrices are in."""
    forms: dict[str, Form] = {}
    for module in modules:
        ranks = ranks_axis(module)
        forms[A + module.name] = (FLOAT, (ranks, module.inputs))
        forms[B + module.name] = (FLOAT, (ranks, module.outputs))
        forms[MASK + module.name] = (FLOAT, (1, rows, ranks))
    return forms


def no_adapters(modules: Iterable[LoraModule], rows: int) -> dict[str, NDArray[np.generic]]:
    """The inputs of a pass of so many rows that all have no adapter: one rank of zeros."""
    tensors: dict[str, NDArray[np.generic]] = {}
    for module in modules:
        tensors[A + module.name] = np.zeros((1, module.inputs), np.float32)
        tensors[B + module.name] = np.zeros((1, module.outputs), np.float32)
        tensors[MASK + module.name] = np.zeros((1, rows, 1), np.float32)
    return tensors
