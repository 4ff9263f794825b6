"""Faults of requests: window slides, promises and prices."""

from typing import Final

from kvd.testing.mutants.fault import Fault, edited

_TABLE: Final = "kvd.alloc.requests:RequestTable."
_HOLDINGS: Final = "kvd.alloc.holdings:Holdings."
_ADMIT: Final = "kvd.alloc.admission:AdmissionPass."


WINDOW_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "slides-a-token-early",
        "a page slides out once the window has left all of it",
        (
            _TABLE + "advance",
            "leaving = (computed >= columns.slides_at_tokens[index][rows]).nonzero()[0]",
            "leaving = (computed >= columns.slides_at_tokens[index][rows] - 1).nonzero()[0]",
        ),
    ),
    edited(
        "slides-a-token-late",
        "and no later",
        (
            _TABLE + "advance",
            "leaving = (computed >= columns.slides_at_tokens[index][rows]).nonzero()[0]",
            "leaving = (computed > columns.slides_at_tokens[index][rows]).nonzero()[0]",
        ),
    ),
    edited(
        "slides-a-page-early",
        "the first page slides out one page and a window after the beginning",
        (
            _TABLE + "open",
            "self.shape.window_tokens[index] + self.shape.page_tokens",
            "self.shape.window_tokens[index]",
        ),
    ),
    edited(
        "slide-of-many-a-page-far",
        "a slide over several pages keeps the page that the window begins in",
        (
            _TABLE + "_slide",
            "keep_from = (computed - window) // page_tokens",
            "keep_from = -(-(computed - window) // page_tokens)",
        ),
    ),
    edited(
        "slide-of-many-a-page-short",
        "and no page before it",
        (
            _TABLE + "_slide",
            "keep_from = (computed - window) // page_tokens",
            "keep_from = np.maximum((computed - window) // page_tokens - 1, dropped)",
        ),
    ),
    edited(
        "slides-next-too-late",
        "after a slide over several pages the next page follows in its turn",
        (
            _TABLE + "_slide",
            "slides_next = (keep_from + 1) * page_tokens + window",
            "slides_next = (keep_from + 2) * page_tokens + window",
        ),
    ),
    edited(
        "slides-the-newest-page",
        "what slides out is the oldest page that is held",
        (
            _TABLE + "_slide",
            "page_rows, places = rows, dropped  # one page each",
            "page_rows, places = rows, columns.page_count[rows] - 1",
        ),
    ),
    edited(
        "slid-pages-forgotten",
        "what slid out is not held any more",
        (_TABLE + "_slide", "dropped_pages[rows] = keep_from", "pass"),
    ),
    edited(
        "slides-one-window-only",
        "every window slides",
        (
            _TABLE + "advance",
            "for index in self.chain.window_indices:",
            "for index in self.chain.window_indices[:1]:",
        ),
    ),
    edited(
        "capacity-a-token-more",
        "a row takes a page when its pages are full",
        (
            _TABLE + "_grant",
            "capacity = counts * self._page_tokens[: grown.size]",
            "capacity = counts * self._page_tokens[: grown.size] + 1",
        ),
    ),
    edited(
        "pages-rounded-down",
        "tokens beyond whole pages take a page of their own",
        (
            _TABLE + "take",
            "need = (beyond + (self.shape.page_tokens - 1)) // self.shape.page_tokens",
            "need = np.maximum(beyond // self.shape.page_tokens, 1)",
        ),
    ),
    edited(
        "context-exceeded",
        "no row grows past the context length",
        (
            _TABLE + "_check_length",
            "if np.count_nonzero(total > self.context_tokens):",
            "if False:",
        ),
    ),
)

