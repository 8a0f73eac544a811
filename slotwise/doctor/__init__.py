"""What `slotwise doctor` finds out."""
