"""The holder process, which keeps descriptors alive."""
