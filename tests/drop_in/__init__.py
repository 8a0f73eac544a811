"""TorchServe's command line, files and APIs, beside the real TorchServe."""
