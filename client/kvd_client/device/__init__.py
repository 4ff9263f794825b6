"""The only door to memory: devices, streams, fences and descriptors."""
