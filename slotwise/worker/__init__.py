"""Everything that runs inside the server's worker; copied into every archive, imports nothing from the rest of slotwise."""
