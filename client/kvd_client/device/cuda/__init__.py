"""The CUDA device: arenas as shareable descriptors, raw kernels, lanes written by streams."""
