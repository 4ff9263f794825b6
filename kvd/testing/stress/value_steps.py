"""Steps on values and their copies: what each of them asks, picked among what is there."""

import numpy as np

from kvd.testing.stress.contents import BandContents, Indices
from kvd.testing.stress.model import Copy, Value
from kvd.testing.stress.program import (
    Backup,
    Evict,
    Insert,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
)
from kvd.testing.stress.scheduler import Scheduler, Touch
from kvd.testing.stress.script import Fill
from kvd_client import Batch

BACKUP_UNITS_MAX = 6
LOAD_UNITS_MAX = 5


def insert(scheduler: Scheduler, step: Insert) -> bool:
    """Keep what a request holds as a value."""
    chosen = [request.number for request in scheduler.pick(scheduler.running(), step.pick_index)]
    scheduler.calm("request", chosen, Touch.CHANGES)
    for number in chosen:
        if number in scheduler.model.requests:
            value = scheduler.model.take_number("value")
            scheduler.ask(lambda batch: batch.insert(value, number))
            scheduler.touch("request", [number], Touch.CHANGES)
            return True
    return False


def _values(scheduler: Scheduler) -> list[Value]:
    return list(scheduler.model.values.values())


def evict(scheduler: Scheduler, step: Evict) -> bool:
    """Give up values that nobody is to write."""
    fitting = [
        value.number
        for value in _values(scheduler)
        if scheduler.may_end(value) and not value.loading
    ]
    chosen = scheduler.pick(fitting, step.pick_index, step.count % 3 + 1)
    if scheduler.calm("value", chosen, Touch.CHANGES):
        chosen = [
            number
            for number in chosen
            if (value := scheduler.model.values.get(number)) is not None
            and scheduler.may_end(value)
            and not value.loading
        ]
    if not chosen:
        return False
    scheduler.ask(lambda batch: batch.evict(chosen))
    scheduler.touch("value", chosen, Touch.CHANGES)
    return True


def _missing(value: Value, band: BandContents) -> Indices:
    """Return the pages of a value that have no unit in a window band."""
    return value.pages[band.places[value.pages] == 0]


def _reserved_count(value: Value, band_index: int) -> int:
    """Return how many units loads have reserved there and not named."""
    return sum(
        load.units[band_index] - _named(load, band_index).size
        for load in value.loads.values()
        if not load.submitted
    )


def _named(load: Copy, band_index: int) -> Indices:
    return load.named.get(band_index, np.zeros(0, dtype=np.int64))


def load_reserve(scheduler: Scheduler, step: LoadReserve) -> bool:
    """Take units for pages that a value lacks."""
    windows = scheduler.contents.windows
    lacking = [
        value.number
        for value in _values(scheduler)
        if any(_missing(value, band).size > _reserved_count(value, band.index) for band in windows)
    ]
    chosen = scheduler.pick(lacking, step.pick_index)
    scheduler.calm("value", chosen, Touch.CHANGES)
    for number in chosen:
        value = scheduler.model.values.get(number)
        if value is None:
            continue
        units: dict[str, int] = {}
        for band in scheduler.pick(windows, step.band, step.windows_count % len(windows) + 1):
            room = _missing(value, band).size - _reserved_count(value, band.index)
            if room > 0:
                units[band.name] = min(room, step.count % LOAD_UNITS_MAX + 1)
        if units:
            load = scheduler.model.take_number("copy")
            scheduler.ask(lambda batch: batch.load_reserve(load, number, units))
            scheduler.touch("value", [number], Touch.CHANGES)
            return True
    return False


def _open_loads(scheduler: Scheduler, index: int) -> list[Copy]:
    """Return a load that is not submitted, picked; whatever touches its value is sent before."""
    loads = [copy for copy in scheduler.model.copies.values() if copy.loads and not copy.submitted]
    chosen = scheduler.pick(loads, index)
    scheduler.calm("value", [load.value for load in chosen], Touch.CHANGES)
    copies = scheduler.model.copies
    return [load for load in chosen if load.number in copies and not load.submitted]


