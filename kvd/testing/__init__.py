"""Shipped test kit: workload replay and what it needs."""
