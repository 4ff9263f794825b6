"""The modelled device: deterministic, plays streams in any order that their waits allow."""
