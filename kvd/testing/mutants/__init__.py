"""Faults to plant in the product, each of which the tests and the stress harness have to notice."""
