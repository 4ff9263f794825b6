"""Operations on values, copies and transfers that meet what is still open on their pages.

Each plays on a bench and returns why its last operation was turned down, empty if it was served.
"""

from kvd_proto.operations import (
    Admit,
    Advance,
    Evict,
    Insert,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Operation,
    Publish,
    ResetSink,
)
from kvd_proto.outcomes import Pump
from tests.mutation.operations_bench import OperationsBench
from tests.stateful.ranks import PAGE_TOKENS, int32s, int64s
from tests.stateful.values import (
    FULL,
    LONG_WINDOW,
    STATE,
    backup,
    held,
    hold,
    hosts,
    missing,
    pages,
    post,
)

VALUE_TOKENS = 32
SERVED = ""


def admit(request: int, tokens: int) -> Operation:
    return Admit(int64s([request]), int32s([tokens]), int32s([0]), int32s([tokens]), tokens)


def take_behind_a_backup(bench: OperationsBench) -> str:
    """A value is backed up, evicted and its pages handed out."""
    bench.decide(backup(1, FULL, pages(bench.engine, FULL)), Evict(int64s([1])))
    bench.decide(admit(3, VALUE_TOKENS))
    return SERVED


def slot_behind_a_backup(bench: OperationsBench) -> str:
    """A value's state is backed up, evicted and its slot handed out, to be cleared by a launch."""
    bench.launch(writes=[2])  # which has cleared the value's slot
    bench.process()
    bench.waited.clear()
    bench.decide(backup(1, STATE, pages(bench.engine, STATE)), Evict(int64s([1])))
    bench.decide(admit(3, PAGE_TOKENS))
    bench.launch(writes=[3])
    return SERVED


def load_into_value(bench: OperationsBench, number: int = 1) -> list[int]:
    """Load two pages of value 1; returns them."""
    names = missing(bench.engine, LONG_WINDOW)[-2:]
    bench.decide(
        LoadReserve(number, 1, (0, 2, 0, 0)),
        LoadName(number, LONG_WINDOW, int64s(names)),
        LoadSubmit(number, hosts(LONG_WINDOW, 2)),
    )
    return names


def take_behind_a_load(bench: OperationsBench) -> str:
    """A value is evicted while a load fills it, and its pages are handed out."""
    load_into_value(bench)
    bench.decide(Evict(int64s([1])), admit(3, VALUE_TOKENS))
    return SERVED


def take_behind_a_send(bench: OperationsBench) -> str:
    """A value is evicted while a peer reads it, and pages are handed out."""
    sent = bench.decide(post(1, FULL, pages(bench.engine, FULL)))
    bench.tell_peer(sent, writes=False)
    bench.decide(Evict(int64s([1])), admit(3, VALUE_TOKENS))
    return SERVED


def take_behind_a_send_and_a_step(bench: OperationsBench) -> str:
    """The same under a running step: the pages pend, and once it is processed they are vacated."""
    sent = bench.decide(post(1, FULL, pages(bench.engine, FULL)))
    bench.tell_peer(sent, writes=False)
    bench.launch((FULL, held(bench.engine, 2, FULL)), writes=[2])
    bench.decide(Evict(int64s([1])))
    bench.process()
    bench.decide(admit(3, VALUE_TOKENS))
    return SERVED


def second_value(bench: OperationsBench) -> None:
    """Insert value 2, and use up every hole of the long window."""
    bench.decide(admit(3, VALUE_TOKENS), Advance(int64s([3]), VALUE_TOKENS), Insert(2, 3))
    holes = bench.bands[LONG_WINDOW].hole_units
    if holes:
        bench.decide(admit(4, holes * PAGE_TOKENS))


def load_where_value_1_lay(bench: OperationsBench) -> None:
    """Evict value 1 and load a page of value 2, for which no other hole is left."""
    bench.decide(Evict(int64s([1])))
    value = bench.engine.requests.values.get(2)
    names = value.missing(LONG_WINDOW)[:2].tolist()
    bench.decide(
        LoadReserve(2, 2, (0, len(names), 0, 0)),
        LoadName(2, LONG_WINDOW, int64s(names)),
        LoadSubmit(2, hosts(LONG_WINDOW, len(names))),
    )


def load_behind_a_backup(bench: OperationsBench) -> str:
    """A load takes the place of a value that is being backed up."""
    second_value(bench)
    bench.decide(backup(1, LONG_WINDOW, pages(bench.engine, LONG_WINDOW)))
    load_where_value_1_lay(bench)
    return SERVED


def load_behind_a_step(bench: OperationsBench) -> str:
    """A load takes the place of a value that a running step reads."""
    second_value(bench)
    bench.launch((LONG_WINDOW, pages(bench.engine, LONG_WINDOW)), writes=[2])
    load_where_value_1_lay(bench)
    return SERVED


