"""What only TorchServe and MMS need: their Java, its cache, their start module, their workers."""
