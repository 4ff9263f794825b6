"""Which parts share a band, and in which order the bands lie."""