def _name(scheduler: Scheduler, load: Copy, count: int) -> bool:
    """Name up to so many units of every band of a load; return whether there were any."""
    named_any = False
    value = scheduler.model.values[load.value]
    for band in scheduler.contents.windows:
        left = load.units[band.index] - _named(load, band.index).size
        pages = _missing(value, band)[: min(left, count)]
        if pages.size:
            named_any = True
            scheduler.ask(
                lambda batch, name=band.name, pages=pages: batch.load_name(load.number, name, pages)
            )
    scheduler.touch("value", [load.value], Touch.CHANGES)
    return named_any


def load_name(scheduler: Scheduler, step: LoadName) -> bool:
    """Name the next units of a load."""
    return any(
        _name(scheduler, load, step.count % LOAD_UNITS_MAX + 1)
        for load in _open_loads(scheduler, step.pick_index)
    )


def load_submit(scheduler: Scheduler, step: LoadSubmit) -> bool:
    """Start a load, whose units are all named before."""
    for load in _open_loads(scheduler, step.pick_index):
        contents = scheduler.contents
        places: dict[str, Indices] = {}
        fills: list[Fill] = []
        for band in contents.windows:
            count = load.units[band.index]
            if not count:
                continue
            taken = scheduler.take_places(load.number, band.index, count)
            if taken is None:
                return False
            places[band.name] = taken
            tags = contents.new_tags(count * band.entries_count).reshape(count, -1)
            load.tags[band.index] = tags
            fills.append(Fill(band.index, taken, np.repeat(tags, band.entry_words_count, axis=1)))
        _name(scheduler, load, LOAD_UNITS_MAX)
        scheduler.batch.fills += fills
        scheduler.ask(lambda batch: batch.load_submit(load.number, places))
        scheduler.touch("value", [load.value], Touch.CHANGES)
        scheduler.batch.names_units = True
        return True
    return False


def load_cancel(scheduler: Scheduler, step: LoadCancel) -> bool:
    """Give up a load."""
    for load in _open_loads(scheduler, step.pick_index):
        scheduler.ask(lambda batch: batch.load_cancel(load.number))
        scheduler.touch("value", [load.value], Touch.CHANGES)
        return True
    return False


def backup(scheduler: Scheduler, step: Backup) -> bool:
    """Copy units of a value to the host."""
    fitting = [
        value.number
        for value in _values(scheduler)
        if not value.loading and not any(one.writes for one in value.transfers.values())
    ]
    chosen = scheduler.pick(fitting, step.pick_index)
    if scheduler.calm("value", chosen, Touch.CHANGES):
        return False
    for number in chosen:
        copy = _backup_of(scheduler, scheduler.model.values[number], step)
        if copy is None:
            return False
        names = [band.name for band in scheduler.contents.bands]

        def ask(batch: Batch) -> None:
            batch.backup(
                copy.number,
                {names[index]: ids for index, ids in copy.named.items()},
                {names[index]: places for index, places in copy.places.items()},
            )

        scheduler.ask(ask)
        scheduler.batch.names_units = True
        scheduler.touch("value", [number], Touch.CHANGES)
        return True
    return False


def _backup_of(scheduler: Scheduler, value: Value, step: Backup) -> Copy | None:
    """Return a backup of units of a value, proposed; None where nothing fits."""
    model = scheduler.model
    ids = model.readable_ids_of(value)
    bands = scheduler.contents.bands
    number = model.next_number["copy"]
    copy = Copy(number, value.number, loads=False)
    for band in scheduler.pick(bands, step.band, step.bands_count % len(bands) + 1):
        virtual = ids[band.index][: step.count % BACKUP_UNITS_MAX + 1]
        if virtual.size:
            places = scheduler.take_places(number, band.index, virtual.size)
            if places is not None:
                copy.named[band.index], copy.places[band.index] = virtual, places
    if not copy.named:
        return None
    model.take_number("copy")
    model.proposed_copies[number] = copy
    return copy
