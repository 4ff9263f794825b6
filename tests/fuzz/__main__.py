"""Send damaged frames to a daemon, without sockets and through them: ``python -m tests.fuzz``.

It ends with the frame that made the daemon break its word, if there is one.
"""

import argparse
import tempfile
from pathlib import Path

from tests.e2e.daemon_process import serving
from tests.fuzz.run import fuzz
from tests.fuzz.served import SETTINGS, fuzz_served


def main() -> None:
    """Run and print the reports."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="without sockets")
    parser.add_argument("--served", type=int, default=20_000, help="through sockets")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.served:
        with (
            tempfile.TemporaryDirectory(prefix="kvd-fuzz-") as folder,
            serving(Path(folder) / "run", *SETTINGS) as daemon,
        ):
            print("\n".join(fuzz_served(daemon, options.served, options.seed).lines()))
            assert "internal_error" not in daemon.log()
            assert daemon.stop() == 0
    if options.frames:
        print("\n".join(fuzz(options.frames, options.seed).lines()))


if __name__ == "__main__":
    main()
