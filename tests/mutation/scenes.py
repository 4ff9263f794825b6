"""What scenarios of cells are made of: how hazards come about, and what else keeps them apart."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from kvd.alloc.band import Units
from kvd.alloc.clearance import Cell, Consumer, Hazard, Rule
from kvd.price.snapshot import BandSnapshot, Interval
from tests.mutation.bench import Bench

X, H, W = 1, 2, 3
"""Names: whose bytes the hazard is on, one whose place is a hole like any other, one that stays."""

Scene: TypeAlias = Callable[[Bench], None]


class Companion(NamedTuple):
    """Another rule that keeps the two accesses of a cell apart, and how to do without it."""

    name: str
    remove: Scene


# ---- companions, and rules that are known by heart ---------------------------------------------


def loads_beside_forwards(bench: Bench) -> None:
    bench.loads_follow_forwards = False


def forwards_beside_each_other(bench: Bench) -> None:
    bench.forwards_run_in_order = False


def nothing_is_vacated(bench: Bench) -> None:
    """Let units that a transfer may touch become holes at once."""

    def let_go(units: Units) -> None:
        getattr(bench.band, "_add_holes")(units)  # noqa: B009

    setattr(bench.band, "_let_go", let_go)  # noqa: B010


def nothing_pends(bench: Bench) -> None:
    """Let freed units become holes at once, whatever is in flight."""
    release, steps = bench.band.release, bench.chain.steps

    def at_once(virtual: Units) -> None:
        key, steps.pending_key = steps.pending_key, 0
        release(virtual)
        steps.pending_key = key

    setattr(bench.band, "release", at_once)  # noqa: B010


def blocked_bytes_are_room(bench: Bench) -> None:
    """Let layouts be planned as if bytes that a transfer touches could be anybody's."""

    def none(vacated: object = ()) -> tuple[Interval, ...]:
        return ()

    setattr(bench.order.fences, "blocked", none)  # noqa: B010


def nothing_is_fixed(bench: Bench) -> None:
    """Let layouts be planned as if every live unit could be moved."""
    snapshot = bench.band.snapshot

    def movable() -> BandSnapshot:
        return snapshot()._replace(soft_fixed=None)

    setattr(bench.band, "snapshot", movable)  # noqa: B010


def row_without_following(consumer: Consumer) -> Scene:
    def remove(bench: Bench) -> None:
        bench.order.clearance = {
            place: Rule(Cell.WAIT, rule.reason)
            if place[0] is consumer
            and rule.cell is Cell.WAIT_AND_FOLLOW
            and place[1] is not Hazard.ALLOCATOR_WORK
            else rule
            for place, rule in bench.order.clearance.items()
        }

    return remove


LOADS_FOLLOW = Companion("a load waits the tail of F", loads_beside_forwards)
FORWARDS_IN_ORDER = Companion("a forward waits the one before it", forwards_beside_each_other)
VACATED = Companion("a unit that a transfer may touch is no hole", nothing_is_vacated)
BLOCKED = Companion("no layout covers bytes that a transfer touches", blocked_bytes_are_room)
FIXED = Companion("a layout moves no unit under a transfer", nothing_is_fixed)


# ---- how hazards come about --------------------------------------------------------------------


def come(bench: Bench, consumer: Consumer) -> None:
    """Let the next writer come, which never runs on the stream of whom it may collide with."""
    bench.hand_out(
        consumer,
        load_stream=bench.device.stream("second load"),
        forward_stream=bench.device.stream("second forward"),
    )


def vacated(consumer: Consumer) -> Scene:
    """A running step reads unit 2, which moved away and left the band since."""

    def scene(bench: Bench) -> None:
        bench.live(H, X)
        bench.free(H)
        bench.launch(reads=[X])
        bench.draw_back()
        if consumer is not Consumer.MOVE_DESTINATION:
            bench.band.grow((1, 3))
            come(bench, consumer)
            return
        bench.band.grow((1, 4))
        # The hole that nothing is open on comes first, and leaves the other one to the move.
        assert bench.hand_out(Consumer.ZEROING)[0] == 3
        bench.draw_back()

    return scene


