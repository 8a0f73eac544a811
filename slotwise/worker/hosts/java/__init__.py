"""TorchServe and MMS: their context, their messages, their limits."""
