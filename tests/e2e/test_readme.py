"""The README's engine loop runs as it is printed."""

import re
import threading
from pathlib import Path
from typing import Any

from kvd.presets import preset_config
from tests.e2e.daemon_process import serving

README = Path(__file__).parents[2] / "README.md"
STEPS_COUNT = 4


class EnoughError(Exception):
    """The loop has run often enough."""


def _example(address: str, config: Path) -> str:
    found = re.search(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert found is not None
    code = found.group(1)
    assert "ipc:///run/kvd/kvd.sock" in code
    return code.replace("ipc:///run/kvd/kvd.sock", address).replace("config.json", str(config))


def _play(code: str, rank: int, places: list[list[list[int]]], together: threading.Barrier) -> None:
    """Run the loop as an engine would: three prompts, then a token each per step."""
    names: dict[str, Any] = {
        "tp_rank": rank,
        "waiting": [1, 2, 3],
        "prompts": [10, 20, 30],
        "limits": [8, 8, 8],
        "prefilled": [],
        "chunks": [],
        "finished": [],
        "by_preference": [],
    }

    def run_model(slots: Any, pages: Any) -> None:
        assert len(slots.values) == len(pages.indptr) - 1
        places[rank].append(slots.values.tolist())
        names.update(prefilled=names["admitted"], chunks=names["prompts"])
        names.update(waiting=[], prompts=[], limits=[])
        if len(places[rank]) == STEPS_COUNT:
            raise EnoughError

    names["run_model"] = run_model
    try:
        exec(compile(code, "README.md", "exec"), names)
    except EnoughError:
        together.wait(60)  # the end of one rank is the end of both
        names["kv"].close()


def test_the_engine_example_runs_on_two_ranks(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_bytes(preset_config("gpt-oss-20b"))
    places: list[list[list[int]]] = [[], []]
    together = threading.Barrier(2)
    with serving(folder, "--budget", "256MiB", "--context", "4096") as daemon:
        code = _example(daemon.address, config)
        ranks = [
            threading.Thread(target=_play, args=(code, rank, places, together)) for rank in (0, 1)
        ]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join(60)
    assert places[0] == places[1]
    assert [len(step) for step in places[0]] == [0, 3, 3, 3]
    first, second = places[0][1], places[0][2]
    assert [late - early for early, late in zip(first, second, strict=True)] == [1, 1, 1]
