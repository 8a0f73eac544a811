"""The messages of the Open Inference Protocol's gRPC service, `inference.GRPCInferenceService`.

Source: the Open Inference Protocol's "inference_grpc"; tests/frontend/test_grpc.py compares with Triton's own.
"""

from __future__ import annotations

from slotwise.frontend.grpc.message_table import MessageTable

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

# From ModelStreamInferResponse on: Triton's, with the fields that are known here; enumerations are numbers.
TABLE = """
ServerLiveRequest
ServerLiveResponse bool live
ServerReadyRequest
ServerReadyResponse bool ready
ModelReadyRequest string name, string version
ModelReadyResponse bool ready
ServerMetadataRequest
ServerMetadataResponse string name, string version, string* extensions
ModelMetadataRequest string name, string version
TensorMetadata string name, string datatype, int64* shape
ModelMetadataResponse string name, string* versions, string platform, TensorMetadata* inputs, TensorMetadata* outputs
InferParameter bool| bool_param, int64| int64_param, string| string_param, double| double_param, uint64| uint64_param
ParametersEntry string key, InferParameter value
InferTensorContents bool* bool_contents, int32* int_contents, int64* int64_contents, uint32* uint_contents, \
uint64* uint64_contents, float* fp32_contents, double* fp64_contents, bytes* bytes_contents
InferInputTensor string name, string datatype, int64* shape, ParametersEntry* parameters, InferTensorContents contents
InferRequestedOutputTensor string name, ParametersEntry* parameters
ModelInferRequest string model_name, string model_version, string id, ParametersEntry* parameters, \
InferInputTensor* inputs, InferRequestedOutputTensor* outputs, bytes* raw_input_contents
InferOutputTensor string name, string datatype, int64* shape, ParametersEntry* parameters, InferTensorContents contents
ModelInferResponse string model_name, string model_version, string id, ParametersEntry* parameters, \
InferOutputTensor* outputs, bytes* raw_output_contents
ModelStreamInferResponse string error_message, ModelInferResponse infer_response
ModelConfigRequest string name, string version
ModelInput string name, int32 data_type, int64* dims=4
ModelOutput string name, int32 data_type, int64* dims
ModelDynamicBatching int32* preferred_batch_size, uint64 max_queue_delay_microseconds
ModelInstanceGroup string name, int32 count, int32 kind=4
ModelConfig string name, string platform, int32 max_batch_size=4, ModelInput* input, ModelOutput* output, \
ModelInstanceGroup* instance_group, ModelDynamicBatching dynamic_batching=11, string backend=17
ModelConfigResponse ModelConfig config
ModelStatisticsRequest string name, string version
StatisticDuration uint64 count, uint64 ns
InferStatistics StatisticDuration success, StatisticDuration fail, StatisticDuration queue, StatisticDuration compute_input, \
StatisticDuration compute_infer, StatisticDuration compute_output, StatisticDuration cache_hit, StatisticDuration cache_miss
InferBatchStatistics uint64 batch_size
ModelStatistics string name, string version, uint64 last_inference, uint64 inference_count, uint64 execution_count, \
InferStatistics inference_stats, InferBatchStatistics* batch_stats
ModelStatisticsResponse ModelStatistics* model_stats
RepositoryIndexRequest string repository_name, bool ready
ModelIndex string name, string version, string state, string reason
RepositoryIndexResponse ModelIndex* models
"""

MESSAGES = MessageTable(PACKAGE, TABLE)
CLASSES = MESSAGES.classes
