"""Faults of the engine and its log: effects and their order, gates, agreement, confirmation."""

from typing import Final

from kvd.testing.mutants.fault import Fault, edited

_STAGE: Final = "kvd.engine.stage:StageEngine."
_OUTCOME: Final = "kvd.engine.outcome:OutcomeBuilder."
_EFFECTS: Final = "kvd.engine.effects:EffectBuilder."
_INCARNATION: Final = "kvd.engine.incarnation:Incarnation."
_USES: Final = "kvd.engine.page_uses:PageUses."
_CHAIN: Final = "kvd.alloc.chain:ChainAllocator."


EFFECT_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "no-zeroing-asked",
        "pages that are handed out are zeroed",
        (_OUTCOME + "grant", "effects.zero(index, column, units)", "pass"),
    ),
    edited(
        "zeroing-of-owners-only",
        "in every band",
        (
            _OUTCOME + "grant",
            "effects.zero(index, column, units)",
            "effects.zero(index, column, units) if index == len(physical) - 1 else None",
        ),
    ),
    edited(
        "zeroing-of-all-but-one",
        "all of them",
        (
            _OUTCOME + "grant",
            "effects.zero(index, column, units)",
            "effects.zero(index, columns.add(units[1:] if units.size > 1 else units), units)",
        ),
    ),
    edited(
        "zeroing-once-taken-again",
        "and before a forward has them, not when they are handed out the next time",
        (
            _OUTCOME + "grant",
            "effects.zero(index, column, units)",
            "late = self._chain.__dict__.setdefault('late', {}); "
            "effects.zero(index, columns.add(late.get(index, units)), late.get(index, units)); "
            "late[index] = units",
        ),
    ),
    edited(
        "zeroing-before-moves",
        "what moves away has moved before its place is zeroed",
        (_OUTCOME + "grant", "self.moves(grant.moves)", "self.waits()"),
        (
            _OUTCOME + "grant",
            "effects.add(WriteRows(page_rows, places, virtual))",
            "effects.add(WriteRows(page_rows, places, virtual)); self.moves(grant.moves)",
        ),
    ),
    edited(
        "waits-behind-moves",
        "what moves have to be behind stands in front of them",
        (_OUTCOME + "moves", "self.waits()", "waits = self._chain.order.take_waits()"),
        (
            _OUTCOME + "moves",
            "self._effects.move(item.band_index, item.moves)",
            "self._effects.move(item.band_index, item.moves)\n"
            "    for signal in waits:\n        self._effects.wait(signal)",
        ),
    ),
    edited(
        "moves-not-told",
        "what the books move is copied",
        (_OUTCOME + "moves", "self._effects.move(item.band_index, item.moves)", "pass"),
    ),
    edited(
        "moves-of-one-band-only",
        "in every band",
        (_OUTCOME + "moves", "for item in moved:", "for item in moved[:1]:"),
    ),
    edited(
        "rebinding",
        "the tables name the new place of what moved",
        (
            _EFFECTS + "move",
            "self._current.append(WriteMap(band_index, columns.add(moves.virtual), destinations))",
            "pass",
        ),
    ),
    edited(
        "no-segments",
        "an operation is cut before an effect that writes where an earlier one read",
        (_EFFECTS + "_cut_before_write", "if any(", "if False and any("),
    ),
    edited(
        "segments-of-moves-only",
        "also where that effect zeroes",
        (_EFFECTS + "zero", "if self._reads:", "if False:"),
    ),
    edited(
        "rows-not-written",
        "the request table names the pages of a request",
        (
            _OUTCOME + "grant",
            "effects.add(WriteRows(page_rows, places, virtual))",
            "pass",
        ),
    ),
    edited(
        "maps-not-written",
        "the map of a band names its units",
        (_OUTCOME + "grant", "effects.map_units(index, virtual, column)", "pass"),
    ),
    edited(
        "slots-not-written",
        "the table of slots names the slot of a request",
        (
            _OUTCOME + "grant",
            "effects.add(WriteSlots(columns.add(grant.slot_rows), slots))",
            "pass",
        ),
    ),
    edited(
        "slots-not-cleared",
        "slots that are handed out are cleared",
        (_OUTCOME + "grant", "effects.add(ClearSlots(units_column))", "pass"),
    ),
    edited(
        "rows-not-reset",
        "rows that are handed out are reset",
        (_OUTCOME + "reset_rows", "self._effects.add(ResetRows(self.columns.add(rows)))", "pass"),
    ),
    edited(
        "freed-ids-stay-mapped",
        "a freed name reads as the sink",
        (
            _OUTCOME + "freed",
            "self._effects.unmap_units(item.band_index, self.columns.add(item.virtual))",
            "pass",
        ),
    ),
    edited(
        "ended-rows-keep-slots",
        "a request that ended has no slot",
        (_OUTCOME + "ended", "if self._chain.state_index is not None:", "if False:"),
    ),
    edited(
        "retraction-not-told",
        "who was retracted is out of all tables before its row is handed out",
        (_OUTCOME + "retracted", "self.ended(rows, freed)", "pass"),
    ),
    edited(
        "received-slots-not-zeroed",
        "a slot that a peer is to write is zeroed on A, and no launch clears it any more",
        (
            _OUTCOME + "zeroed",
            "self._effects.zero(band_index, self.columns.add(units), units)",
            "pass",
        ),
    ),
    edited(
        "load-names-not-told",
        "pages that a load is to fill are in the tables",
        (_USES + "_load_name", "builder.bound(operation.band, virtual, physical)", "pass"),
    ),
    edited(
        "copy-of-the-first-band-only",
        "a backup copies what it names in every band",
        (
            _USES + "_backup_submit",
            "for index, places in enumerate(units):",
            "for index, places in enumerate(units[:-1]):",
        ),
    ),
    edited(
        "take-told-unit-of-another",
        "an answer names the units that were taken",
        (
            _OUTCOME + "grant",
            "column: Column = columns.add(units)",
            "column: Column = columns.add(units[::-1])",
        ),
    ),
)

