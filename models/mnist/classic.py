"""The classic MNIST network: two 5x5 convolutions and one product, 1.2 million multiplications and additions a digit."""

from __future__ import annotations

from torch import Tensor, nn


class Classic(nn.Module):
    """About six thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *self._stage(1, 8, (2, 2, 2, 2), 2),  # [b, 8, 14, 14]
            *self._stage(8, 16, (2, 0, 2, 0), 3),  # [b, 16, 4, 4]; the pooling never looks at a 13th and 14th row or column
            nn.Flatten(),
            nn.Linear(16 * 4 * 4, 10),
        )

    @staticmethod
    def _stage(c_in: int, c_out: int, border: tuple[int, int, int, int], pool: int) -> list[nn.Module]:
        convolution = nn.Conv2d(c_in, c_out, 5, bias=False)
        return [nn.ZeroPad2d(border), convolution, nn.BatchNorm2d(c_out), nn.ReLU(), nn.MaxPool2d(pool)]

    def forward(self, x: Tensor) -> Tensor:  # [b, 1, 28, 28] -> [b, 10] logits
        logits: Tensor = self.layers(x)
        return logits
