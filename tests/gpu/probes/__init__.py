"""Questions about the GPU driver that the design of fences, segments and arenas rests on.

    python -m tests.gpu.probes                    # every probe, findings as they come, a table
    python -m tests.gpu.probes --only progress    # one of them
    python -m tests.gpu.probes --json             # {"schema": "kvd.probes/1", "findings": [...]}

Run from the root of the repository with the roots of client and proto on ``PYTHONPATH``; needs an
NVIDIA GPU, cuda-bindings with nvrtc, numpy, and nvidia-ml-py for the probes that ask the driver for
processes and memory. A probe is no test: it reports what the machine did and which rule that
supports. Each runs in processes of its own, which end at a deadline, so that a hung GPU call costs
one finding and not the rest.
"""
