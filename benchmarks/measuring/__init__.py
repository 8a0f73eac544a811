"""What every measurement of the docs shares: systems in turn, medians, ratios by round, and where and with what it ran."""
