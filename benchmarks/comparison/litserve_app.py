"""LitServe, as its documentation has it: decode_request, batch, predict, unbatch, encode_response."""

import classifier
import litserve
from classifier import SETTINGS
from fastapi import UploadFile


class Classifier(litserve.LitAPI):
    def setup(self, device):
        self.decode, self.classify, self.encode = classifier.decoder(), classifier.model(), classifier.encoder()

    def decode_request(self, request: UploadFile):
        return self.decode(request.file.read())

    def batch(self, inputs):
        return inputs

    def predict(self, items):
        return self.classify(items)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return self.encode(output)


if __name__ == "__main__":
    api = Classifier(max_batch_size=SETTINGS["batch_size"], batch_timeout=SETTINGS["delay_ms"] / 1000)
    remedies = {"timeout": SETTINGS["timeout_s"], "restart_workers": True} if "timeout_s" in SETTINGS else {}
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=SETTINGS["processes"], **remedies)
    server.run(host="127.0.0.1", port=SETTINGS["port"], generate_client_file=False, log_level="error")
