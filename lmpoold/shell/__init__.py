"""What the shell of every process shares: logs, signals, loops that outlive a lost server."""
