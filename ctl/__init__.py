"""lmpoolctl: the command line of the pool."""
