"""Running: one run start to end, devices, and the queue of worker processes."""
