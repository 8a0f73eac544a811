"""Start, watch and stop a real model server; what differs between TorchServe and MMS."""
