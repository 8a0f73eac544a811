"""Answer batches of n MNIST requests with a model that does nothing: for callgrind (instructions.py).

    python idle_pipeline.py TREE N BATCHES

Decoding runs in this thread, for threads that wait spin, and each run would have another number of instructions.
"""

import gc
import importlib.util
import sys
from pathlib import Path
from typing import Any

tree, n, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, tree)
gc.disable()

import numpy as np  # noqa: E402

from slotwise.worker import Headers, Pipeline, Request, Settings, handler  # noqa: E402

try:
    from slotwise.worker.decoding import decoders
except ImportError:  # a tree of before
    from slotwise.worker import decoders  # type: ignore[no-redef,attr-defined]

spec = importlib.util.spec_from_file_location("tensor_classifier", Path(tree, "handlers", "tensor_classifier.py"))
assert spec is not None
assert spec.loader is not None
given = importlib.util.module_from_spec(spec)
spec.loader.exec_module(given)


def together(self: Any, call: Any, requests: Any, share_s: float, until: float) -> list[Any]:
    return [call(request) for request in requests]


def idle(self: Any, model_dir: Path, settings: Settings) -> Any:
    return lambda inputs: np.full((len(inputs), 10), 0.1, np.float32)


decoders.Decoders.run = together  # type: ignore[method-assign]
handler.BatchHandler.load = idle  # type: ignore[method-assign]
model = {"input": {"shape": [1, 28, 28]}, "labels": [str(i) for i in range(10)], "output": "probabilities"}
pipeline = Pipeline.start(given.TensorClassifier(), Path("nowhere"), Settings(batch_size=32, model=model, decode_threads=1))
body = np.linspace(0, 1, 784, dtype="f4").tobytes()
requests = [Request(body, Headers({"content-type": "application/octet-stream"}), str(i)) for i in range(n)]
for _ in range(batches):
    answers = pipeline.run(requests).answers
assert [answer.status for answer in answers] == [200] * n
