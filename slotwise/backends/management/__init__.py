"""TorchServe's management API in front of a host of ours."""
