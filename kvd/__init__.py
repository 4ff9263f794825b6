"""kvd, the daemon that owns a hybrid model's request memory and shares it out."""

__version__ = "0.1.0"
