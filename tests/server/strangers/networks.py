"""Tiny networks for the default handlers, as texts for --model-file."""

LINEAR = """
import torch

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, rows):
        return self.linear(rows)
"""
CLASSIFIER = """
from torchvision.models.resnet import BasicBlock, ResNet

class ImageClassifier(ResNet):
    def __init__(self):
        super().__init__(BasicBlock, [2, 2, 2, 2])
"""
SEGMENTER = """
import torch

class Segmenter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 1)

    def forward(self, pictures):
        return {"out": self.conv(pictures)}
"""
DETECTOR = """
import torch

class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 1, 1)

    def forward(self, pictures):
        found = []
        for picture in pictures:
            mean = picture.mean() + 0 * self.conv(picture[None]).sum()
            found.append({"boxes": torch.stack([mean] * 4)[None], "labels": torch.tensor([1]), "scores": torch.tensor([0.9])})
        return found
"""
TEXTS = """
import torch

class Texts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(50, 8)
        self.linear = torch.nn.Linear(8, 3)

    def forward(self, tokens, offsets):
        return self.linear(self.embedding(tokens, offsets))
"""
