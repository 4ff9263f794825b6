"""How much of everything one byte budget carries."""
