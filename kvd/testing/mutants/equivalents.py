"""Changes that look like faults and make no difference, each with its proof."""

from typing import Final

from kvd.testing.mutants.fault import Equivalent

EQUIVALENTS: Final[tuple[Equivalent, ...]] = (
    Equivalent(
        "rows c1 and c6",
        "the cells of FORWARD_WRITE and STATE_WRITE are left out",
        "no call names these consumers: slots are handed out by the row of ZEROING, which asks "
        "for no less (tests/mutation/test_cells.py compares the rows)",
    ),
    Equivalent(
        "column h2",
        "the cells of PENDING are left out",
        "no use is of this hazard: what pends is kept from everybody by the state of its units, "
        "which `pending-to-holes` leaves out",
    ),
    Equivalent(
        "c5-h1 and c5-h7",
        "VACATED_READ and NETWORK_RECEIVE before PEER_WRITE are left out",
        "moves leave fences behind and no VACATED_READ of a step in a ledger, and `publish` asks "
        "no fence; a second receive of a place that is held is refused when it is announced, and "
        "what another transfer touches is answered with its number before the cell is asked",
    ),
    Equivalent(
        "one of two rules that cover the same",
        "a cell in NETWORK_SEND's column alone, or r1-receive alone, is left out",
        "such units are neither holes nor movable, and a publication over a send waits for its "
        "end, while the other rule stands, which the table names behind 'and with it'; "
        "tests/mutation shows that either is enough",
    ),
    Equivalent(
        "load-waits-f",
        "LD does not wait the tail of F",
        "a load writes units that were handed out for it, so A waited whoever may still read or "
        "write them (cells c4-h1 and S of c4-h2; where they moved since, those of "
        "MOVE_DESTINATION), A is behind the whole end of a step that the books have not heard of "
        "(`Cursor._guard_of`), and LD waits A; nobody writes or reads what was named before its "
        "load is over, which is wrong use; `c4-h1` leaves out both",
    ),
    Equivalent(
        "ends forgotten early",
        "the ends of earlier steps are forgotten when one is launched",
        "`Step._order_allocator`, which alone notes steps, passes a barrier with each, and "
        "`Applier._assemble` and `_known` wait for it ahead of all that is applied later; it lies"
        " on the forwards' stream behind the whole end of every earlier step "
        "(`Step._order_forward`). tests/client/test_overlap_streams.py pins that",
    ),
    Equivalent(
        "no epoch at a promise",
        "a band's epoch stays when something is promised",
        "the snapshot that is kept for an epoch holds no promises: `_with_promises` adds what is "
        "promised to every question as it is asked",
    ),
    Equivalent(
        "holds that stay behind",
        "a hold does not follow units that move, or a peer is told the places as of the hold",
        "what is held does not move: it is part of its band's soft extent, which every layout "
        "that waits for no transfer keeps, layouts that wait for one are never realised "
        "(`make_room`), and no unasked move takes it (`PageUsage.may_move`)",
    ),
    Equivalent(
        "double free",
        "names that are not bound, or named twice, are freed",
        "no operation names units to be freed: requests and values are ended by their own "
        "numbers, which are checked before, and each holds a unit once "
        "(request.rows_match_bands); what slides out of a window is a range of the row's places "
        "that moves on",
    ),
    Equivalent(
        "the order of Move and WriteMap in a segment",
        "the tables name the new place before the copy is enqueued",
        "A runs both before any forward that is launched behind them, and behind the reads of "
        "those launched before (their barrier, or their whole end); copies and peers carry places"
        " of their own, and redo begins at the head of a segment",
    ),
)
