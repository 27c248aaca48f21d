"""Redis state of the pool: the data model, its functions and the streams."""
