"""What a control plane of many workers and pages costs."""
