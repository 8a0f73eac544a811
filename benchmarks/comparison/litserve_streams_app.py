"""LitServe's ContinuousBatchingLoop, with what it calls: add_request, has_capacity, has_active_requests and step."""

from collections import deque

import litserve
from classifier import SETTINGS
from litserve.loops import ContinuousBatchingLoop, Output
from litserve.utils import LitAPIStatus
from step_model import StepModel


class Decoder(litserve.LitAPI):
    def setup(self, device):
        self.model, self.waiting, self.refused = StepModel(SETTINGS), deque(), deque()

    def decode_request(self, request):
        return self.model.read(request)

    def add_request(self, uid, request):
        try:
            self.waiting.append((uid, self.decode_request(request)))
        except Exception:
            if not self.model.careful:
                raise
            self.refused.append(uid)

    def has_capacity(self):
        return self.model.room > len(self.waiting)

    def has_active_requests(self):
        return bool(self.model.streams or self.waiting or self.refused)

    def step(self, previous):
        if previous is None:  # the loop begins anew: whom it has dropped after an error must go here, too
            self.forget()
        refused = [self.refused.popleft() for _ in range(len(self.refused))]
        new = dict(self.waiting.popleft() for _ in range(len(self.waiting)))
        try:
            told = self.model.turn(new)
        except Exception:
            self.model.clear()
            raise
        outputs = [Output(uid, "bad request", LitAPIStatus.ERROR) for uid in refused]
        for each in told:
            if each.text is not None:
                outputs.append(Output(each.key, each.text, LitAPIStatus.OK))
            if each.ended:
                outputs.append(Output(each.key, "", LitAPIStatus.ERROR if each.failed else LitAPIStatus.FINISH_STREAMING))
        return outputs or [Output(told[0].key, "", LitAPIStatus.OK)]

    def forget(self):
        known = self.loop.response_queue_ids
        for uid in [uid for uid in self.model.streams if uid not in known]:
            self.model.leave(uid)
        self.waiting = deque(each for each in self.waiting if each[0] in known)

    def encode_response(self, output):
        return {"text": output} if output else ""


if __name__ == "__main__":
    api = Decoder(stream=True, loop=ContinuousBatchingLoop(), max_batch_size=SETTINGS["batch_size"])
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=1, timeout=SETTINGS["timeout_s"], restart_workers=True
    )
    server.run(host="127.0.0.1", port=SETTINGS["port"], generate_client_file=False, log_level="error")
