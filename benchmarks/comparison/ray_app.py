"""Ray Serve, as its documentation has it: replicas, and @serve.batch around the model; a request decodes for itself."""

import classifier
import ray
from classifier import SETTINGS
from ray import serve

from slotwise.server.ray.cluster import LOOPBACK, stay_on_loopback

REPLICAS, BATCH, TIMEOUT_S = SETTINGS["processes"], SETTINGS["batch_size"], SETTINGS.get("timeout_s")
HEALTH = {"health_check_period_s": 1, "health_check_timeout_s": TIMEOUT_S} if TIMEOUT_S else {}


@serve.deployment(num_replicas=REPLICAS, ray_actor_options={"num_cpus": 1}, max_ongoing_requests=64, **HEALTH)
class Classifier:
    def __init__(self):
        self.decode, self.classify, self.encode = classifier.decoder(), classifier.model(), classifier.encoder()

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=SETTINGS["delay_ms"] / 1000)
    async def batched(self, items):
        return self.classify(items)

    async def __call__(self, request):
        return self.encode(await self.batched(self.decode(await request.body())))


if __name__ == "__main__":
    quiet = {"log_level": "ERROR", "enable_access_log": False}
    stay_on_loopback()  # it waits for its node for longer, too: 30 s are few on a busy machine
    own = {"address": "local", "_node_ip_address": LOOPBACK, "include_dashboard": False}
    ray.init(**own, num_cpus=REPLICAS, logging_level="ERROR", log_to_driver=False)
    http = {"host": LOOPBACK, "port": SETTINGS["port"], "request_timeout_s": TIMEOUT_S}
    serve.start(http_options=http, logging_config=quiet)
    serve.run(Classifier.bind(), logging_config=quiet, blocking=True)
