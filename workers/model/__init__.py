"""The model and its KV pool: all of torch that is not transport."""
