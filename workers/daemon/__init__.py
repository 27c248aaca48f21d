"""The loops of a worker: engine thread, inbox, reports, heartbeat."""
