"""The queue of the local host under a virtual clock: random histories from a seed, and what must hold in each."""
