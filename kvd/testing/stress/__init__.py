"""The page-safety stress harness: programs drawn from a seed, played against the real engine."""
