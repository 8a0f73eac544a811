"""The messages of TorchServe's gRPC services.

Source: TorchServe 0.12's inference.proto and management.proto, with which tests/server/test_host_grpc.py compares.
"""

from __future__ import annotations

from slotwise.frontend.grpc.message_table import MessageTable

INFERENCE_PACKAGE = "org.pytorch.serve.grpc.inference"
INFERENCE_SERVICE = f"{INFERENCE_PACKAGE}.InferenceAPIsService"
MANAGEMENT_PACKAGE = "org.pytorch.serve.grpc.management"
MANAGEMENT_SERVICE = f"{MANAGEMENT_PACKAGE}.ManagementAPIsService"
ASKED, ANSWERED = "PredictionsRequest", "PredictionResponse"

# An answer's `status` is for StreamPredictions2 alone. It is google.rpc.Status, whose details are packed messages.
INFERENCE = MessageTable(
    INFERENCE_PACKAGE,
    """
PredictionsRequest string model_name, string model_version, InputEntry* input, string sequence_id
InputEntry string key, bytes value
PredictionResponse bytes prediction, string sequence_id, Status status
Status int32 code, string message, Any* details
Any string type_url, bytes value
ErrorInfo string reason
TorchServeHealthResponse string health
""",
)
MANAGEMENT = MessageTable(
    MANAGEMENT_PACKAGE,
    """
ManagementResponse string msg
DescribeModelRequest string model_name, string model_version, bool customized
ListModelsRequest int32 limit, int32 next_page_token
RegisterModelRequest int32 batch_size, string handler, int32 initial_workers, int32 max_batch_delay, string model_name, \
int32 response_timeout, string runtime, bool synchronous, string url, bool s3_sse_kms, int32 startup_timeout
ScaleWorkerRequest string model_name, string model_version, int32 max_worker, int32 min_worker, int32 number_gpu, \
bool synchronous, int32 timeout
SetDefaultRequest string model_name, string model_version
UnregisterModelRequest string model_name, string model_version
""",
)
