"""How much from one byte budget: floors, targets and fixed allocations."""
