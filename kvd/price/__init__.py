"""What fits: layout search over bands on their unit grids."""
