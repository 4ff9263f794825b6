"""Sockets, sessions and the loop around the engine."""
