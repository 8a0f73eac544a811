"""The classic MNIST network: two 5x5 convolutions and one product, 1.6 million multiplications and additions a digit."""

from __future__ import annotations

from torch import Tensor, nn


class Classic(nn.Module):
    """About six thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *self._stage(1, 8, 2),  # [b, 8, 14, 14]
            *self._stage(8, 16, 3),  # [b, 16, 4, 4]
            nn.Flatten(),
            nn.Linear(16 * 4 * 4, 10),
        )

    @staticmethod
    def _stage(c_in: int, c_out: int, pool: int) -> list[nn.Module]:
        return [nn.Conv2d(c_in, c_out, 5, padding=2, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(), nn.MaxPool2d(pool)]

    def forward(self, x: Tensor) -> Tensor:  # [b, 1, 28, 28] -> [b, 10] logits
        logits: Tensor = self.layers(x)
        return logits
