"""Other servers' protocols: each file turns a request into records and their answers back, and knows no connection."""