LOG_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "lag-reply-from-the-start",
        "a rank gets what stands behind its own position",
        (
            _INCARNATION + "_reply",
            "return self.log.reply(applied, max(applied, end_position))",
            "return self.log.reply(max(0, applied - 1), max(applied, end_position))",
        ),
    ),
    edited(
        "lag-reply-of-the-batch-only",
        "all of it, whatever batch it asked about",
        (
            _INCARNATION + "batch",
            "if self.applied[rank] == record.start_position:",
            "if True:",
        ),
    ),
    edited(
        "decided-twice",
        "a batch that another rank sends again is compared, and not decided again",
        (_INCARNATION + "batch", "if index == state.next_index:", "if index <= state.next_index:"),
    ),
    edited(
        "reply-dropped",
        "an entry that a rank did not apply is kept for it",
        (
            _INCARNATION + "confirm",
            "self.applied[rank] = applied_position",
            "self.applied.update(dict.fromkeys(self.applied, applied_position))",
        ),
    ),
    edited(
        "release-before-notices",
        "the daemon's own entries stand behind the notices of launched steps",
        (
            _INCARNATION + "_decide_batch",
            "if self._gate_due and not isinstance(operation, (Launch, Processed)):",
            "if self._gate_due:",
        ),
    ),
    edited(
        "release-not-logged",
        "what is over is released where every rank reads it",
        (
            _INCARNATION + "_pass_gate",
            "self._append(OWN_PROGRAM, 0, encode(released), self.engine.release(released))",
            "self.engine.release(released)",
        ),
    ),
    edited(
        "release-on-nobody's-word",
        "a gate without anything that is over releases nothing",
        (
            _INCARNATION + "_submit",
            "self._gate_due = True",
            "self._gate_due = False",
        ),
    ),
    edited(
        "batch-runs-on-behind-a-wrong-use",
        "behind wrong use nothing of the batch runs",
        (_INCARNATION + "_decide_batch", "wrong = True", "pass"),
    ),
    edited(
        "aborted-word-lost",
        "one rank's word that it left a launch reaches the books",
        (
            _INCARNATION + "_is_news",
            "self.engine.abort_step(fact.step)",
            "pass",
        ),
    ),
    edited(
        "confirmed-too-far",
        "a processed step confirms what its forward ran behind, and no more",
        (
            _INCARNATION + "_confirmed_by",
            "return self._launch_positions.pop(operation.step, 0)",
            "return self.log.end_position",
        ),
    ),
    edited(
        "processed-noted-too-early",
        "values are sealed where a step was processed, not before",
        (
            _USES + "note_processed",
            "self._processed.append((step, position))",
            "self._processed.append((step, 0))",
        ),
    ),
    edited(
        "settled-late",
        "freed units are merged before the next operation, whether somebody asked for it or not",
        (_STAGE + "decide", "if self._settle_due:", "if False:"),
        (_STAGE + "release", "self.settle()", "pass"),
    ),
    edited(
        "memo-of-another",
        "what is remembered of a list of requests is that of this list",
        (
            _STAGE + "_named",
            "if encoded != memo_bytes or memo_epoch != epoch:",
            "if len(encoded) != len(memo_bytes) or memo_epoch != epoch:",
        ),
    ),
    edited(
        "standing-set-outlives-retraction",
        "a request that was retracted and came back is no member of the standing set",
        (
            "kvd.engine.standing:StandingSet.rows",
            "alive = table.rows.opened_count[self._rows] == self._opened",
            "alive = table.rows.opened_count[self._rows] > 0",
        ),
    ),
    edited(
        "standing-set-in-order-of-rows",
        "the standing set has the order of adding",
        (
            "kvd.engine.standing:StandingSet.change",
            "self._rows = np.concatenate((kept, joining))",
            "self._rows = np.sort(np.concatenate((kept, joining)))",
        ),
    ),
    edited(
        "relief-unasked",
        "relief that does not fit moves nothing",
        (_STAGE + "_relief", "if not self.chain.fits(demand):", "if False:"),
    ),
    edited(
        "make-room-too-small",
        "relief leaves as many holes as were asked",
        (_CHAIN + "make_room", "if wanted > band.hole_units:", "if wanted > band.hole_units + 1:"),
    ),
    edited(
        "pending-settled-for-nothing",
        "what pends is settled only where holes do not suffice",
        (
            _CHAIN + "make_room",
            "for band, wanted in zip(self.bands, wanted_units, strict=True):\n        if",
            "self._recover()\n    for band, wanted in zip(self.bands, wanted_units, strict=True):\n"
            "        if",
        ),
    ),
    edited(
        "unasked-moves-without-end",
        "an idle moves no more units than it may",
        (_CHAIN + "compact", "units_max -= moves.sources.size", "units_max += moves.sources.size"),
    ),
)
