"""What has to hold while a stage is idle: nobody runs, nothing is under way, only values are kept.

Idle is a stage without a live request, step in flight, copy or transfer. Clients that are attached
and values do not count against it. A transfer in quarantine does not either, but what it keeps back
is counted: with values and holes it is all that a span consists of (semantics 11.3). Everything is
counted anew from the maps, and nothing of it is an estimate.

Invariants:
    idle.rows_free: every row is free and clean, no request is counted, and nothing is promised;
    idle.nothing_open: nothing pends, and no ledger, fence or wait names anything but a transfer in
        quarantine;
    idle.units_held: the bound units of every band are those of its values, and all ids but theirs
        are free;
    idle.waiters_fit: whoever was told to wait fits an arena that nobody uses;
    idle.no_waiters: nobody waits, unless a quarantine keeps back what it waits for.
"""

import numpy as np

from kvd.alloc.checks import IDLE_LEAKS
from kvd.alloc.clip import RequestPrice, price_request
from kvd.alloc.demand import RequestShape
from kvd.alloc.names import Asked
from kvd.alloc.requests import RequestTable
from kvd.alloc.signals import Signal, SignalKind
from kvd.engine.stage import StageEngine

WAITERS_MAX = 64
"""Waiting requests that are priced again; all of them are counted."""


def is_idle(engine: StageEngine) -> bool:
    """Return whether nobody runs and nothing is under way, quarantine aside."""
    copies, transfers = engine.uses.copies, engine.uses.transfers
    return (
        engine.requests.live_count == 0
        and engine.steps.in_flight_count == 0
        and not (copies.loads or copies.backups)
        and all(transfer.quarantined for transfer in transfers.open.values())
    )


def check_idle(engine: StageEngine) -> None:
    """Check a stage that `is_idle`, whose newest batch is settled, from its maps.

    Raises InvariantError, or counts what is not fatal. Linear in the stage's ids and units. Where a
    leak was counted the books are not looked at any further: they lack what leaked.
    """
    leak_count = _leak_count(engine)
    _check_rows(engine.requests)
    _check_open(engine)
    for index in range(len(engine.chain.bands)):
        _check_units(engine, index)
    _check_waiters(engine)
    if _leak_count(engine) == leak_count:
        engine.check(deep=True)


def _leak_count(engine: StageEngine) -> int:
    return sum(engine.monitor.broken_count.get(name, 0) for name in IDLE_LEAKS)


def _check_rows(table: RequestTable) -> None:
    rows, holdings = table.rows, table.holdings
    free = rows.free.ids()
    everything = np.arange(1, rows.request_id.size)
    counted = (table.slotless_count, holdings.prefilling_count, holdings.uneven_count)
    problem = ""
    if not np.array_equal(np.sort(free), everything):
        problem = f"{free.size} of {everything.size} rows are free"
    elif rows.left_over(everything).any():
        problem = f"row {everything[rows.left_over(everything)][0]} is free and not clean"
    elif any(counted):
        problem = f"{counted} rows are counted as without slot, in their prompt and uneven"
    elif any(table.chain.promised_units):
        problem = f"{table.chain.promised_units} units are promised"
    if problem:
        table.chain.monitor.fail("idle.rows_free", f"no request is live, and {problem}")


def _check_open(engine: StageEngine) -> None:
    chain = engine.chain
    problems = [
        f"{band.pending_units} units of band {band.geometry.name} pend"
        for band in chain.bands
        if band.pending_units
    ]
    for band in chain.bands:
        problems += [
            f"band {band.geometry.name} is used ({kind}) by {_text(signal)}"
            for kind, signal, _ in band.usage.records()
            if not _in_quarantine(engine, signal)
        ]
    problems += [
        f"{size_bytes} bytes are fenced ({hazard.name.lower()}) for {_text(signal)}"
        for hazard, signal, size_bytes in chain.order.fences.records()
        if not _in_quarantine(engine, signal)
    ]
    problems += [f"{_text(signal)} was waited for and is not over" for signal in chain.order.waited]
    if problems:
        engine.monitor.fail("idle.nothing_open", f"nothing is under way, and {problems[0]}")


def _check_units(engine: StageEngine, index: int) -> None:
    """Compare a band's maps with the values; what a quarantine keeps back is the rest."""
    band, values = engine.chain.bands[index], engine.requests.values
    held = np.sort(values.ids(index))
    bound = band.bound_ids()
    states = band.states()
    kept_back = band.vacated_units if _has_quarantine(engine) else 0
    named_count = int(np.count_nonzero(states > 0))
    spare = states.size - named_count - kept_back - band.hole_units
    free_count = held.size if band.free_ids is None else band.id_count - 1 - len(band.free_ids)
    if np.array_equal(held, bound) and named_count == free_count == held.size and spare == 0:
        return
    engine.monitor.fail(
        "idle.units_held",
        f"values hold {held.size} units of band {band.geometry.name}; of its span of "
        f"{states.size}, {named_count} have names, {band.hole_units} are holes and {kept_back} "
        f"are in quarantine, {bound.size} ids are bound and {free_count} are not free",
    )


def _check_waiters(engine: StageEngine) -> None:
    table, monitor = engine.requests, engine.monitor
    count = table.names.waiting_count
    if not count:
        return
    fits_now = not _has_quarantine(engine)
    for request, asked in table.names.asked(WAITERS_MAX):
        price = _price(table, asked)
        if price.new_tokens is None:
            monitor.fail(
                "idle.waiters_fit",
                f"request {request} was told to wait, and its {price.units} units fit no arena",
            )
        fits_now |= price.fits
    if fits_now:
        monitor.fail(
            "idle.no_waiters",
            f"{count} requests wait while nobody runs who could give anything back",
        )


def _price(table: RequestTable, asked: Asked) -> RequestPrice:
    """Price a request as an admission does where nobody will give memory back."""
    return price_request(
        table.shape,
        RequestShape(prompt_tokens=asked.prompt_tokens, new_tokens=asked.new_tokens_max),
        mode=table.shape.mode,
        chunk_tokens=asked.chunk_tokens,
        may_shrink=True,
        fits_empty=table.chain.fits_empty,
        fits_now=table.chain.fits,
    )


def _has_quarantine(engine: StageEngine) -> bool:
    return any(transfer.quarantined for transfer in engine.uses.transfers.open.values())


def _in_quarantine(engine: StageEngine, signal: Signal) -> bool:
    transfer = engine.uses.transfers.open.get(signal.number)
    return signal.kind is SignalKind.TRANSFER and transfer is not None and transfer.quarantined


def _text(signal: Signal) -> str:
    return f"{signal.kind} {signal.number}"
