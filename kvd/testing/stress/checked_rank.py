"""What every kind of rank of a stress run does: pools, findings, and how a finding is worded."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvd.errors import StressFailure
from kvd.testing.stress.contents import UNKNOWN, WORD_BYTES, Indices, Tags
from kvd.testing.stress.failure import CheckName
from kvd.testing.stress.plans import ForwardPlan, PeerPlan
from kvd_client import Client
from kvd_client.device.port import Stream
from kvd_client.launch import Step

if TYPE_CHECKING:
    from kvd_client.device.host_pool import HostPool

INT32_BYTES = 4


class CheckedRank(ABC):
    """A client whose memory is compared with what the log says; nothing is raised, but kept."""

    def __init__(
        self,
        *,
        index: int,
        client: Client,
        memory_bytes: npt.NDArray[np.uint8],
        pool_places: int,
    ) -> None:
        """Look at a rank's memory through ``memory_bytes``, all of it.

        Without ``pool_places`` there are no host pools.
        """
        self.index = index
        self.client = client
        self.words = memory_bytes[: client.plan.arena_bytes].view(np.int64)
        self.cells = memory_bytes.view(np.int32)
        self.findings: list[StressFailure] = []
        self.pools: list[HostPool] = [
            client.host_pool(band.name, pool_places) for band in client.plan.bands if pool_places
        ]
        self.checked_words_count = 0
        self.left_steps: dict[int, None] = {}
        """Steps whose launch was left by an exception on this rank."""

    def stream_of(self, step: int) -> Stream | None:
        """Return the stream of a forward; None for the one that the client has for them."""
        return None

    def note(self, what: str) -> None:  # noqa: B027  # most ranks have no names to give
        """Say what the rank is doing, for whoever names its actions."""

    @abstractmethod
    def enqueue_forward(self, step: Step, plan: ForwardPlan, *, silent: bool) -> None:
        """Enqueue a forward inside its launch block."""

    @abstractmethod
    def expect_peers(self, plans: Sequence[PeerPlan], position: int) -> None:
        """Take note of transfers whose places are true once the log is applied to a position."""

    # ---- forwards -------------------------------------------------------------------------------

    def look_up(self, plan: ForwardPlan) -> None:
        """Look a forward's table entries up, and compare them."""
        found = self.cells[plan.table_cells]
        if not np.array_equal(found, plan.table_values):
            place = int((found != plan.table_values).nonzero()[0][0])
            self.report_table(plan, place, int(found[place]))

    def run_forward(self, plan: ForwardPlan) -> None:
        """Read what a forward reads, compare it, and write what it writes."""
        found = self.words[plan.page_words]
        wrong = (found != plan.page_tags) & (plan.page_tags != UNKNOWN)
        if wrong.any():
            place = int(wrong.nonzero()[0][0])
            self.report_word(plan, place, int(found[place]))
        self.checked_words_count += found.size
        self.words[plan.write_words] = plan.write_tags

    def report_table(self, plan: ForwardPlan, place: int, found: int) -> None:
        """Keep that a place of a table said something else than it should."""
        self._find(
            CheckName.MAPS,
            f"step {plan.step} reads {found} at byte "
            f"{plan.table_cells[place] * INT32_BYTES} of the memory; by the log "
            f"{plan.table_values[place]} stood there at its launch",
        )

    def report_word(self, plan: ForwardPlan, place: int, found: int) -> None:
        """Keep that a word held something else than it should."""
        should = int(plan.page_tags[place])
        if should < found <= 1 << 40 and should and found > plan.newest_tag:
            check = CheckName.LAUNCH_READS
        else:
            check = CheckName.PAYLOAD if should else CheckName.ZEROING
        self._find(
            check,
            f"step {plan.step} reads word {found:#x} at byte {plan.page_words[place] * WORD_BYTES} "
            f"({plan.place_of(place)}), where its owner left {should:#x}",
        )

    # ---- peers and pools ------------------------------------------------------------------------

    def compare_shipped(self, transfer: int, payload: npt.NDArray[np.uint8], words: Tags) -> None:
        """Compare what a peer read with what was there when the transfer was posted."""
        found = np.ascontiguousarray(payload).view(np.int64)
        wrong = (found != words) & (words != UNKNOWN)
        if wrong.any():
            self.findings.append(
                self.shipped_wrong(transfer, int(found[wrong][0]), int(words[wrong][0]))
            )

    def shipped_wrong(self, transfer: int, found: int, should: int) -> StressFailure:
        """Return the finding that a transfer shipped something else than it should have."""
        return StressFailure(
            CheckName.SHIPPED,
            f"rank {self.index}: transfer {transfer} shipped word {found:#x} where its owner had "
            f"{should:#x}",
        )

    def fill_pool(self, band_index: int, places: Indices, words: Tags) -> None:
        """Put what a load is to read into places of a host pool; nothing uses them meanwhile."""
        self.pools[band_index].units.view(np.int64)[places] = words

    def check_pool(self, copy: int, band_index: int, places: Indices, tags: Tags) -> None:
        """Compare what a backup left in the host pool with what was there at its submission."""
        found = self.pools[band_index].units.view(np.int64)[places]
        wrong = (found != tags) & (tags != UNKNOWN)
        if wrong.any():
            self._find(
                CheckName.SHIPPED,
                f"backup {copy} shipped word {found[wrong][0]:#x} of band {band_index} where its "
                f"owner had {tags[wrong][0]:#x}",
            )

    # ---- at rest --------------------------------------------------------------------------------

    def check_at_rest(self, words: Indices, tags: Tags, describe: Callable[[int], str]) -> None:
        """Compare words of the arena while nothing runs."""
        found = self.words[words]
        wrong = (found != tags) & (tags != UNKNOWN)
        if wrong.any():
            place = int(wrong.nonzero()[0][0])
            self._find(
                CheckName.PAYLOAD,
                f"at rest word {found[place]:#x} lies at byte {words[place] * WORD_BYTES} "
                f"({describe(place)}), where its owner left {tags[place]:#x}",
            )

    def _find(self, check: CheckName, message: str) -> None:
        self.findings.append(StressFailure(check, f"rank {self.index}: {message}"))
