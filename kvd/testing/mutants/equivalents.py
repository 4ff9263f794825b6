"""Changes that look like faults and make no difference, each with its proof."""

from typing import Final

from kvd.testing.mutants.fault import Equivalent

EQUIVALENTS: Final[tuple[Equivalent, ...]] = (
    Equivalent(
        "rows c1 and c6",
        "the cells of FORWARD_WRITE and STATE_WRITE are left out",
        "no call names these consumers: slots are handed out by the row of ZEROING, which asks for "
        "no less (tests/mutation/test_cells.py compares the rows)",
    ),
    Equivalent(
        "column h2",
        "the cells of PENDING are left out",
        "no use is of this hazard: what pends is kept from everybody by the state of its units, "
        "which `pending-to-holes` leaves out",
    ),
    Equivalent(
        "c4-h5",
        "COPY_WRITE before HOST_LOAD is left out",
        "all loads of a rank run on one stream, in the order in which they were asked for, so the "
        "newer load is behind the older one without a wait",
    ),
    Equivalent(
        "c5-h1 and c5-h7",
        "VACATED_READ and NETWORK_RECEIVE before PEER_WRITE are left out",
        "what is published is live, so nothing of it is vacated, and a second receive of a place "
        "that is held is refused when it is announced",
    ),
    Equivalent(
        "one of two rules that cover the same",
        "a cell in NETWORK_SEND's column alone, or r1-receive alone, is left out",
        "such units are neither holes nor movable while another rule stands, which the table names "
        "behind 'and with it'; tests/mutation shows that either is enough",
    ),
    Equivalent(
        "load-waits-f",
        "LD does not wait the tail of F",
        "a load writes units that were handed out for it, so A waited whoever may still read or "
        "write them (cells c4-h1 and S of c4-h2), and LD waits A; `c4-h1` leaves out both",
    ),
    Equivalent(
        "ends forgotten early",
        "the ends of earlier steps are forgotten when one is launched",
        "`Step._order_allocator`, which alone notes steps, passes a barrier with each, and "
        "`Applier._assemble` and `_known` wait for it ahead of all that is applied later; it lies "
        "on the forwards' stream behind the whole end of every earlier step "
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
        "what is held does not move: it is part of its band's soft extent, which every layout that "
        "waits for no transfer keeps, and no unasked move takes it (`PageUsage.may_move`)",
    ),
    Equivalent(
        "growth below the ground",
        "the gap below a float is counted one unit too large where its ground lies off its grid",
        "`_grown` prefers that gap only where it is larger than the one above, which holds the "
        "growth, so that the true gap holds it too; where the float cannot grow up, `_bounds` has "
        "made the room below it in bytes. It breaks a tie otherwise, alike on every machine",
    ),
    Equivalent(
        "double free",
        "names that are not bound, or named twice, are freed",
        "no operation names units to be freed: requests and values are ended by their own numbers, "
        "which are checked before, and each holds a unit once (request.rows_match_bands)",
    ),
    Equivalent(
        "the order of Move and WriteMap in a segment",
        "the tables name the new place before the copy is enqueued",
        "A runs both before any forward that is launched behind them, and redo begins at the head "
        "of a segment",
    ),
    Equivalent(
        "the host waits for a step that it reports as processed",
        "processed is said before the step is over",
        "A waits the step on every rank all the same (`processed-wait`); only results would be "
        "read too early, and the harness reads none",
    ),
)
