"""What the processes say to one another. Pure: anyone may import it."""
