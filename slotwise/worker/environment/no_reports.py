"""Keep libraries from reporting to their makers that they were imported. Importing this module is enough.

OpenVINO and NNCF report through a module of their own, and do without where it cannot be imported. ONNX Runtime would keep a
database for its makers in the user's home.
"""

import os
import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
