"""Upper limits of sizing inputs, for settings and for hellos alike.

Constants and nothing else: the settings are read before anything heavier is imported.
"""

from typing import Final

BUDGET_BYTES_MAX: Final = 1 << 50
PAGE_TOKENS_MAX: Final = 1 << 16
CONTEXT_TOKENS_MAX: Final = 1 << 31
"""Token places are 32-bit numbers in the tables that kernels read."""
CHUNK_TOKENS_MAX: Final = CONTEXT_TOKENS_MAX
RUNNING_REQUESTS_COUNT_MAX: Final = 1 << 20
SLOTS_MAX: Final = 1 << 31
DRAFT_TOKENS_MAX: Final = 1 << 10
STATE_SHARE_MIN: Final = 0.001
STATE_SHARE_MAX: Final = 1_000.0
