"""Ask a gateway with KServe's own client, in the environment that has it: prints what came, as JSON.

python kserve_client.py REST_URL GRPC_ADDRESS PICTURE...
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

MODEL = "digits"


def pictures(bodies: list[bytes], binary: bool = True) -> InferRequest:
    """One request of so many pictures."""
    tensor = InferInput(name="input", shape=[len(bodies)], datatype="BYTES")
    data = bodies if binary else [base64.b64encode(body) for body in bodies]
    tensor.set_data_from_numpy(np.array(data, dtype=np.object_), binary_data=binary)
    return InferRequest(model_name=MODEL, infer_inputs=[tensor], request_id="mine")


def labels(answer: Any) -> list[str]:
    """The labels, as text whatever the form."""
    (output,) = [output for output in answer.outputs if output.name == "label"]
    return [label.decode() if isinstance(label, bytes) else str(label) for label in output.as_numpy().ravel().tolist()]


async def asked(url: str, grpc: str, bodies: list[bytes]) -> dict[str, Any]:
    """What the clients were answered."""
    v1, v2 = (InferenceRESTClient(RESTConfig(protocol=version, retries=3, timeout=60)) for version in ("v1", "v2"))
    over_grpc = InferenceGRPCClient(url=grpc, timeout=60)
    instances = [{"b64": base64.b64encode(body).decode()} for body in bodies]
    found: dict[str, Any] = {
        "v1": await v1.infer(url, {"instances": instances}, model_name=MODEL),
        "v2 json": labels(await v2.infer(url, pictures(bodies, binary=False), model_name=MODEL)),
        "v2 binary": labels(await v2.infer(url, pictures(bodies), model_name=MODEL)),
        "grpc": labels(await over_grpc.infer(pictures(bodies))),
        "live": [await v1.is_server_live(url), await v2.is_server_live(url), await over_grpc.is_server_live()],
        "ready": [await v2.is_server_ready(url), await over_grpc.is_server_ready()],
        "model": [
            await v1.is_model_ready(url, MODEL),
            await v2.is_model_ready(url, MODEL),
            await over_grpc.is_model_ready(MODEL),
        ],
        "nobody": [await v2.is_model_ready(url, "nobody"), await over_grpc.is_model_ready("nobody")],
    }
    for name, client in (("rest refuses", v2), ("grpc refuses", over_grpc)):
        try:
            bad = pictures([b"no picture"])
            await (client.infer(url, bad, model_name=MODEL) if client is v2 else client.infer(bad))
        except Exception as error:
            found[name] = str(error)
    for client in (v1, v2, over_grpc):
        await client.close()
    return found


if __name__ == "__main__":
    rest_url, grpc_address, *files = sys.argv[1:]
    print(json.dumps(asyncio.run(asked(rest_url, grpc_address, [Path(file).read_bytes() for file in files]))))
