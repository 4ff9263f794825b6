"""Send damaged frames to a daemon without sockets: ``python -m tests.fuzz --frames N --seed S``.

The exit code is 1 if the daemon broke its word; the frame that did it is printed.
"""

import argparse

from tests.fuzz.run import fuzz


def main() -> None:
    """Run and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("\n".join(fuzz(options.frames, options.seed).lines()))


if __name__ == "__main__":
    main()
