"""Faults of refusals that leave traces, and of values: what they hold, and which survive."""

from typing import Final

from kvd.testing.mutants.fault import Fault, edited

_TABLE: Final = "kvd.alloc.requests:RequestTable."
_ADMIT: Final = "kvd.alloc.admission:AdmissionPass."
_VALUES: Final = "kvd.alloc.values:ValueTable."
_COPIES: Final = "kvd.alloc.copies:Copies."
_CLEARINGS: Final = "kvd.alloc.clearings:SlotClearings."
_TRANSFERS: Final = "kvd.alloc.transfers:Transfers."
_USES: Final = "kvd.engine.page_uses:PageUses."
_ADOPT: Final = "kvd.alloc.band:Band.adopt"

REFUSAL_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "refused-take-grows",
        "a take that is refused grows nobody",
        (
            _TABLE + "_refused",
            "grown = growth.grown",
            "grown = growth.grown; self.rows.tokens[growth.rows] = growth.total_tokens",
        ),
    ),
    edited(
        "refused-take-settles",
        "a take that is refused settles nothing that pends",
        (
            _TABLE + "_refused",
            "grown = growth.grown",
            "grown = growth.grown; self.chain._recover()",
        ),
    ),
    edited(
        "refused-take-marks-uneven",
        "a take that is refused leaves how rows are counted alone",
        (
            _TABLE + "_refused",
            "grown = growth.grown",
            "grown = growth.grown; self.holdings.mark_uneven(growth.rows[:1])",
        ),
    ),
    edited(
        "refused-take-keeps-promise-back",
        "a take that is refused changes no promise",
        (
            _TABLE + "_refused",
            "grown = growth.grown",
            "grown = growth.grown; self.chain.bands[0].promise(1)",
        ),
    ),
    edited(
        "refused-admission-keeps-a-row",
        "a request that is told to wait has no row",
        (
            _ADMIT + "_why",
            "shortage = table.chain.explain(self._grown(units))",
            "table.rows.free.take(1); shortage = table.chain.explain(self._grown(units))",
        ),
    ),
    edited(
        "refused-admission-retracts",
        "nobody is retracted for a request that does not fit all the same",
        (
            _TABLE + "fewest_ending",
            "return None",
            "return victims",
        ),
    ),
    edited(
        "refused-load-uses-its-number",
        "a load that finds no room has no number",
        (
            _COPIES + "reserve",
            "self.numbers.check_new(number)",
            "self.numbers.check_new(number); self.numbers.use(number)",
        ),
        (_COPIES + "reserve", "    self.numbers.use(number)\n    s", "    s"),
    ),
    edited(
        "wrong-backup-uses-its-number",
        "a backup that is wrong use has no number",
        (
            _COPIES + "back_up",
            "self.numbers.check_new(number)",
            "self.numbers.check_new(number); self.numbers.use(number)",
        ),
        (_COPIES + "back_up", "    self.numbers.use(number)\n    self.b", "    self.b"),
    ),
    edited(
        "wrong-post-uses-its-number",
        "a transfer that is wrong use has no number",
        (
            _TRANSFERS + "post",
            "self.numbers.check_new(number)",
            "self.numbers.check_new(number); self.numbers.use(number)",
        ),
        (_TRANSFERS + "post", "    self.numbers.use(number)\n    self.o", "    self.o"),
    ),
    edited(
        "wrong-advance-computes",
        "a request that is said to have computed more than it took keeps its count",
        (
            _TABLE + "_refuse_advance",
            "place = int(over.nonzero()[0][0])",
            "place = int(over.nonzero()[0][0]); self.rows.computed_tokens[rows[~over]] += 1",
        ),
    ),
    edited(
        "wrong-standing-removes",
        "a change of the standing set that is wrong use changes nothing",
        (
            "kvd.engine.standing:StandingSet.change",
            "joining = table.names.rows_of(add)",
            "self._rows = rows[member[rows]]; self._opened = table.rows.opened_count[self._rows]; "
            "joining = table.names.rows_of(add)",
        ),
    ),
    edited(
        "wrong-step-counts",
        "a step that is reported out of order is not processed",
        (
            "kvd.alloc.forward_steps:ForwardSteps.process",
            "expected = (",
            "self.retired_count = min(self.launched_count, self.retired_count + 1); expected = (",
        ),
    ),
    edited(
        "wrong-evict-evicts-a-part",
        "a list of values with a wrong one evicts none of them",
        (
            _USES + "_evict",
            "seen[number] = None",
            "seen[number] = None; value.spoiled = True",
        ),
    ),
    edited(
        "wrong-load-name-names-a-part",
        "a load that names a wrong page names none",
        (
            _COPIES + "name",
            "missing = value.missing(index)",
            "missing = value.missing(index); load.named.setdefault(index, virtual[:0])",
        ),
    ),
    edited(
        "pumped-publish-lets-go",
        "a publication that has to wait for transfers keeps its hold",
        (
            _TRANSFERS + "publish",
            "return tuple(sorted(others))",
            "self.cancel(number); return tuple(sorted(others))",
        ),
    ),
    edited(
        "what-follows-a-refusal-runs",
        "what names a request that was refused in its batch is skipped",
        ("kvd.engine.stage:StageEngine._names_refused", "if self._refused_now:", "if False:"),
    ),
    edited(
        "refused-for-ever",
        "a refusal counts until the end of its batch",
        ("kvd.engine.stage:StageEngine._batch_end", "self._refused_now.clear()", "pass"),
    ),
)

