"""The host device: an arena in shared memory, streams played by threads."""