def pending(consumer: Consumer) -> Scene:
    """A running step reads and writes a unit that was freed since."""

    def scene(bench: Bench) -> None:
        bench.live(X, W)
        bench.launch(reads=[X], writes=[X])
        bench.free(X)
        if consumer is Consumer.MOVE_DESTINATION:
            bench.give_way()
        else:
            come(bench, consumer)

    return scene


def backed_up(consumer: Consumer) -> Scene:
    """A backup reads a unit that was freed since."""

    def scene(bench: Bench) -> None:
        bench.live(X, W)
        bench.back_up(X)
        bench.free(X)
        if consumer is Consumer.MOVE_DESTINATION:
            bench.draw_back()
        else:
            come(bench, consumer)

    return scene


def loaded(consumer: Consumer) -> Scene:
    """A load fills a unit that was given up since."""

    def scene(bench: Bench) -> None:
        bench.live(X, W)
        bench.load(bench.place_of(X))
        bench.free(X)
        if consumer is Consumer.MOVE_DESTINATION:
            bench.draw_back()
        else:
            come(bench, consumer)

    return scene


def sent(consumer: Consumer) -> Scene:
    """A peer reads a unit that was freed since; another hole lies behind it."""

    def scene(bench: Bench) -> None:
        bench.live(X, H, W)
        bench.send(X)
        bench.free(X, H)
        if consumer is Consumer.MOVE_DESTINATION:
            bench.draw_back()
        else:
            come(bench, consumer)

    return scene


def left(consumer: Consumer, begin: Scene) -> Scene:
    """A copy is at work on bytes that left the band; the band grows over them again."""

    def scene(bench: Bench) -> None:
        bench.live(X)
        begin(bench)
        bench.free(X)
        bench.chain.settle_freed()
        assert bench.band.span == (1, 1)
        if consumer is not Consumer.MOVE_DESTINATION:
            bench.band.grow((1, 2))
            come(bench, consumer)
            return
        bench.band.grow((1, 3))
        assert bench.hand_out(Consumer.ZEROING)[0] == 2
        bench.draw_back()

    return scene


def left_by_what_is_sent(consumer: Consumer) -> Scene:
    """A peer reads bytes of unit 2, whose owner moved away; the band would have to grow there."""

    def scene(bench: Bench) -> None:
        bench.live(H, X)
        bench.free(H)
        bench.send(X)
        bench.draw_back()
        come(bench, consumer)

    return scene


def received(bench: Bench) -> None:
    """A peer writes a unit that was given up since; another peer is told a place."""
    bench.live(X, H, W)
    bench.receive(bench.place_of(X))
    bench.free(X, H)
    bench.hand_out(Consumer.PEER_WRITE)


def zeroed(consumer: Consumer) -> Scene:
    """A page was handed out and A has yet to zero it."""

    def scene(bench: Bench) -> None:
        units = bench.hand_out(Consumer.ZEROING)
        if consumer is Consumer.HOST_LOAD:
            bench.load(units)
        else:
            bench.receive(units)

    return scene


# ---- how readers meet writers ------------------------------------------------------------------


def moved_from_under(begin: Scene) -> Scene:
    def scene(bench: Bench) -> None:
        bench.live(H, X)
        bench.free(H)
        begin(bench)
        bench.draw_back()

    return scene


def read_by(begin: Scene, read: Callable[[Bench, int], None]) -> Scene:
    def scene(bench: Bench) -> None:
        bench.live(X)
        begin(bench)
        read(bench, X)

    return scene


def forward_writes(bench: Bench) -> None:
    bench.launch(writes=[X])


def forward_may_write(bench: Bench) -> None:
    bench.launch(writes=[X], states_writes=False)


def back_up(bench: Bench) -> None:
    bench.back_up(X)


def load_writes(bench: Bench) -> None:
    bench.load(bench.place_of(X))


def peer_writes(bench: Bench) -> None:
    bench.receive(bench.place_of(X))


def moved_from_under_a_peer(bench: Bench) -> None:
    bench.live(H, X)
    bench.free(H)
    peer_writes(bench)
    bench.give_way()
