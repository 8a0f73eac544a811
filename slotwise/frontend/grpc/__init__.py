"""gRPC: the Open Inference Protocol."""
