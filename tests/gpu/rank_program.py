"""A rank on a GPU: ``python -m tests.gpu.rank_program PARENT SPEC`` runs passes and checks pages.

Its forwards are torch kernels: they write a word per token, or per state, where the tables say, and
compare everything that the requests hold with what was written. It prints one line of JSON.
"""

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from kvd.testing.child import die_with_parent
from kvd_client import Client, Mode, attach
from kvd_client.device.cuda.commands import CudaCommands
from kvd_client.device.cuda.device import cuda_device
from kvd_client.views import mapping_tensor
from kvd_proto.memory import BandPlan, Lifetime
from tests.e2e.ranks import LAYERS, SIZING
from tests.e2e.schedule import Pass, finish, passes_of, run_pass

if TYPE_CHECKING:
    from kvd_client.results import Int64s

DEADLINE_MS: Final = 60_000
REQUEST_FACTOR: Final = 1_000_003
POSITION_FACTOR: Final = 7_919


class Forward:
    """Writes and checks patterns of one rank."""

    def __init__(self, client: Client) -> None:
        self.client = client
        arena = mapping_tensor(client.memory, client.plan.arena_bytes)
        self.grids = {
            band.name: arena[: len(arena) // band.entry_bytes * band.entry_bytes]
            .view(torch.int32)
            .view(-1, band.entry_bytes // 4)
            for band in client.plan.bands
        }
        self.mismatches = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.checked_count = 0
        self.states: dict[int, int] = {}

    def run(self, one: Pass, live: list[int]) -> None:
        """Enqueue a pass's writes, then the checks, on torch's current stream."""
        if not live:
            return
        for index, band in enumerate(self.client.plan.bands):
            if band.lifetime is Lifetime.STATE:
                self._states(band, live)
            else:
                self._tokens(band, index, live)

    def _tokens(self, band: BandPlan, index: int, live: list[int]) -> None:
        grid, client = self.grids[band.name], self.client
        slots = client.write_slots(band.name, live)
        lengths = client.lengths(live)
        positions: list[Int64s] = [
            np.arange(end - count, end, dtype=np.int64)
            for end, count in zip(lengths, np.diff(slots.indptr), strict=True)
        ]
        requests = np.repeat(live, np.diff(slots.indptr))
        words = _words(index, requests, np.concatenate(positions))
        grid[_up(slots.values)] = _up(words).int()[:, None]
        table = client.page_table(band.name, live)
        for place, request in enumerate(live):
            pages = table.values[table.indptr[place] : table.indptr[place + 1]]
            held = np.arange(len(pages) * band.page_tokens).reshape(len(pages), -1)
            tokens = pages.astype(np.int64)[:, None] * band.page_tokens + (
                np.arange(band.page_tokens)
            )
            kept = held[pages > 0].ravel()
            expected = _words(index, np.full(len(kept), request), kept)
            # Behind the last token a page reads as it was handed out: zero.
            expected[kept >= lengths[place]] = 0
            rows = grid[_up(tokens[pages > 0].ravel())]
            self.mismatches += (rows != _up(expected).int()[:, None]).any(1).sum()
            self.checked_count += len(kept)

    def _states(self, band: BandPlan, live: list[int]) -> None:
        grid = self.grids[band.name]
        for request, slot in zip(live, self.client.state_slots(live).tolist(), strict=True):
            expected = self.states.get(request, 0)
            self.mismatches += (grid[slot] != expected).any()
            self.states[request] = expected + request
            grid[slot] = expected + request
            self.checked_count += 1


def _words(band_index: int, requests: Any, positions: Any) -> Any:
    """Return a word per token, never zero."""
    words = requests * REQUEST_FACTOR + positions * POSITION_FACTOR + band_index * 31 + 1
    return words.astype(np.int64) % (1 << 30) + 1


def _up(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.ascontiguousarray(values, dtype=np.int64), device="cuda")


def main() -> None:
    """Attach, run, report."""
    die_with_parent(int(sys.argv[1]))
    spec: dict[str, Any] = json.loads(sys.argv[2])
    passes = passes_of(spec.pop("seed"), spec.pop("pass_count"))
    moved: list[int] = []
    move_units = CudaCommands.move_units

    def counting(self: CudaCommands, **arguments: Any) -> None:
        moved.append(len(arguments["sources"]))
        move_units(self, **arguments)

    CudaCommands.move_units = counting  # type: ignore[method-assign]
    device = cuda_device()
    torch.zeros(1, device="cuda")
    started = time.perf_counter()
    client = attach(
        spec.pop("address"),
        declare=LAYERS,
        sizing=SIZING,
        deadline_ms=DEADLINE_MS,
        device=device,
        mode=Mode(spec.pop("mode", "mirrored")),
        **spec,
    )
    client.views(0)
    attach_s = time.perf_counter() - started
    del moved[:]
    forward = Forward(client)
    for number, one in enumerate(passes, start=1):
        run_pass(client, one, step=number - 1)
        live = client.standing.tolist()
        with client.launch() as step:
            step.submit(lambda one=one, live=live: forward.run(one, live))
    finish(client, step=len(passes))
    report = {
        "mismatches": int(forward.mismatches),
        "checked": forward.checked_count,
        "moved": sum(moved),
        "attach_s": attach_s,
        "lanes": client.fences.lane(0).values(),
    }
    print(json.dumps(report), flush=True)
    # Whoever leaves first ends the incarnation, so nobody does before all have reported.
    sys.stdin.read()
    client.close()


if __name__ == "__main__":
    main()
