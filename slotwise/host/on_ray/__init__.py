"""Ray places, scales and replaces replicas; the front, the queues and the links to the replicas are this host's."""
