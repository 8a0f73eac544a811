"""A network behind LitServe, with the natural code of its documentation."""

import os

from slotwise.worker.engines.torchvision_compat import ensure_importable

ensure_importable()

import litserve as ls  # noqa: E402
import torch  # noqa: E402
from fastapi import UploadFile  # noqa: E402
from PIL import Image  # noqa: E402
from torchvision import models  # noqa: E402

from slotwise.zoo.networks import network  # noqa: E402


class ImageClassifier(ls.LitAPI):
    def setup(self, device):
        self.model = network(os.environ["NETWORK"], 1000, "none")
        self.model.load_state_dict(torch.load(os.environ["WEIGHTS"], weights_only=True))
        self.model.to(device).eval()
        self.transform = models.ResNet18_Weights.DEFAULT.transforms()

    def decode_request(self, request: UploadFile):
        image = Image.open(request.file).convert("RGB")
        return self.transform(image)

    def batch(self, inputs):
        return torch.stack(inputs)

    def predict(self, x):
        with torch.inference_mode():
            return self.model(x).softmax(dim=1)

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        probabilities, labels = output.topk(5)
        return {"labels": labels.tolist(), "probabilities": probabilities.tolist()}


if __name__ == "__main__":
    api = ImageClassifier(max_batch_size=int(os.environ["BATCH_SIZE"]), batch_timeout=0.005)
    ls.LitServer(api, accelerator="cpu").run(
        host="127.0.0.1", port=int(os.environ["PORT"]), generate_client_file=False, log_level="error"
    )
