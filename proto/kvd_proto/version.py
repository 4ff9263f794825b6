"""The protocol version, and which versions this build can speak."""

PROTOCOL_VERSION = 4
"""Raised by every change that an older peer would misread; golden bytes change with it."""

PROTOCOL_VERSION_MIN = 4
"""The oldest version that this build still answers."""

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Default cap of one frame: a prompt of a million tokens at page size 1 needs 12 MiB of columns."""
