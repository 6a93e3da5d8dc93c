"""Muon: momentum whose update is made orthogonal, for the weight matrices."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_QUINTIC = (3.4445, -4.7750, 2.0315)


class Muon(Optimizer):
    """Step each matrix along its orthogonalised Nesterov momentum. half: orthogonalise in bfloat16."""

    def __init__(
        self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.02, half: bool = False
    ) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "decay": decay})
        self._dtype = torch.bfloat16 if half else torch.float32

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update every matrix; those of one shape are orthogonalised together."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"]:
                shapes.setdefault(matrix.shape, []).append(matrix)
            for matrices in shapes.values():
                self._step_together(matrices, group)

    def _step_together(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        updates = []
        for matrix in matrices:
            assert matrix.grad is not None
            buffer = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
            buffer.lerp_(matrix.grad, 1 - group["momentum"])
            updates.append(matrix.grad.lerp(buffer, group["momentum"]))
        scale = max(1.0, matrices[0].shape[0] / matrices[0].shape[1]) ** 0.5
        found = orthogonal(torch.stack(updates).to(self._dtype))
        for matrix, update in zip(matrices, found.to(matrices[0].dtype), strict=True):
            matrix.mul_(1 - group["lr"] * group["decay"])
            matrix.add_(update, alpha=-group["lr"] * scale)


def orthogonal(batch: Tensor, rounds: int = 5) -> Tensor:
    """Approximate the nearest orthogonal matrix of each of [n, rows, columns] by a Newton-Schulz iteration."""
    linear, cubic, quintic = _QUINTIC
    tall = batch.shape[-2] > batch.shape[-1]
    current = batch.mT if tall else batch
    current = current / (current.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        square = current @ current.mT
        polynomial = torch.baddbmm(square, square, square, beta=cubic, alpha=quintic)
        current = torch.baddbmm(current, polynomial, current, beta=linear)
    return current.mT if tall else current
