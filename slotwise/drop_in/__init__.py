"""TorchServe's command line, files and APIs on our own host: a deployment of TorchServe moves by one word."""
