"""A GPU for stress runs that is a fake: kernels are numpy, and run when they are enqueued."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvd.testing.stress.contents import UNKNOWN, Indices, Tags
from kvd.testing.stress.cuda_run import Machine
from kvd.testing.stress.cuda_words import WordFinding
from kvd_client.device.cuda.device import CudaDevice
from kvd_client.device.descriptors import create_memory
from tests.client.cuda_fake import FakeDriver, view

_DTYPES: dict[int, Any] = {4: np.int32, 8: np.int64}


class NumpyWords:
    """Does at once what `CudaWords` has kernels do; counts what the tests ask about."""

    def __init__(self) -> None:
        self.checked_count = 0
        self.written_count = 0
        self.spent_us = 0
        self._findings: list[WordFinding] = []

    def check(
        self, address: int, places: Indices, expected: Tags, *, word_bytes: int, subject: int
    ) -> None:
        found = _words(address, places, word_bytes)[places].astype(np.int64)
        self.checked_count += places.size
        wrong = ((found != expected) & (expected != UNKNOWN)).nonzero()[0]
        self._findings += [(subject, int(i), int(found[i])) for i in wrong]

    def write(self, address: int, places: Indices, tags: Tags) -> None:
        self.written_count += places.size
        _words(address, places, 8)[places] = tags

    def fill(self, address: int, word: int, words_count: int) -> None:
        view(address, 8 * words_count).view(np.int64)[:] = word

    def spend(self, delay_us: int) -> None:
        self.spent_us += delay_us

    def found_any(self) -> bool:
        return bool(self._findings)

    def take_findings(self) -> Sequence[WordFinding]:
        findings, self._findings = self._findings, []
        return findings


def _words(address: int, places: Indices, word_bytes: int) -> Indices:
    count = int(places.max()) + 1 if places.size else 0
    words: Indices = view(address, word_bytes * count).view(_DTYPES[word_bytes])
    return words


def fake_machine(seed: int = 0) -> Machine:
    """Return a machine that is none."""
    return Machine(device=CudaDevice(FakeDriver(seed)), words=NumpyWords(), new_arena=create_memory)
