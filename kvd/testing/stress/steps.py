"""What each step of a program does in a run."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from kvd.testing.stress import rank_steps, request_steps, transfer_steps, value_steps
from kvd.testing.stress.played_run import PlayedRun
from kvd.testing.stress.program import (
    Abort,
    Admit,
    AdmitElsewhere,
    Advance,
    AnyStep,
    AskAgain,
    Backup,
    CancelHold,
    CheckTables,
    Decode,
    Die,
    Elsewhere,
    EndTransfer,
    Evict,
    Extend,
    FailCopy,
    Follow,
    Free,
    GiveUp,
    Hold,
    Idle,
    Insert,
    Launch,
    Lead,
    LetGo,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Misuse,
    Play,
    Post,
    Process,
    Publish,
    Record,
    Relief,
    ResetSink,
    Rest,
    Send,
    Stand,
)
from kvd.testing.stress.scheduler import Scheduler

ScheduledStep: TypeAlias = Callable[[Scheduler, Any], bool]
RankStep: TypeAlias = Callable[[PlayedRun, Any], bool]

SCHEDULED: Final[dict[type[AnyStep], ScheduledStep]] = {
    Admit: request_steps.admit,
    AskAgain: request_steps.ask_again,
    GiveUp: request_steps.give_up,
    Extend: request_steps.extend,
    Decode: request_steps.decode,
    Stand: request_steps.stand,
    Advance: request_steps.advance,
    Free: request_steps.free,
    Launch: request_steps.launch,
    Record: request_steps.record,
    Abort: request_steps.abort,
    Process: request_steps.process,
    Insert: value_steps.insert,
    Evict: value_steps.evict,
    LoadReserve: value_steps.load_reserve,
    LoadName: value_steps.load_name,
    LoadSubmit: value_steps.load_submit,
    LoadCancel: value_steps.load_cancel,
    Backup: value_steps.backup,
    Hold: transfer_steps.hold,
    Publish: transfer_steps.publish,
    CancelHold: transfer_steps.cancel_hold,
    Post: transfer_steps.post,
    Relief: request_steps.relief,
    ResetSink: request_steps.reset_sink,
    Idle: request_steps.idle,
    Send: request_steps.send,
}
"""Steps that only need to know the log."""

ON_RANKS: Final[dict[type[AnyStep], RankStep]] = {
    Elsewhere: rank_steps.elsewhere,
    AdmitElsewhere: rank_steps.admit_elsewhere,
    FailCopy: rank_steps.fail_copy,
    LetGo: rank_steps.let_go,
    EndTransfer: rank_steps.end_transfer,
    Misuse: rank_steps.misuse,
    Play: rank_steps.play,
    Follow: rank_steps.follow,
    Lead: rank_steps.lead,
    CheckTables: rank_steps.check_tables,
    Rest: rank_steps.rest,
    Die: rank_steps.die,
}
"""Steps that need ranks and their devices."""

UNCOUNTED: Final = (Play, Follow, Lead, CheckTables, Rest)
"""Steps that are none of a scheduler's: they only say what runs when."""


def play_step(run: PlayedRun, step: AnyStep) -> bool:
    """Play one step; return whether anything fitted it."""
    done = play_scheduled(run.scheduler, step)
    return ON_RANKS[type(step)](run, step) if done is None else done


def play_scheduled(scheduler: Scheduler, step: AnyStep) -> bool | None:
    """Play a step that only needs the log; return whether anything fitted it, None for another."""
    scheduled = SCHEDULED.get(type(step))
    if scheduled is None:
        return None
    done = scheduled(scheduler, step)
    if request_steps.is_full(scheduler):
        scheduler.send()
    return done
