"""Triton's python backend, as its documentation has it: one response a request, an error in that of a bad one."""

import classifier
import numpy as np
import torch
import triton_python_backend_utils as backend


class TritonPythonModel:
    def initialize(self, args):
        self.decode, self.classify, self.encode = classifier.decoder(), classifier.model(), classifier.encoder()

    def execute(self, requests):
        items, responses = {}, [None] * len(requests)
        for i, request in enumerate(requests):
            body = np.from_dlpack(backend.get_input_tensor_by_name(request, "BODY")).tobytes()
            try:
                items[i] = self.decode(body)
            except Exception as error:
                failure = backend.TritonError(f"cannot decode: {error}", backend.TritonError.INVALID_ARG)
                responses[i] = backend.InferenceResponse(output_tensors=[], error=failure)
        outputs = self.classify(list(items.values())) if items else []
        for i, answer in zip(items, map(self.encode, outputs), strict=True):
            tensors = [torch.tensor([answer[key]]) for key in ("labels", "probabilities")]
            outputs = [
                backend.Tensor.from_dlpack(name, torch.utils.dlpack.to_dlpack(tensor))
                for name, tensor in zip(("LABELS", "PROBABILITIES"), tensors, strict=True)
            ]
            responses[i] = backend.InferenceResponse(output_tensors=outputs)
        return responses
