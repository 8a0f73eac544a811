"""The subcommands of `slotwise`, one module a topic, each with a `register(app)`."""
