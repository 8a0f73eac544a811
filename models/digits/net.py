"""The network: two convolutions a stage, two stages, 28x28 to 10 logits."""

from __future__ import annotations

from torch import Tensor, nn


class Net(nn.Module):
    """About 32 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *self._stage(1, 16),  # [b, 16, 14, 14]
            *self._stage(16, 32),  # [b, 32, 7, 7]
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(32 * 7 * 7, 10),
        )

    @staticmethod
    def _stage(c_in: int, c_out: int) -> list[nn.Module]:
        convolutions: list[nn.Module] = []
        for c in (c_in, c_out):
            convolutions += [nn.Conv2d(c, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU()]
        return [*convolutions, nn.MaxPool2d(2)]

    def forward(self, x: Tensor) -> Tensor:  # [b, 1, 28, 28] -> [b, 10] logits
        logits: Tensor = self.layers(x)
        return logits
