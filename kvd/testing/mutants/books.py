"""Faults of the books: what pends until when, what is recorded and fenced, what comes back."""

from typing import Final

from kvd.testing.mutants.cells import NOTHING_BLOCKED, NOTHING_PUMPED, NOTHING_VACATED
from kvd.testing.mutants.fault import Edit, Fault, edited

_STEPS: Final = "kvd.alloc.forward_steps:ForwardSteps."
_UNITS: Final = "kvd.alloc.band_units:BandUnits."
_BAND: Final = "kvd.alloc.band:Band."
_CHAIN: Final = "kvd.alloc.chain:ChainAllocator."
_ORDER: Final = "kvd.alloc.arena_order:ArenaOrder."
_FENCES: Final = "kvd.alloc.byte_fences:ByteFences."
_RECORDS: Final = "kvd.alloc.use_records:UseRecords."
_USAGE: Final = "kvd.alloc.usage:PageUsage."
_PENDING: Final = "kvd.alloc.pending:PendingPages."
_COPIES: Final = "kvd.alloc.copies:Copies."
_TRANSFERS: Final = "kvd.alloc.transfers:Transfers."
_ENDINGS: Final = "kvd.engine.endings:Endings."


PENDING_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "pending-to-holes",
        "what is freed under a step in flight pends",
        (_UNITS + "_disown", "if key:", "if False:"),
    ),
    edited(
        "pending-under-oldest",
        "it pends under the newest step in flight, not an older one",
        (
            _UNITS + "_disown",
            "key = self._steps.pending_key",
            "key = self._steps.in_flight_count and self._steps.processed_count + 1",
        ),
    ),
    edited(
        "pending-back-at-launch",
        "it comes back when its step was processed, not when the next is launched",
        (
            _CHAIN + "launch_step",
            "band.open_writes(step, None if writes is None else writes[index])",
            "band.open_writes(step, None if writes is None else writes[index])"
            "; band.release_pending_through(step)",
        ),
    ),
    edited(
        "pending-key-lost",
        "the key stands until the newest step in flight was processed, not just any",
        (_STEPS + "process", "if step == self.launched_count:", "if True:"),
    ),
    edited(
        "pending-key-kept",
        "nothing pends once no step is in flight",
        (_STEPS + "process", "if step == self.launched_count:", "if False:"),
    ),
    edited(
        "pending-a-step-late",
        "what pends comes back with its own step",
        (
            _CHAIN + "process_step",
            "band.release_pending_through(step)",
            "band.release_pending_through(step - 1)",
        ),
    ),
    edited(
        "pending-never-back",
        "what pends comes back once its step was processed",
        (_CHAIN + "process_step", "band.release_pending_through(step)", "pass"),
    ),
    edited(
        "pending-batch-half",
        "a batch comes back whole",
        (_PENDING + "_pop", "return batch.parts", "return batch.parts[:1]"),
    ),
    edited(
        "slots-never-pend",
        "state slots pend as pages do",
        (_UNITS + "_disown", "if key:", "if key and self.geometry.name != 'state':"),
    ),
    edited(
        "settle-without-wait",
        "a take that settles a batch has A wait its step",
        (_ORDER + "wait_step", "self._waits[step_signal(step)] = None", "pass"),
    ),
    edited(
        "settle-the-oldest-key",
        "of several batches that are settled the newest step is waited for",
        (
            _PENDING + "settle",
            "key = self.oldest_key",
            "key = key or self.oldest_key",
        ),
    ),
    edited(
        "oldest-step-waited",
        "of several steps that are in the way the newest is waited for",
        (_ORDER + "take_waits", "newest = max(", "newest = min("),
    ),
    edited(
        "books-waits",
        "what the books have to be waited for becomes effects",
        (_ORDER + "take_waits", "self._waits = {}", "self._waits = {}; return ()"),
    ),
    edited(
        "waits-forgotten-by-operations",
        "an operation's waits stand in its own outcome",
        ("kvd.engine.outcome:OutcomeBuilder.waits", "self._effects.wait(signal)", "pass"),
    ),
    edited(
        "processed-wait",
        "the outcome of processed has every rank's A wait its own step",
        (
            "kvd.engine.stage:StageEngine._processed",
            "if self.chain.process_step(step) else DONE",
            "if self.chain.process_step(step) and False else DONE",
        ),
    ),
    edited(
        "sink-beside-steps",
        "the sink is zeroed behind every step that was launched",
        ("kvd.engine.page_uses:PageUses._reset_sink", "if steps.launched_count:", "if False:"),
    ),
    edited(
        "retired-too-far",
        "a wait for a step retires that step and no later one",
        (_STEPS + "retire_through", "max(self.retired_count, step)", "self.launched_count"),
    ),
    edited(
        "unwritten-steps-retire",
        "a step that was processed before a later one leaves that one's uses alone",
        (
            _RECORDS + "retire_through",
            "[number for number in self._writes if number <= step]",
            "list(self._writes)",
        ),
    ),
)

