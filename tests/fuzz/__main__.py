"""Send damaged frames to a daemon without sockets: ``python -m tests.fuzz --frames N --seed S``.

The exit code is 1 if the daemon broke its word; the frame that did it is printed.
"""

import argparse
import sys

from tests.fuzz.run import fuzz


def main() -> int:
    """Run and print the report; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = fuzz(options.frames, options.seed)
    print("\n".join(report.lines()))
    return 0 if report.digest_before == report.digest_after else 1


if __name__ == "__main__":
    sys.exit(main())
