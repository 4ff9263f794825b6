"""The scenarios of this folder, each on every configuration that it names."""

from pathlib import Path
from typing import Final

from kvd.trace.scenario import Configuration, Scenario, configurations_of, read_scenario

FOLDER: Final = Path(__file__).parent / "scenarios"
FILES: Final = sorted(FOLDER.glob("*.json"))
SCENARIOS: Final[dict[str, Scenario]] = {path.stem: read_scenario(path) for path in FILES}
PAIRS: Final[list[tuple[Scenario, str, Configuration]]] = [
    (SCENARIOS[path.stem], name, configuration)
    for path in FILES
    for name, configuration in configurations_of(path, SCENARIOS[path.stem]).items()
]
NAMES: Final = [f"{scenario.name}-{name}" for scenario, name, _ in PAIRS]
