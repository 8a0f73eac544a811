"""Folders to start from: `slotwise new NAME --kind KIND`."""
