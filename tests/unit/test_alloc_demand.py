"""What a request asks of every band, for every purpose."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.alloc.demand import (
    DemandShape,
    KVDemand,
    RequestShape,
    Tracking,
    cut_grid_tokens,
    request_demand,
    steady_demand,
    tracking_slots,
)
from kvd.alloc.purpose import DemandPurpose
from kvd.alloc.window import WindowMode
from kvd_proto.memory import Lifetime

CEILING = DemandPurpose.CEILING
ADMIT = DemandPurpose.ADMIT
LOAD_BACK = DemandPurpose.LOAD_BACK
DECODE_PREALLOC = DemandPurpose.DECODE_PREALLOC

SHAPE = DemandShape(
    lifetimes=(Lifetime.STATE, Lifetime.WINDOW, Lifetime.FULL),
    window_tokens=(0, 128, 0),
    page_tokens=64,
    slots_per_request_slots=1,
)
"""A state end, a window of two pages, and the owner."""


def _units(
    request: RequestShape,
    purpose: DemandPurpose = ADMIT,
    *,
    shape: DemandShape = SHAPE,
    mode: WindowMode = WindowMode.STEP,
    chunk_tokens: int = 8192,
) -> tuple[int, ...]:
    demand = request_demand(shape, request, purpose=purpose, mode=mode, chunk_tokens=chunk_tokens)
    assert demand.purpose is purpose
    return demand.units


def _windowed(window_tokens: int, page_tokens: int) -> DemandShape:
    return replace(SHAPE, window_tokens=(0, window_tokens, 0), page_tokens=page_tokens)


@st.composite
def shapes(draw: st.DrawFn) -> DemandShape:
    return DemandShape(
        lifetimes=(Lifetime.STATE, Lifetime.WINDOW, Lifetime.WINDOW, Lifetime.FULL),
        window_tokens=(0, draw(st.integers(1, 30)), draw(st.integers(1, 30)), 0),
        page_tokens=draw(st.integers(1, 8)),
        slots_per_request_slots=1,
        step_tokens=draw(st.integers(1, 4)),
        overlap=draw(st.booleans()),
        slide_tokens=draw(st.integers(0, 20)),
        checkpoint_tokens=draw(st.sampled_from((0, 4, 6, 16))),
        tracking=draw(st.sampled_from(Tracking)),
        context_tokens=draw(st.sampled_from((0, 300))),
    )


@st.composite
def requests(draw: st.DrawFn, page_tokens: int) -> RequestShape:
    resident = page_tokens * draw(st.integers(0, 4))
    host = page_tokens * draw(st.integers(0, 4))
    rows = st.integers(0, host)
    return RequestShape(
        prompt_tokens=resident + host + draw(st.integers(1, 80)),
        new_tokens=draw(st.integers(0, 60)),
        resident_tokens=resident,
        host_tokens=host,
        host_window_tokens=(0, draw(rows), draw(rows), 0) if host else (),
        host_slots=draw(st.integers(0, 1)),
        reserve_tokens=draw(st.integers(0, 40)),
        retractable_tokens=draw(st.integers(0, 40)),
    )


# ---- every purpose ------------------------------------------------------------------------------


@pytest.mark.parametrize("purpose", DemandPurpose)
def test_a_demand_names_its_purpose_and_has_the_bands_of_the_chain(purpose: DemandPurpose) -> None:
    shape = DemandShape(
        lifetimes=(Lifetime.FULL,), window_tokens=(0,), page_tokens=4, slots_per_request_slots=1
    )
    demand = request_demand(
        shape,
        RequestShape(prompt_tokens=9),
        purpose=purpose,
        mode=WindowMode.STEP,
        chunk_tokens=100,
    )
    assert demand == KVDemand(purpose, (3,))


@pytest.mark.parametrize("purpose", DemandPurpose)
@pytest.mark.parametrize("mode", WindowMode)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_more_tokens_or_longer_chunks_never_ask_for_less(
    purpose: DemandPurpose, mode: WindowMode, data: st.DataObject
) -> None:
    shape = data.draw(shapes())
    request = data.draw(requests(shape.page_tokens))
    chunk = data.draw(st.integers(1, 60))
    more = replace(request, new_tokens=request.new_tokens + data.draw(st.integers(0, 30)))
    longer = chunk + data.draw(st.integers(0, 30))
    units = _units(request, purpose, shape=shape, mode=mode, chunk_tokens=chunk)
    grown = _units(more, purpose, shape=shape, mode=mode, chunk_tokens=longer)
    assert all(before <= after for before, after in zip(units, grown, strict=True))


@pytest.mark.parametrize("purpose", DemandPurpose)
@pytest.mark.parametrize("mode", WindowMode)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_no_window_asks_for_more_pages_than_the_whole_request_has(
    purpose: DemandPurpose, mode: WindowMode, data: st.DataObject
) -> None:
    shape = data.draw(shapes())
    request = data.draw(requests(shape.page_tokens))
    _, first, second, _ = _units(request, purpose, shape=shape, mode=mode, chunk_tokens=16)
    longest = request.prompt_tokens + request.new_tokens + 2 * shape.step_tokens
    assert max(first, second) <= -(-longest // shape.page_tokens)


@pytest.mark.parametrize("purpose", [ADMIT, LOAD_BACK, DECODE_PREALLOC])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_what_is_held_is_not_asked_again(purpose: DemandPurpose, data: st.DataObject) -> None:
    shape = data.draw(shapes())
    request = data.draw(requests(shape.page_tokens))
    held = tuple(data.draw(st.integers(0, 6)) for _ in shape.lifetimes)
    units = _units(request, purpose, shape=shape)
    rest = _units(replace(request, held_units=held), purpose, shape=shape)
    assert rest == tuple(max(0, asked - have) for asked, have in zip(units, held, strict=True))


@pytest.mark.parametrize("mode", WindowMode)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_request_without_hits_asks_admission_for_its_ceiling(
    mode: WindowMode, data: st.DataObject
) -> None:
    shape = data.draw(shapes())
    request = replace(
        data.draw(requests(shape.page_tokens)),
        resident_tokens=0,
        host_tokens=0,
        host_window_tokens=(),
        host_slots=0,
    )
    chunk = data.draw(st.integers(1, 60))
    ceiling = _units(request, CEILING, shape=shape, mode=mode, chunk_tokens=chunk)
    assert _units(request, ADMIT, shape=shape, mode=mode, chunk_tokens=chunk) == ceiling


# ---- by purpose ---------------------------------------------------------------------------------


HIT = RequestShape(
    prompt_tokens=640 + 320 + 1000,
    new_tokens=500,
    resident_tokens=640,
    host_tokens=320,
    host_window_tokens=(0, 128, 0),
    host_slots=1,
    reserve_tokens=200,
    retractable_tokens=400,
)
"""Ten resident pages, five to load with a window of two, and 1000 tokens to compute."""


@pytest.mark.parametrize(
    ("purpose", "units"),
    [
        # 2460 tokens; one chunk of 1960 with nothing resident; working and replacement slot.
        pytest.param(CEILING, (2, 31, 39), id="ceiling"),
        # Pages 10 to 38; two loaded and 16 computed ones; the loaded checkpoint too.
        pytest.param(ADMIT, (3, 18, 29), id="admit"),
        # The same pass, to the last token that may come; nothing is replaced in it.
        pytest.param(LOAD_BACK, (2, 18, 29), id="load back"),
        # 1960 + 200 tokens against 2460 - 400; tokens 1792 to 1959 arrive, and a shared window of
        # 128 with a page and a step beside it is 4 pages.
        pytest.param(DECODE_PREALLOC, (1, 4, 24), id="decode prealloc"),
    ],
)
def test_each_purpose_charges_a_hit_in_its_own_way(
    purpose: DemandPurpose, units: tuple[int, ...]
) -> None:
    assert _units(HIT, purpose, mode=WindowMode.TREE) == units


def test_a_cut_pass_loads_and_lays_out_its_chunk_only() -> None:
    # Pages 10 to 14 are loaded, 256 tokens computed, 500 may come: 640 + 320 + 256 + 500 tokens.
    assert _units(HIT, LOAD_BACK, mode=WindowMode.TREE, chunk_tokens=256) == (2, 2 + 4, 27 - 10)


def test_admission_charges_the_whole_request_when_the_pass_is_cut() -> None:
    whole = _units(HIT, ADMIT, mode=WindowMode.TREE)
    cut = _units(HIT, ADMIT, mode=WindowMode.TREE, chunk_tokens=256)
    assert (cut[0], cut[2]) == (whole[0], whole[2])
    # Two pages of window with one of slack, and four of chunk.
    assert cut[1] == 3 + 4


@pytest.mark.parametrize(
    ("reserve", "retractable", "pages"),
    [
        pytest.param(0, 10_000, 16, id="the transfer"),
        pytest.param(24, 10_000, 16, id="a reserve inside the last page"),
        pytest.param(25, 10_000, 17, id="a reserve behind it"),
        pytest.param(10_000, 10_000, 24, id="no more than may come"),
        pytest.param(0, 0, 24, id="all that may come"),
        pytest.param(0, 300, 19, id="less what may be retracted"),
    ],
)
def test_a_transfer_needs_its_reserve_or_what_no_retraction_gives(
    reserve: int, retractable: int, pages: int
) -> None:
    request = RequestShape(
        prompt_tokens=1000,
        new_tokens=500,
        reserve_tokens=reserve,
        retractable_tokens=retractable,
    )
    assert _units(request, DECODE_PREALLOC)[2] == pages


# ---- full attention -----------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 60), st.integers(0, 40), st.integers(1, 20))
def test_a_request_asks_the_owner_for_the_pages_of_all_its_tokens(
    page: int, prompt: int, new: int, chunk: int
) -> None:
    request = RequestShape(prompt_tokens=prompt, new_tokens=new)
    slots, window, pages = _units(request, shape=_windowed(4, page), chunk_tokens=chunk)
    assert pages == len({token // page for token in range(prompt + new)})
    assert window <= pages
    assert slots == 1


def test_tokens_are_summed_before_they_are_rounded() -> None:
    assert _units(RequestShape(prompt_tokens=65, new_tokens=63))[2] == 2
    assert _units(RequestShape(prompt_tokens=65, new_tokens=64))[2] == 3


def test_a_resident_prefix_costs_nothing() -> None:
    request = RequestShape(prompt_tokens=1000, new_tokens=24, resident_tokens=960)
    assert _units(request) == (1, 1, 1)


@pytest.mark.parametrize(
    ("step", "overlap", "context", "pages"),
    [
        pytest.param(1, False, 0, 2, id="one token at a time"),
        pytest.param(4, False, 0, 3, id="a step that proposes four"),
        pytest.param(1, True, 0, 3, id="a step launched before the end is seen"),
        pytest.param(4, True, 128, 2, id="no step passes the context"),
    ],
)
def test_the_last_steps_take_tokens_past_the_end(
    step: int, overlap: bool, context: int, pages: int
) -> None:
    shape = replace(SHAPE, step_tokens=step, overlap=overlap, context_tokens=context)
    assert _units(RequestShape(prompt_tokens=100, new_tokens=28), shape=shape)[2] == pages


def test_a_prompt_without_output_takes_no_step() -> None:
    shape = replace(SHAPE, step_tokens=100, overlap=True)
    assert _units(RequestShape(prompt_tokens=128), shape=shape)[2] == 2


# ---- windows ------------------------------------------------------------------------------------


def test_a_window_is_charged_what_it_keeps_and_one_chunk_not_the_prompt() -> None:
    request = RequestShape(prompt_tokens=16_016)
    _, window, full = _units(request, shape=_windowed(1024, 16))
    # (1024 + 8192) / 16 pages are full of rows; where they start inside a page costs one more.
    assert window == 576 + 1
    assert full == 1001


@pytest.mark.case("19")
@pytest.mark.parametrize("bands", [1, 4])
def test_what_is_in_flight_is_charged_by_the_request_not_by_the_system(bands: int) -> None:
    shape = DemandShape(
        lifetimes=(*[Lifetime.WINDOW] * bands, Lifetime.FULL),
        window_tokens=(*[128] * bands, 0),
        page_tokens=64,
        slots_per_request_slots=0,
    )
    request = RequestShape(prompt_tokens=64, new_tokens=1_000_000)
    # However long a chunk the system allows, a prompt of one page has no transient to charge.
    assert _units(request, shape=shape, chunk_tokens=16_384) == (*[3] * bands, 15_626)


@pytest.mark.case("20")
def test_a_window_shorter_than_a_page_may_straddle_two() -> None:
    shape = _windowed(32, 64)
    # At token 70 the rows 39 to 70 lie in pages 0 and 1.
    assert _units(RequestShape(prompt_tokens=60, new_tokens=1000), shape=shape)[1] == 2


def test_a_window_counts_the_whole_chunk_before_any_row_slides() -> None:
    request = RequestShape(prompt_tokens=10 * 8192)
    assert _units(request)[1] > 8192 // 64


@pytest.mark.case("69")
@pytest.mark.parametrize(
    ("checkpoint", "mode", "pages"),
    [
        pytest.param(0, WindowMode.TREE, 131, id="shared"),
        pytest.param(256, WindowMode.TREE, 135, id="shared with checkpoints"),
        pytest.param(96, WindowMode.TREE, 134, id="a grid that pages do not divide"),
        pytest.param(256, WindowMode.STEP, 131, id="not shared"),
    ],
)
def test_only_a_shared_checkpoint_holds_window_rows_back(
    checkpoint: int, mode: WindowMode, pages: int
) -> None:
    shape = replace(SHAPE, checkpoint_tokens=checkpoint)
    request = RequestShape(prompt_tokens=100_000, new_tokens=100)
    assert _units(request, shape=shape, mode=mode)[1] == pages


def test_a_model_without_state_has_no_checkpoints_to_hold_rows_back() -> None:
    shape = DemandShape(
        lifetimes=(Lifetime.WINDOW, Lifetime.FULL),
        window_tokens=(128, 0),
        page_tokens=64,
        slots_per_request_slots=0,
        checkpoint_tokens=256,
    )
    request = RequestShape(prompt_tokens=100_000)
    assert _units(request, shape=shape, mode=WindowMode.TREE)[0] == 131
    assert cut_grid_tokens(shape, WindowMode.TREE) == 64


@pytest.mark.parametrize(
    ("checkpoint", "mode", "grid"),
    [
        (0, WindowMode.TREE, 64),
        (256, WindowMode.TREE, 256),
        (96, WindowMode.TREE, 192),
        (256, WindowMode.STEP, 64),
        (256, WindowMode.LAG, 64),
    ],
)
def test_chunks_end_on_pages_and_on_checkpoints_where_those_count(
    checkpoint: int, mode: WindowMode, grid: int
) -> None:
    assert cut_grid_tokens(replace(SHAPE, checkpoint_tokens=checkpoint), mode) == grid


# ---- state --------------------------------------------------------------------------------------


@pytest.mark.case("73")
@pytest.mark.parametrize(
    ("tracking", "overlap", "slots"),
    [
        (Tracking.NONE, False, 0),
        (Tracking.NONE, True, 0),
        (Tracking.STRICT, False, 1),
        (Tracking.STRICT, True, 2),
        (Tracking.BEST_EFFORT, False, 1),
        (Tracking.BEST_EFFORT, True, 1),
    ],
)
def test_tracking_promises_its_slots(tracking: Tracking, overlap: bool, slots: int) -> None:
    assert tracking_slots(tracking, overlap=overlap) == slots


@pytest.mark.case("6")
@pytest.mark.parametrize(("tracking", "slots"), [(Tracking.STRICT, 3), (Tracking.BEST_EFFORT, 2)])
@pytest.mark.parametrize("purpose", [CEILING, ADMIT])
def test_a_request_is_charged_the_slots_of_its_tracking_at_every_gate(
    purpose: DemandPurpose, tracking: Tracking, slots: int
) -> None:
    shape = replace(SHAPE, tracking=tracking, overlap=True)
    assert _units(RequestShape(prompt_tokens=10), purpose, shape=shape)[0] == slots


@pytest.mark.parametrize(
    ("purpose", "slots"), [(CEILING, 3), (ADMIT, 4), (LOAD_BACK, 3), (DECODE_PREALLOC, 2)]
)
def test_a_tree_replaces_a_slot_and_a_load_fills_one(purpose: DemandPurpose, slots: int) -> None:
    shape = replace(SHAPE, tracking=Tracking.BEST_EFFORT)
    request = RequestShape(prompt_tokens=640, host_tokens=64, host_slots=1)
    assert _units(request, purpose, shape=shape, mode=WindowMode.TREE)[0] == slots


def test_held_slots_are_not_asked_again() -> None:
    shape = replace(SHAPE, tracking=Tracking.STRICT, overlap=True)
    request = RequestShape(prompt_tokens=10, held_units=(2, 0, 0))
    assert _units(request, shape=shape, mode=WindowMode.TREE)[0] == 2


# ---- after the prompt ---------------------------------------------------------------------------


def test_a_promise_falls_to_the_window_once_the_prompt_is_computed() -> None:
    request = RequestShape(prompt_tokens=20_000, new_tokens=1000)
    admitted = _units(request)
    steady = steady_demand(SHAPE, request, mode=WindowMode.STEP, chunk_tokens=8192)
    assert admitted == (1, 131, 329)
    assert steady == KVDemand(ADMIT, (1, 3, 329))


@pytest.mark.parametrize("mode", WindowMode)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_promise_never_rises_when_the_prompt_is_computed(
    mode: WindowMode, data: st.DataObject
) -> None:
    shape = data.draw(shapes())
    request = data.draw(requests(shape.page_tokens))
    chunk = data.draw(st.integers(1, 60))
    admitted = _units(request, ADMIT, shape=shape, mode=mode, chunk_tokens=chunk)
    steady = steady_demand(shape, request, mode=mode, chunk_tokens=chunk).units
    assert all(after <= before for before, after in zip(admitted, steady, strict=True))
    assert steady[0] == admitted[0]
    assert steady[-1] == admitted[-1]


# ---- totals alone -------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 60), st.integers(1, 20))
def test_a_total_is_priced_as_a_prompt(window: int, page: int, total: int, chunk: int) -> None:
    shape = _windowed(window, page)
    units = request_demand(shape, total_tokens=total, chunk_tokens=chunk)
    assert units == _units(RequestShape(prompt_tokens=total), shape=shape, chunk_tokens=chunk)