PROMISE_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "promise-kept-by-takes",
        "what is taken is promised no more",
        (_TABLE + "_grant", "band.promise(-count)", "pass"),
    ),
    edited(
        "promise-not-renewed-by-slides",
        "what slides out is promised again",
        (_TABLE + "_slide", "band.promise(owed)", "pass"),
    ),
    edited(
        "promise-outlives-its-request",
        "what is promised ends with its request",
        (_TABLE + "free", "band.promise(-self.holdings.owed(index, rows))", "pass"),
    ),
    edited(
        "promise-outlives-insert",
        "also where its pages are kept as a value",
        (_TABLE + "insert", "band.promise(-self.holdings.owed(index, rows))", "pass"),
    ),
    edited(
        "promise-not-made",
        "an admitted request is promised what it was priced at",
        (_TABLE + "open", "band.promise(demand[index])", "band.promise(0)"),
    ),
    edited(
        "promise-kept-after-prefill",
        "what was priced for chunks is given back when the prompt is computed",
        (
            _HOLDINGS + "end_prefill",
            "self.chain.bands[index].promise(self.owed(index, here) - before)",
            "pass",
        ),
    ),
    edited(
        "promise-never-lapses",
        "a promise with an end ends",
        (_HOLDINGS + "lapse", "self.rows.promised[rows] = 0", "pass"),
    ),
    edited(
        "promise-lapses-a-batch-early",
        "and not before the batches that it was given for",
        (
            "kvd.engine.lapse:Lapses.add",
            "due = (program, self._ended_count.get(program, 0) + batches)",
            "due = (program, self._ended_count.get(program, 0) + max(1, batches - 1))",
        ),
    ),
    edited(
        "promise-of-the-first-life",
        "a request that was retracted and came back has a new promise",
        (
            "kvd.engine.lapse:Lapses.add",
            "if earlier is not None:",
            "if earlier is not None:\n            self._due_of[request] = earlier\n"
            "            continue\n        if False:",
        ),
    ),
    edited(
        "uneven-rows-by-sums",
        "a row that held more than its price is counted by itself",
        (_HOLDINGS + "mark_uneven", "self.rows.uneven[rows] = 1", "self.uneven_count = 0"),
    ),
    edited(
        "beyond-promise-unasked",
        "who takes beyond the promise is asked about",
        (_TABLE + "_within_promise", "return not np.count_nonzero(total > reach)", "return True"),
    ),
    edited(
        "beyond-limit-unasked",
        "and who takes past the prompt before it is computed",
        (
            _TABLE + "_within_promise",
            "if np.count_nonzero(total > columns.limit_tokens[grown]):",
            "if False:",
        ),
    ),
    edited(
        "growth-left-out",
        "room is kept for those whose promise lapsed, as asked",
        (
            _ADMIT + "_grown",
            "asked + growth for asked",
            "asked for asked",
        ),
    ),
)

PRICE_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "price-a-page-short",
        "the last page counts, however few tokens it holds",
        (
            "kvd.alloc.demand:request_demand",
            "pages = ceil_div(_end_tokens(rule.full.value, request, extent), page_tokens)",
            "pages = _end_tokens(rule.full.value, request, extent) // page_tokens",
        ),
    ),
    edited(
        "price-without-steps-past-the-end",
        "the last steps take tokens past the end before it is seen",
        ("kvd.alloc.demand:request_demand", "if new_tokens and rule.past_end.value:", "if False:"),
    ),
    edited(
        "window-priced-a-page-short",
        "a window touches a page more than it fills",
        (
            "kvd.alloc.window:pages_touched_max",
            "ceil_div(row_tokens - 1, page_tokens) + 1",
            "ceil_div(row_tokens, page_tokens)",
        ),
    ),
    edited(
        "window-steady-a-step-short",
        "while a window is full another step is taken",
        (
            "kvd.alloc.window:window_pace",
            "steady_pages=ceil_div(steady_tokens + outstanding_tokens, page_tokens)",
            "steady_pages=ceil_div(steady_tokens, page_tokens)",
        ),
    ),
    edited(
        "window-lag-left-out",
        "under overlap a chunk is taken while the one before it still holds its pages",
        (
            "kvd.alloc.window:_prefill_pages",
            "max(chunk_tokens, begun_tokens) if pace.mode is WindowMode.LAG else begun_tokens",
            "begun_tokens",
        ),
    ),
    edited(
        "slots-priced-as-none",
        "a request needs a state slot",
        (
            "kvd.alloc.demand:request_demand",
            "units.append(slots + request.host_slots * loaded)",
            "units.append(0)",
        ),
    ),
    edited(
        "clip-one-token-generous",
        "no more new tokens are granted than fit an empty arena",
        (
            "kvd.alloc.clip:memory_clip",
            "return _largest(0, request.new_tokens, fits)",
            "found = _largest(0, request.new_tokens, fits); "
            "return None if found is None else min(found + 1, request.new_tokens)",
        ),
    ),
    edited(
        "clip-stops-early",
        "and no fewer",
        ("kvd.alloc.clip:_largest", "while high - low > 1:", "while high - low > 2:"),
    ),
    edited(
        "too-long-is-admitted",
        "no request is admitted that is longer than the context",
        (_ADMIT + "admit", "if total_tokens > table.context_tokens:", "if False:"),
    ),
    edited(
        "fits-without-a-row",
        "a request needs a row",
        (
            _ADMIT + "admit",
            "may_open = price.fits and len(table.rows.free) > 0",
            "may_open = price.fits",
        ),
    ),
    edited(
        "first-takes-left-out",
        "a request fits only where its first chunk can be taken at once",
        (_ADMIT + "admit", "if may_open and not table.chain.has_room_now(takes):", "if False:"),
    ),
)