FENCE_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "no-fence-behind-moves",
        "bytes that leave their band are fenced with what is open on them",
        (
            _BAND + "_fence",
            "fences, unit_bytes = self._order.fences, self.geometry.unit_bytes",
            "return",
        ),
    ),
    edited(
        "steps-not-fenced",
        "bytes that a running step reads and that left their band are fenced",
        (_BAND + "_fence", "if sources.size and self._steps.unretired:", "if False:"),
    ),
    edited(
        "copies-not-fenced",
        "bytes that leave a band take along the copies and transfers that are at work on them",
        (
            _BAND + "_fence",
            "for left in self.usage.leave(low, high):",
            "for left in self.usage.leave(low, high)[:0]:",
        ),
    ),
    edited(
        "absorbed-not-fenced",
        "that goes for bytes that leave without a move too",
        (
            _BAND + "_drop",
            "self._fence([(low, high)], IOTA[:0], IOTA[:0])",
            "self.usage.leave(low, high)",
        ),
    ),
    edited(
        "fence-under-oldest",
        "bytes that moved away are fenced until the newest step is over",
        (
            _BAND + "_fence",
            "newest = step_signal(self._steps.launched_count)",
            "newest = step_signal(self._steps.retired_count + 1)",
        ),
    ),
    edited(
        "fence-ends-early",
        "a fence stays until its own step is over",
        (_FENCES + "retire_through", "key[1].number <= step", "key[1].number <= step + 1"),
    ),
    edited(
        "growth-clears-fences",
        "a band that grows over fenced bytes clears nothing",
        (
            _BAND + "grow",
            "self.start_index, self.end_index = start, end",
            "self.start_index, self.end_index = start, end; self._order.fences._fences.clear()",
        ),
    ),
    edited(
        "fence-in-units-of-its-own",
        "a fence covers bytes, whatever units the next band cuts them into",
        (
            "kvd.alloc.byte_fences:_overlapping",
            "range_starts[place] < starts + length",
            "range_starts[place] <= starts",
        ),
    ),
    edited(
        "fence-first-range-only",
        "a fence has as many ranges as what left",
        (
            "kvd.alloc.byte_fences:_merged",
            "return starts[first], reach[last]",
            "return starts[first][:1], reach[last][:1]",
        ),
    ),
    edited(
        "vacated-becomes-hole",
        "what a transfer may touch is no hole",
        (NOTHING_VACATED.function, NOTHING_VACATED.old, NOTHING_VACATED.new),
    ),
    edited(
        "vacated-back-with-the-first",
        "a unit that two transfers touch comes back with the second",
        (
            _RECORDS + "_end",
            "return without(vacated, self._vacated())",
            "return vacated",
        ),
    ),
    edited(
        "vacated-never-back",
        "a unit comes back once the transfer that touched it is over",
        (
            _UNITS + "release_signal",
            "self._add_holes(self.usage.release(signal))",
            "self.usage.release(signal)",
        ),
    ),
    edited(
        "blocked-bytes-entered",
        "bytes that transfers touch are not grown into",
        (NOTHING_BLOCKED.function, NOTHING_BLOCKED.old, NOTHING_BLOCKED.new),
    ),
)

