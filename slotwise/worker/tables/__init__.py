"""Tables: rows of JSON and CSV, checked column by column, and the engine that runs their model."""
