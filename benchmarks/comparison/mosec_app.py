"""Mosec, as its ResNet-50 example has it: a stage that decodes and refuses, and one that computes in batches."""

import classifier
from classifier import SETTINGS
from mosec import Server, ValidationError, Worker


class Preprocess(Worker):
    def __init__(self):
        super().__init__()
        self.decode = classifier.decoder()

    def deserialize(self, data):
        return data

    def forward(self, data):
        try:
            return self.decode(data)
        except Exception as error:
            raise ValidationError(f"cannot decode: {error}") from error


class Inference(Worker):
    def __init__(self):
        super().__init__()
        self.classify, self.encode = classifier.model(), classifier.encoder()

    def forward(self, data):
        return self.classify(data if isinstance(data, list) else [data])

    def serialize(self, data):
        return super().serialize(self.encode(data))


if __name__ == "__main__":
    server, delay = Server(), max(1, round(SETTINGS["delay_ms"]))
    server.append_worker(Preprocess, num=SETTINGS["processes"])
    server.append_worker(Inference, num=SETTINGS["processes"], max_batch_size=SETTINGS["batch_size"], max_wait_time=delay)
    server.run()
