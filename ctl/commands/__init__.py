"""One noun a file."""
