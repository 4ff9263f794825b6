"""What is decided in drawn programs and in all scenarios, as digests that every machine has to get.

``python -m tests.traces.golden`` writes the file anew, which is right only where a decision or the
wire was changed on purpose; with ``--print`` it prints what this process gets instead.
"""

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import xxhash
from msgspec import structs

from kvd.trace.adapter import Asked, BatchEvent, Decision, Playable, Recorded
from kvd.trace.forms import form_of, type_of
from kvd.trace.records import FORMAT, Head
from kvd.trace.scenario import script_of
from kvd.trace.stage import StageAdapter
from kvd.trace.step import BATCH_END
from tests.stateful.program import TIGHT, batches
from tests.stateful.ranks import incarnation
from tests.traces.scenario_files import NAMES, PAIRS

FILE: Final = Path(__file__).parent / "golden.json"
SEEDS: Final = range(3)
BATCH_COUNT: Final = 60
DRAWN: Final = tuple(f"drawn-{seed}" for seed in SEEDS)
ALL_NAMES: Final = (*DRAWN, *NAMES)


class Drawn:
    """A scheduler's batches, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        world = incarnation(storage=TIGHT)
        self.head = Head(format=FORMAT, build="drawn", start=world.start)
        self._seed = seed

    def __iter__(self) -> Iterator[Recorded]:
        for operations in batches(self._seed, BATCH_COUNT):
            asked = tuple(Asked(type=type_of(one), args=form_of(one)) for one in operations)
            event = BatchEvent(program=0, operations=(*asked, BATCH_END))
            yield Recorded(event=event, decisions=())


@cache
def playable(name: str) -> Playable:
    """Return what is played under a name."""
    if name in DRAWN:
        return Drawn(DRAWN.index(name))
    scenario, _, configuration = PAIRS[NAMES.index(name)]
    return script_of(scenario, configuration)


def outcome(name: str) -> dict[str, str | int]:
    """Return the digest of everything that is decided, and where the stage stands at the end."""
    script, player, digest = playable(name), StageAdapter(), xxhash.xxh3_64()
    start = structs.replace(script.head.start, check_level="off")  # changes no decision
    decided: list[Decision] = list(player.start(structs.replace(script.head, start=start)))
    for item in script:
        assert item.event is not None
        decided += player.feed(item.event)
    for decision in decided:
        digest.update(bytes.fromhex(decision.digest))
    snap = player.snap()
    assert snap is not None
    return {
        "decisions": len(decided),
        "digest": digest.hexdigest(),
        "state": snap.digest,
    }


def outcomes() -> dict[str, dict[str, str | int]]:
    """Return them all by name."""
    return {name: outcome(name) for name in ALL_NAMES}


def written(found: dict[str, dict[str, str | int]]) -> str:
    """Return the text of the file, a line each."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in found)
    return f"{{\n{lines}\n}}\n"


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(written(outcomes()), end="")
    else:
        FILE.write_text(written(outcomes()))
