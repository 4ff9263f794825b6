"""Faults that nothing has noticed yet: holes of the stress harness that are to be closed.

They stay in the list of faults, are hunted like all others, and make the hunt fail.
"""

from typing import Final

UNNOTICED: Final[frozenset[str]] = frozenset()
