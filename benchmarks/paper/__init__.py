"""The matrix of a paper: five ways to serve the same requests, over real processes."""
