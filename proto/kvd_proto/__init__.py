"""What crosses a process boundary between kvd and its clients."""