def publish(bench: OperationsBench, number: int) -> str:
    outcome = bench.decide(Publish(number))
    if isinstance(outcome.result, Pump):
        return "pump"
    bench.tell_peer(outcome, writes=True)
    return SERVED


def receive_behind_a_backup(bench: OperationsBench) -> str:
    """A peer is to write pages that are being backed up."""
    ids = held(bench.engine, 2, FULL)
    bench.decide(backup(1, FULL, ids), hold(1, FULL, ids))
    return publish(bench, 1)


def receive_behind_a_load(bench: OperationsBench) -> str:
    """A peer is to write pages that a load fills."""
    ids = load_into_value(bench)
    bench.decide(hold(1, LONG_WINDOW, ids))
    return publish(bench, 1)


def receive_behind_zeroing(bench: OperationsBench) -> str:
    """A peer is to write pages that were handed out and are to be zeroed."""
    bench.decide(admit(3, PAGE_TOKENS))
    bench.decide(hold(1, FULL, held(bench.engine, 3, FULL)))
    return publish(bench, 1)


def receive_into_a_new_slot(bench: OperationsBench) -> str:
    """A peer is to write a slot that was handed out, and that the next launch would clear."""
    bench.decide(admit(3, PAGE_TOKENS))
    bench.decide(hold(1, STATE, held(bench.engine, 3, STATE)))
    turned_down = publish(bench, 1)
    bench.launch(writes=[2])
    return turned_down


def receive_into_a_slot_under_clearing(bench: OperationsBench) -> str:
    """The same, behind a launch that is clearing it."""
    bench.decide(admit(3, PAGE_TOKENS))
    bench.launch(writes=[2])
    bench.decide(hold(1, STATE, held(bench.engine, 3, STATE)))
    return publish(bench, 1)


def receive_behind_a_send(bench: OperationsBench) -> str:
    """A peer is to write pages that another one reads."""
    ids = held(bench.engine, 2, FULL)
    bench.tell_peer(bench.decide(post(1, FULL, ids)), writes=False)
    bench.decide(hold(2, FULL, ids))
    return publish(bench, 2)


def back_up_behind_a_load(bench: OperationsBench) -> str:
    """Pages are backed up that a load fills."""
    bench.decide(backup(2, LONG_WINDOW, load_into_value(bench)))
    return SERVED


def back_up_behind_a_receive(bench: OperationsBench) -> str:
    """Pages are to be backed up that a peer writes."""
    ids = held(bench.engine, 2, FULL)
    bench.decide(hold(1, FULL, ids))
    publish(bench, 1)
    bench.decide(backup(1, FULL, ids))
    return SERVED


def back_up_before_a_clearing(bench: OperationsBench) -> str:
    """A slot is to be backed up that was handed out, and that the next launch clears."""
    bench.decide(admit(3, PAGE_TOKENS))
    bench.decide(backup(1, STATE, held(bench.engine, 3, STATE)))
    bench.launch(writes=[3])
    return SERVED


def send_before_a_clearing(bench: OperationsBench) -> str:
    """The same slot is to be sent."""
    bench.decide(admit(3, PAGE_TOKENS))
    bench.tell_peer(bench.decide(post(1, STATE, held(bench.engine, 3, STATE))), writes=False)
    bench.launch(writes=[2])
    return SERVED


def send_under_a_clearing(bench: OperationsBench) -> str:
    """The same, behind a launch over another request, which is clearing the slot."""
    bench.decide(admit(3, PAGE_TOKENS))
    bench.launch(writes=[2])
    bench.tell_peer(bench.decide(post(1, STATE, held(bench.engine, 3, STATE))), writes=False)
    return SERVED


def send_behind_a_step(bench: OperationsBench) -> str:
    """Pages are to be sent that a running step writes."""
    ids = held(bench.engine, 2, FULL)
    bench.launch((FULL, ids), writes=[2])
    bench.tell_peer(bench.decide(post(1, FULL, ids)), writes=False)
    return SERVED


def send_behind_an_unknown_step(bench: OperationsBench) -> str:
    """Pages are to be sent while a step runs that may write them."""
    ids = held(bench.engine, 2, FULL)
    bench.launch((FULL, ids), writes=None)
    bench.tell_peer(bench.decide(post(1, FULL, ids)), writes=False)
    return SERVED


def send_behind_a_load(bench: OperationsBench) -> str:
    """Pages are to be sent that a load fills."""
    bench.tell_peer(bench.decide(post(1, LONG_WINDOW, load_into_value(bench))), writes=False)
    return SERVED


def reset_sink_behind_a_step(bench: OperationsBench) -> str:
    """The sink is zeroed while a running step reads it."""
    bench.launch(writes=[2], reads_sink=True)
    bench.decide(ResetSink())
    return SERVED
