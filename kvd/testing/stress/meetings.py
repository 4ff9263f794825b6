"""Runs of steps in which a use of pages meets whoever writes or reads the same bytes next.

Cells of the clearance tables (semantics 8.3 and 8.4) need three things at once: something is at
work on units, their owner ends or they move, and there is no room but theirs. Drawn one by one,
steps seldom bring that about; each run here is one such meeting, with everything else drawn.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from kvd.testing.stress.meeting_parts import (
    ALL,
    BANDS_MAX,
    RELIEF_UNITS,
    any_place,
    fill,
    later,
    loads,
    long_values,
    losses,
    reports,
    squeeze,
    take,
    values,
)
from kvd.testing.stress.program import (
    Abort,
    Admit,
    Advance,
    AnyStep,
    Backup,
    Decode,
    Elsewhere,
    Evict,
    Free,
    Hold,
    Insert,
    Launch,
    LetGo,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Play,
    Post,
    Process,
    Publish,
    Record,
    Relief,
    Send,
    Stand,
)
from kvd.testing.stress.rare_meetings import (
    admitted_elsewhere_under_a_launch,
    died_uncleared,
    failed_and_died,
    given_up_and_lost,
    moved_into_what_was_read,
    processed_and_died,
    read_before_its_load,
    reported_out_of_order,
    sent_and_left_behind,
    sent_before_its_clearing,
    slots_received_before_a_launch,
    stretched,
)
from kvd.testing.stress.rough_meetings import (
    dared,
    died_at_once,
    lost_and_wanted,
    moved_and_died,
    retracted_and_back,
    sink_reset_between_forwards,
    wronged,
)

Meeting = Callable[[Random], Iterator[AnyStep]]
_WINDOWS_END: Final = 3
"""Among so many first bands every shape that has windows has its first one."""


def backed_up_and_given_up(random: Random) -> Iterator[AnyStep]:
    """Give a value up while it is backed up."""
    yield from fill(random)
    yield from random.choice((values, long_values, long_values))(random)
    pick = any_place(random)
    for _ in range(random.randint(1, 3)):
        yield Backup(pick_index=pick, band=random.randrange(8), count=5, bands_count=3)
    yield Evict(pick_index=pick, count=random.randrange(2))
    if random.randrange(3) == 0:
        yield from squeeze(random)
    yield from loads(random, random.randrange(4))
    yield from take(random)
    yield from take(random)
    yield from later(random)


def loaded_over_what_moved(random: Random) -> Iterator[AnyStep]:
    """Load into bytes that a forward in flight reads and that moved away from there."""
    yield from long_values(random)
    yield from fill(random)
    yield Free(pick_index=any_place(random), count=random.randrange(2))
    yield Process(count=3)
    yield Send()
    yield Launch(count=ALL, silent=random.randrange(2) == 0)
    yield Record()
    yield from squeeze(random, bands_count=_WINDOWS_END)
    yield from loads(random, 8)
    yield from later(random)


def backed_up_under_forwards(random: Random) -> Iterator[AnyStep]:
    """Back up what a forward in flight is writing."""
    yield from fill(random)
    yield Launch(count=ALL, unstated=random.randrange(4) == 0)
    yield Record()
    yield Advance(pick_index=any_place(random), count=3)
    yield Insert(pick_index=any_place(random))
    yield Send()
    for pick in range(3):
        yield Backup(pick_index=pick, band=random.randrange(8), count=5, bands_count=3)
    yield Send()
    yield from later(random)


def aborted(random: Random) -> Iterator[AnyStep]:
    """Leave a launch by an exception, and move or hand out what it may be writing."""
    yield from fill(random)
    yield Process(count=3)
    yield Launch(count=ALL, pick_index=any_place(random))
    yield Abort()
    if random.randrange(2):
        yield Free(pick_index=any_place(random), count=random.randrange(2))
    yield from squeeze(random)
    yield from take(random)
    yield from later(random)


def load_given_up(random: Random) -> Iterator[AnyStep]:
    """Give a load up whose units have names in part, or have them move before it is submitted."""
    yield from random.choice((values, long_values, long_values))(random)
    pick = any_place(random)
    yield LoadReserve(pick_index=pick, count=4, windows_count=3)
    yield Send()
    yield LoadName(pick_index=pick, count=random.randrange(5))
    if random.randrange(2):
        yield LoadName(pick_index=pick, count=4)
    yield Free(pick_index=any_place(random))
    yield Send()
    yield from squeeze(random)
    yield LoadCancel(pick_index=pick) if random.randrange(2) else LoadSubmit(pick_index=pick)
    yield from take(random)
    yield from later(random)


def loaded_and_given_up(random: Random) -> Iterator[AnyStep]:
    """Give a value up while it is loaded into."""
    yield from random.choice((values, long_values, long_values))(random)
    yield from fill(random)
    pick = any_place(random)
    yield LoadReserve(pick_index=pick, count=4, windows_count=3)
    yield LoadSubmit(pick_index=pick)
    yield Send()
    yield Evict(pick_index=pick, count=random.randrange(3))
    if random.randrange(2):
        yield from squeeze(random)
    yield from loads(random, random.randrange(4))
    yield from take(random)
    yield from take(random)
    yield from later(random)


def loaded_and_read(random: Random) -> Iterator[AnyStep]:
    """Back up, send or receive into what is being loaded, or have it move."""
    yield from random.choice((values, long_values, long_values))(random)
    pick = any_place(random)
    yield LoadReserve(pick_index=pick, count=4, windows_count=3)
    yield LoadSubmit(pick_index=pick)
    yield Send()
    for _ in range(2):
        match random.randrange(4):
            case 0:
                yield Backup(pick_index=pick, band=random.randrange(8), count=5, bands_count=3)
            case 1:
                yield Post(pick_index=pick, count=5)
            case 2:
                yield Hold(pick_index=pick, count=5, value=True)
                yield Publish(pick_index=any_place(random))
            case _:
                yield Free(pick_index=any_place(random), count=random.randrange(3))
                yield from squeeze(random)
    yield Send()
    yield from later(random)


def published_over_copies(random: Random) -> Iterator[AnyStep]:
    """Tell a peer places that a backup reads, or a load writes."""
    yield from random.choice((values, long_values, long_values))(random)
    pick = any_place(random)
    if random.randrange(2):
        yield Backup(pick_index=pick, band=random.randrange(8), count=5, bands_count=3)
    else:
        yield LoadReserve(pick_index=pick, count=4, windows_count=3)
        yield LoadSubmit(pick_index=pick)
    yield Send()
    for beside in range(3):
        yield Hold(pick_index=pick + beside, count=5, value=True)
    yield Send()
    if random.randrange(3) == 0:
        yield from squeeze(random)
    for beside in range(3):
        yield Publish(pick_index=beside)
    yield Send()
    yield LetGo(pick_index=any_place(random))
    yield from later(random)
    yield from reports(random)


def moved_under_forwards(random: Random) -> Iterator[AnyStep]:
    """Move what a forward reads and writes, or hand out what it read."""
    yield from fill(random)
    yield Free(pick_index=any_place(random), count=random.randrange(2))
    yield Process(count=3)
    yield Send()
    yield Launch(
        pick_index=any_place(random),
        count=random.randrange(ALL),
        unstated=random.randrange(3) == 0,
        silent=random.randrange(3) == 0,
    )
    yield Record()
    if random.randrange(2):
        yield Free(pick_index=any_place(random))
    yield from squeeze(random)
    if random.randrange(2):
        yield from squeeze(random)
    yield from take(random)
    yield from later(random)


def moved_back_and_forth(random: Random) -> Iterator[AnyStep]:
    """Make room in one band after the other while one forward that writes little still reads."""
    yield from fill(random)
    yield Launch(count=ALL)
    yield Record()
    yield Free(pick_index=any_place(random), count=random.randrange(3))
    yield Process(count=3)
    yield Process(count=3)
    yield Send()
    yield Launch(pick_index=any_place(random), silent=random.randrange(2) == 0)
    yield Record()
    for _ in range(random.randint(2, 4)):
        yield from squeeze(random)
        if random.randrange(3) == 0:
            yield Free(pick_index=any_place(random))
    yield from take(random)
    yield from later(random)


def freed_under_forwards(random: Random) -> Iterator[AnyStep]:
    """End requests under several forwards in flight, and take again what they held."""
    yield from fill(random)
    for _ in range(random.randint(2, 4)):
        yield Launch(pick_index=any_place(random), count=random.randrange(ALL))
        yield Record()
        yield Free(pick_index=any_place(random), count=random.randrange(2))
        if random.randrange(2):
            yield Send()
    if random.randrange(2):
        yield Process(count=random.randrange(3))
    yield from take(random)
    yield Launch(count=ALL)
    yield from later(random)
    yield from take(random)


def sent_and_given_up(random: Random) -> Iterator[AnyStep]:
    """Give up, free or move what a peer reads, and want its place."""
    yield from values(random)
    yield from fill(random)
    pick = any_place(random)
    request = random.randrange(3) == 0
    if request:
        yield Process(count=3)
        yield Process(count=3)
    units = random.choice((0, 1, 5))
    yield Post(pick_index=pick, count=units, band=random.randrange(6), request=request)
    yield Send()
    yield Free(pick_index=pick) if request else Evict(pick_index=pick)
    for _ in range(random.randrange(4)):
        yield from squeeze(random)
    yield from take(random)
    yield from take(random)
    yield from later(random)
    if random.randrange(3) == 0:
        yield from losses(random)
        yield from take(random)
    elif random.randrange(2):
        yield LetGo(pick_index=any_place(random))
        yield from reports(random)


def received_and_wanted(random: Random) -> Iterator[AnyStep]:
    """Have a peer write, or be about to, where others would have to move."""
    yield from fill(random)
    yield Process(count=3)
    yield Process(count=3)
    value = random.randrange(2) == 0
    yield Hold(pick_index=any_place(random), count=5, band=random.randrange(6), value=value)
    yield Send()
    yield from squeeze(random)
    if random.randrange(3):
        yield Publish(pick_index=any_place(random))
    yield Free(pick_index=any_place(random), count=random.randrange(2))
    yield from take(random)
    yield from take(random)
    yield LetGo(pick_index=any_place(random))
    yield from later(random)
    yield from reports(random)


def moved_elsewhere(random: Random) -> Iterator[AnyStep]:
    """Have another program move what a forward writes that was not told."""
    yield from fill(random)
    yield Free(pick_index=any_place(random), count=random.randrange(2))
    for _ in range(random.randint(1, 2)):
        yield Process(count=3)
        yield Process(count=3)
        yield Send()
        for _ in range(random.randint(1, 2)):
            yield Launch(pick_index=any_place(random), count=ALL, silent=random.randrange(2) == 0)
            yield Record()
        yield Elsewhere(
            pick_index=any_place(random),
            band=random.randrange(8),
            value=random.randrange(2) == 0,
        )
        yield from take(random)
        yield from later(random)


def slots_moved_before_a_launch(random: Random) -> Iterator[AnyStep]:
    """Move slots that were handed out, or have a peer write them, before a launch clears them."""
    yield from fill(random)
    yield Launch(count=ALL)
    yield Record()
    yield Process(count=3)
    yield Process(count=3)
    yield Send()
    yield Admit(prompt_tokens=random.randrange(1, 12), take_tokens=random.randrange(1, 12))
    yield Free(pick_index=random.randrange(3), count=random.randrange(2))
    yield Send()
    if random.randrange(2):
        yield Relief(units=(0, *[random.choice(RELIEF_UNITS) for _ in range(BANDS_MAX - 1)]))
    else:
        yield Hold(pick_index=any_place(random), count=5)
        yield Publish(pick_index=any_place(random))
        yield Send()
        yield LetGo(pick_index=any_place(random))
        yield Play(actions_count=random.randrange(60))
        yield from reports(random)
    yield Send()
    yield Launch(count=ALL)
    yield from later(random)


def _pass(random: Random) -> Iterator[AnyStep]:
    yield Stand(pick_index=any_place(random), count=3)
    yield Advance(standing=True)
    yield Decode(victims_count=random.randrange(3))
    yield Process(count=random.randrange(2))
    yield Send()
    yield Launch(pick_index=any_place(random), count=ALL, standing=random.randrange(2) == 0)
    yield Record()
    yield from later(random)


MEETINGS: Final[tuple[Meeting, ...]] = (
    backed_up_and_given_up,
    backed_up_under_forwards,
    aborted,
    load_given_up,
    loaded_over_what_moved,
    loaded_and_given_up,
    loaded_and_read,
    published_over_copies,
    moved_under_forwards,
    moved_under_forwards,
    moved_back_and_forth,
    freed_under_forwards,
    sent_and_given_up,
    received_and_wanted,
    lost_and_wanted,
    dared,
    dared,
    moved_elsewhere,
    wronged,
    slots_moved_before_a_launch,
    sink_reset_between_forwards,
    retracted_and_back,
    slots_received_before_a_launch,
    sent_and_left_behind,
    moved_into_what_was_read,
    given_up_and_lost,
    read_before_its_load,
    reported_out_of_order,
    stretched,
    sent_before_its_clearing,
    admitted_elsewhere_under_a_launch,
    _pass,
    _pass,
)
DEATHS: Final[tuple[Meeting, ...]] = (
    moved_and_died,
    moved_and_died,
    died_at_once,
    failed_and_died,
    processed_and_died,
    died_uncleared,
)
"""What happens beside everything else where ranks die."""
NAMED_MEETINGS: Final[dict[str, Meeting]] = {
    meeting.__name__.strip("_"): meeting for meeting in (*MEETINGS, *DEATHS)
}
"""By name, so that a run can lean to one of them."""
