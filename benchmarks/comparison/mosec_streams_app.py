"""Mosec's SSEWorker, as its example of server-sent events has it: a batch streams until all of it are whole."""

from classifier import SETTINGS
from mosec import Server, SSEWorker
from step_model import StepModel


class Decoder(SSEWorker):
    def __init__(self):
        super().__init__()
        self.model = StepModel(SETTINGS)

    def deserialize(self, data):
        return data

    def forward(self, data):
        new = {i: self.model.read(body) for i, body in enumerate(data)}
        while new or self.model.streams:
            told, new = self.model.turn(new), {}
            for each in told:
                if each.text is not None:
                    self.send_stream_event(each.text, index=each.key)
        return data


if __name__ == "__main__":
    server = Server()
    server.append_worker(Decoder, max_batch_size=SETTINGS["batch_size"], max_wait_time=SETTINGS["delay_ms"])
    server.run()