LEDGER_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "unknown-is-nothing",
        "a step that states no write set may write every live unit",
        (
            _UNITS + "open_writes",
            "self.usage.open(UseKind.FORWARD_WRITE, step_signal(step), None)",
            "pass",
        ),
    ),
    edited(
        "aborted-keeps-word",
        "a step that was left by an exception may write every live unit",
        (_CHAIN + "abort_step", "self.steps.abort(step)", "return"),
    ),
    edited(
        "aborted-before-notice",
        "also where the word of it comes before its notice",
        (_CHAIN + "launch_step", "if self.steps.was_aborted(step):", "if False:"),
    ),
    edited(
        "write-set-not-kept",
        "a step's write set is recorded until the step retires",
        (
            _UNITS + "open_writes",
            "self.usage.open(UseKind.FORWARD_WRITE, step_signal(step), physical[physical > 0])",
            "pass",
        ),
    ),
    edited(
        "write-set-a-page-short",
        "a write set begins with the page of the first token that is not computed",
        (
            "kvd.alloc.requests:RequestTable.written_ids",
            "first = columns.computed_tokens[rows] // self.shape.page_tokens",
            "first = -(-columns.computed_tokens[rows] // self.shape.page_tokens)",
        ),
    ),
    edited(
        "write-set-without-slots",
        "a write set holds the slots",
        (
            "kvd.alloc.requests:RequestTable.written_ids",
            "slots[slots > 0] if index == self.chain.state_index else pages",
            "slots[:0] if index == self.chain.state_index else pages",
        ),
    ),
    edited(
        "backup-not-kept",
        "a backup is recorded until it is over",
        (_COPIES + "back_up", "band.usage.open(UseKind.COPY_READ, signal, places)", "pass"),
    ),
    edited(
        "load-not-kept",
        "a load is recorded until it is over",
        (_COPIES + "submit", "band.usage.open(UseKind.COPY_WRITE, signal, units)", "pass"),
    ),
    edited(
        "send-not-kept",
        "a send is recorded until it is over",
        (
            _TRANSFERS + "post",
            "band.usage.open(UseKind.NETWORK_SEND, transfer_signal(number), places)",
            "pass",
        ),
    ),
    edited(
        "receive-not-kept",
        "a receive is recorded until it is over",
        (
            _TRANSFERS + "publish",
            "band.usage.open(UseKind.NETWORK_RECEIVE, signal, places)",
            "pass",
        ),
    ),
    edited(
        "hold-not-kept",
        "what is held for a peer is recorded",
        (
            _TRANSFERS + "hold",
            "band.usage.open(UseKind.RECEIVE_HOLD, transfer_signal(number), places)",
            "pass",
        ),
    ),
    edited(
        "hold-kept-after-cancel",
        "a hold ends when it is cancelled",
        (
            _TRANSFERS + "cancel",
            "band.usage.close(UseKind.RECEIVE_HOLD, transfer_signal(number))",
            "pass",
        ),
    ),
    edited(
        "use-kept-after-end",
        "a copy's uses end with it",
        (_COPIES + "end", "band.release_signal(signal)", "pass"),
    ),
    edited(
        "reservation-freed-early",
        "a reservation stands until the last of its units has a name",
        (_COPIES + "name", "if named.size == units.size:", "if True:"),
    ),
    edited(
        "reservation-not-fixed",
        "what a load has reserved does not move",
        (
            "kvd.alloc.uses:facts_of",
            "hard_fixed=_extent((units_of(UseKind.LOAD_RESERVATION), lost)),",
            "hard_fixed=_extent((lost,)),",
        ),
    ),
    edited(
        "cancelled-load-keeps-units",
        "a load that is given up gives its units back",
        (_COPIES + "cancel", "band.give_up(nameless)", "pass"),
    ),
    edited(
        "cancelled-load-keeps-names",
        "and takes the names from those that had some",
        (_COPIES + "cancel", "self.chain.release(freed)", "pass"),
    ),
    edited(
        "fixed-by-half",
        "everything that a peer writes is priced as fixed, not only the last of it",
        (
            "kvd.alloc.uses:_extent",
            "return (min(low for low, _ in ends)",
            "return (max(low for low, _ in ends)",
        ),
    ),
    edited(
        "over-by-the-first-word",
        "a copy is over when the last rank has said so",
        (
            _ENDINGS + "copy_ended",
            "if len(said) == len(self._ranks):",
            "if len(said) == 1:",
        ),
    ),
    edited(
        "transfer-over-by-the-first-word",
        "a transfer is over when the last rank has said so",
        (
            _ENDINGS + "transfer_ended",
            "if len(said) == len(self._ranks):",
            "if len(said) == 1:",
        ),
    ),
    edited(
        "over-never-logged",
        "what is over on all ranks is released",
        (_ENDINGS + "copy_ended", "self._due_copies[fact.copy] = None", "pass"),
    ),
    edited(
        "quarantine-skipped",
        "what failed while its peer may go on is not over",
        (
            _ENDINGS + "transfer_ended",
            "is_astray = fact.failed and not fact.proven",
            "is_astray = False",
        ),
    ),
    edited(
        "quarantine-moves",
        "what a lost transfer touches never moves",
        (_TRANSFERS + "quarantine", "band.usage.quarantine(signal)", "pass"),
    ),
    edited(
        "quarantined-bytes-awaited",
        "no wait clears bytes that a lost transfer touches",
        (_TRANSFERS + "quarantine", "self.chain.order.fences.quarantine(signal)", "pass"),
    ),
    edited(
        "failed-load-is-good",
        "a value that a load failed to fill is spoiled",
        (_COPIES + "end", "self.values.get(load.value_id).spoiled = True", "pass"),
    ),
    edited(
        "publish-beside-steps",
        "nothing is published that a step in flight writes",
        (_TRANSFERS + "publish", "if step:", "if False:"),
    ),
    edited(
        "publish-beside-transfers",
        "nothing is published that another transfer touches",
        (NOTHING_PUMPED.function, NOTHING_PUMPED.old, NOTHING_PUMPED.new),
    ),
    edited(
        "received-may-end",
        "what a peer is to write may not end",
        (_TRANSFERS + "check_may_end", "self._check_free(index", "None and self._check_free(index"),
    ),
    edited(
        "sent-may-be-retracted",
        "nobody is retracted whose pages a peer has",
        (
            _TRANSFERS + "check_untouched",
            "self._check_free(index",
            "None and self._check_free(index",
        ),
    ),
    edited(
        "unloaded-is-readable",
        "pages that a load is to fill are neither copied nor sent before",
        (_COPIES + "check_loaded", "if not load.submitted and", "if False and"),
    ),
    Fault(
        "compaction-under-unknown",
        "nothing moves unasked while a step writes nobody knows what",
        (
            Edit(_BAND + "compact", "if usage.has_unknown_writes or not", "if not"),
            Edit(_USAGE + "may_move", "not self.has_unknown_writes", "True"),
        ),
        beside="no unit may then move unasked",
    ),
    edited(
        "compaction-of-what-is-written",
        "nothing moves unasked that somebody writes",
        (
            _BAND + "_staying",
            "stays[live[~self.usage.may_move(live + first_index)]] = True",
            "pass",
        ),
    ),
    edited(
        "compaction-of-what-pends",
        "nothing pends where a frontier draws back unasked",
        (
            _BAND + "_staying",
            "stays = (states == PENDING) | (states == VACATED)",
            "stays = (states == VACATED)",
        ),
    ),
)