VALUE_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "evicted-slot-lost",
        "a value that is evicted gives back its slot",
        (
            _VALUES + "ids_of",
            "np.array([value.slot] if value.slot else [], dtype=np.int64)",
            "np.zeros(0, dtype=np.int64)",
        ),
    ),
    edited(
        "inserted-slot-kept-by-nobody",
        "a value keeps the slot of its request",
        (_TABLE + "insert", "slot=int(self.rows.slot[row]),", "slot=0,"),
    ),
    edited(
        "value-without-its-window",
        "a value keeps what its request had in windows",
        (
            _TABLE + "insert",
            "bound={index: self.holdings.ids(index, rows) for index in chain.window_indices}",
            "bound={index: self.holdings.ids(index, rows)[1:] for index in chain.window_indices}",
        ),
    ),
    edited(
        "loaded-pages-forgotten",
        "pages that a load filled are the value's",
        (
            _COPIES + "name",
            "value.bound[index] = value.pages[np.isin(value.pages, kept)]",
            "pass",
        ),
    ),
    edited(
        "load-names-backwards",
        "a load names its units in the order of taking",
        (_COPIES + "name", "named = units[: virtual.size]", "named = units[-virtual.size :]"),
    ),
    edited(
        "load-where-it-was-named",
        "a load writes where its pages lie when it is submitted",
        (_COPIES + "submit", "units = band.physical(virtual)", "units = load.reserved[index]"),
    ),
    edited(
        "uncleared-is-readable",
        "nobody copies or sends a slot that no launch has cleared",
        (_COPIES + "_check_cleared", "if steps.clearings.is_due(slot):", "if False:"),
    ),
    edited(
        "clearing-is-sent",
        "nobody sends a slot that a launch in flight clears",
        (
            _COPIES + "_check_cleared",
            "elif reader is Reader.NETWORK_SEND and step > steps.retired_count:",
            "elif False:",
        ),
    ),
    edited(
        "cleared-by-its-step-only",
        "a launch clears every slot that was handed out, whatever it runs over",
        (
            _CLEARINGS + "launch",
            "self._step_of[slot] = step",
            "self._step_of[slot] = 0",
        ),
    ),
    edited(
        "cleared-by-a-launch-before-it",
        "a launch clears no slot that was handed out behind its position",
        (_CLEARINGS + "place", "if handed_out != UNPLACED:", "if True:"),
    ),
    edited(
        "uncleared-survives",
        "a value survives once a launch has cleared its slot",
        (_USES + "sealed_values", "and not clearings.is_due(value.slot)", "and True"),
    ),
    edited(
        "unsealed-survives",
        "a value survives once the last step that may have written it was processed on every rank",
        (
            _USES + "sealed_values",
            "and max(value.written_step, self.unknown_step) <= step_max",
            "and True",
        ),
    ),
    edited(
        "unrun-insert-survives",
        "and once every rank ran its insert",
        (_USES + "sealed_values", "and value.position <= confirmed_position", "and True"),
    ),
    edited(
        "copied-survives",
        "and no copy of it, or into it, is open",
        (_USES + "sealed_values", "and not self.copies.touches(number)", "and True"),
    ),
    edited(
        "received-survives",
        "and no peer writes it",
        (_USES + "sealed_values", "and not self._is_received(number)", "and True"),
    ),
    edited(
        "spoiled-survives",
        "and no load failed to fill it",
        (_USES + "sealed_values", "if not value.spoiled", "if True"),
    ),
    edited(
        "unknown-step-survives",
        "and no step wrote nobody knows what",
        (
            "kvd.engine.stage:StageEngine.abort_step",
            "self.uses.unknown_step = max(self.uses.unknown_step, step)",
            "pass",
        ),
    ),
    edited(
        "survivor-forgets-its-ids",
        "the names of what survives are taken",
        (_ADOPT, "self.free_ids.remove(virtual)", "pass"),
    ),
    edited(
        "survivor-among-holes",
        "the places of what survives are taken",
        (_ADOPT, "self._holes.remove_range(*self._places(unit, unit + 1))", "pass"),
    ),
)
