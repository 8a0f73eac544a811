"""TorchServe's own gRPC services, on its two ports."""
