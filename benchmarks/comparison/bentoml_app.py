"""BentoML, as its documentation has it: a service with workers, and a batchable API whose batches it sizes by itself."""

from pathlib import Path

import bentoml
import classifier
from classifier import SETTINGS


@bentoml.service(workers=SETTINGS["processes"], traffic={"timeout": SETTINGS.get("timeout_s", 60)})
class Classifier:
    def __init__(self):
        self.decode, self.classify, self.encode = classifier.decoder(), classifier.model(), classifier.encoder()

    @bentoml.api(batchable=True, max_batch_size=SETTINGS["batch_size"])
    def predict(self, request: list[Path]) -> list[dict]:
        outputs = self.classify([self.decode(path.read_bytes()) for path in request])
        return [self.encode(output) for output in outputs]
