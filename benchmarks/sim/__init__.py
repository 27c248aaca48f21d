"""A pool in virtual time: the real functions and block pools, an engine model for the model."""
