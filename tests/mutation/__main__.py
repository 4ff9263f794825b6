"""Leave out every rule, one at a time, and print which test notices: ``python -m tests.mutation``.

Names that are given restrict it to mutants that begin with one of them. The exit code is 1 if a
mutant survives: then a rule could be lost without a test that fails.
"""

import sys

from tests.mutation.registry import MUTANTS, NOT_COUNTED


def main(names: list[str]) -> int:
    """Run mutants and print the table; return the exit code."""
    survivors: list[str] = []
    chosen = [one for one in MUTANTS if not names or one.name.startswith(tuple(names))]
    for mutant in chosen:
        kill = mutant.attack()
        beside = f", and with it: {mutant.beside}" if mutant.beside else ""
        print(f"{mutant.name}\n    left out:   {mutant.removes}{beside}")
        if kill is None:
            survivors.append(mutant.name)
            print("    SURVIVED")
        else:
            print(f"    noticed by: {mutant.test}")
            print(f"    after {kill.action_count} actions: {kill.check}", flush=True)
    print(f"\n{len(chosen)} mutants, {len(chosen) - len(survivors)} noticed")
    for name, reason in NOT_COUNTED.items():
        print(f"not counted: {name}: {reason}")
    if survivors:
        print("survivors: " + ", ".join(survivors))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
