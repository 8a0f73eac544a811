"""Handlers of pictures: as TorchServe's examples read them, with hooks, gradients and thresholds."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from PIL import Image

from tests.worker.idioms import tiny
from tests.worker.idioms.asked import apart, each_of, no_answer_is_wrong, together
from tests.worker.idioms.pictures import PICTURES, Reads, picture

torch = pytest.importorskip("torch")

COUNTS = [{**one, "top": i % 3 + 1} for i, one in enumerate(PICTURES)]


@together([*PICTURES, {"data": "no picture"}])
class AClassifier(Reads):
    """Reads pictures with Pillow, and answers the two likeliest labels."""


@together(PICTURES)
class WithTransforms(Reads):
    """Reads pictures by torchvision's transforms, which are the class's, as in TorchServe's handlers."""

    image_processing: Any = None

    def prepare(self) -> None:
        tiny.ensure_importable()
        transforms = pytest.importorskip("torchvision.transforms")
        steps = (
            transforms.Resize(8),
            transforms.CenterCrop(8),
            transforms.ToTensor(),
            transforms.Normalize([0.5] * 3, [0.2] * 3),
        )
        type(self).image_processing = transforms.Compose(steps)

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        raws = [base64.b64decode(row["body"]["data"]) for row in data]
        return torch.stack([self.image_processing(Image.open(io.BytesIO(raw)).convert("RGB")) for raw in raws])


@apart(COUNTS)
class HowManyLabels(Reads):
    """Keeps how many labels a request wants on itself."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.top = data[0]["body"]["top"]
        return super().preprocess(data)


@apart(COUNTS)
class HowManyLabelsByASetter(Reads):
    """Sets it by a method, as TorchServe's ImageClassifier has one."""

    def set_max_result_classes(self, count: int) -> None:
        self.top = count

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.set_max_result_classes(data[0]["body"]["top"])
        return super().preprocess(data)


@apart(COUNTS)
class HowManyLabelsInTheClass(Reads):
    """Sets it in its class."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        type(self).top = data[0]["body"]["top"]
        return super().preprocess(data)


@apart([{"data": picture(i, 10 + i)} for i in range(6)])
class TheSizeThatItHad(Reads):
    """Keeps the picture's size on itself, to put boxes into the picture as it was."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.width, self.height = Image.open(io.BytesIO(base64.b64decode(data[0]["body"]["data"]))).size
        return super().preprocess(data)

    def postprocess(self, data: Any) -> Any:
        return [{"box": [self.width / 2, self.height / 2], "scores": data[0].tolist()}]


@together(PICTURES)
class Segments(Reads):
    """Answers a class and its probability for each pixel."""

    def prepare(self) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Conv2d(3, 4, 1)

    def postprocess(self, data: Any) -> Any:
        scores, classes = torch.max(torch.nn.functional.softmax(data, dim=1), 1)
        return torch.stack((classes.type(data.type()), scores), dim=3).tolist()


class Detects(Reads):
    """Its inference gives a list of dicts of other lengths, as torchvision's detectors do."""

    threshold = 0.1

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        rows = super().inference(data)
        return [
            {"boxes": row[:4].view(1, 4), "labels": row.argmax().view(1), "scores": row.softmax(0).max().view(1)}
            for row in rows
        ]

    def postprocess(self, data: Any) -> Any:
        return [
            [
                {self.mapping[str(int(label))]: box.tolist(), "score": float(score)}
                for box, label, score in zip(found["boxes"], found["labels"], found["scores"], strict=True)
                if score >= self.threshold
            ]
            for found in data
        ]


@together(PICTURES)
class ADetector(Detects):
    """Answers the boxes above a threshold that is always the same."""


@apart([{**one, "threshold": (0.0, 2.0)[i % 2]} for i, one in enumerate(PICTURES)])
class TheThresholdOfEach(Detects):
    """Sets the threshold that a request wants in the class, by its name."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        TheThresholdOfEach.threshold = data[0]["body"]["threshold"]
        return super().preprocess(data)


class Transformer(Reads):
    """A vision transformer with its processor."""

    def prepare(self) -> None:
        library = tiny.transformers()
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        configuration = library.ViTConfig(image_size=16, patch_size=8, num_labels=4, initializer_range=0.5, **sizes)
        self.model = library.ViTForImageClassification(configuration).eval()
        self.processor = library.ViTImageProcessor(size={"height": 16, "width": 16})

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        raws = [base64.b64decode(row["body"]["data"]) for row in data]
        pictures = [Image.open(io.BytesIO(raw)).convert("RGB") for raw in raws]
        return self.processor(images=pictures, return_tensors="pt")

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self.model(**data).logits

    def postprocess(self, data: Any) -> Any:
        return [{self.model.config.id2label[int(row.argmax())]: float(row.max())} for row in data.softmax(-1)]


@together(PICTURES)
class ATransformer(Transformer):
    """The processor reads, the model's configuration has the labels."""


@apart([{**one, "normal": bool(i % 2)} for i, one in enumerate(PICTURES)])
class TheProcessorsOptions(Transformer):
    """Tells the processor whether this request's picture is normalised, and reads it in inference."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.processor.do_normalize = data[0]["body"]["normal"]
        return [row["body"]["data"] for row in data]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return super().inference(super().preprocess([{"body": {"data": one}} for one in data]))


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[Reads], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
