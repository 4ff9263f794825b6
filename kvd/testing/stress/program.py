"""Programs of the stress harness: a stage, a seed, and a list of steps with loose arguments.

Every list of steps is a valid program, and so is every part of it and every change of an argument:
arguments are picks, not names. ``Free(pick_index=17)`` frees the running request at place 17 modulo
how many there are; a step that nothing fits is skipped. That is what lets a failing program be
shrunk by leaving out steps and making numbers smaller. What a program does depends on nothing else:
the same program gives the same decisions, and the same order of all modelled actions, on every
machine (semantics 11.4).

Numbers are whole, 0 or more, and only mean something modulo what there is; 0 is the plainest.
Token counts are folded into what the stage allows.
"""

from typing import Final, TypeAlias

import msgspec

FORMAT: Final = "kvd.stress/1"
RANKS_MIN: Final = 2
RANKS_MAX: Final = 4


class Step(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Base of all steps. A number that is left out is 0."""


# ---- requests -------------------------------------------------------------------------------


class Admit(Step, frozen=True, kw_only=True, tag="admit"):
    """Ask for new requests with prompts of so many tokens and up to ``new_tokens`` more."""

    count: int = 0
    """One request more than this, modulo 3."""
    prompt_tokens: int = 0
    new_tokens: int = 0
    take_tokens: int = 0
    """Tokens granted with the verdict; 0 for none."""
    chunk_tokens: int = 0
    reserve_batches: int = 0
    """Batches after which the promise lapses; 0: with its request."""
    growth_permille: int = 0
    """Permille of the growth of lapsed requests to leave room for."""
    victims_count: int = 0
    """How many running requests may be retracted for it."""
    first_victim_index: int = 0


class AskAgain(Step, frozen=True, kw_only=True, tag="ask_again"):
    """Ask once more for a request that was told to wait, or was retracted."""

    pick_index: int = 0
    take_tokens: int = 0
    victims_count: int = 0
    first_victim_index: int = 0


class GiveUp(Step, frozen=True, kw_only=True, tag="give_up"):
    """Give up a request that waits."""

    pick_index: int = 0


class Extend(Step, frozen=True, kw_only=True, tag="extend"):
    """Grow running requests by tokens, all or nothing."""

    pick_index: int = 0
    count: int = 0
    """One request more than this."""
    tokens: int = 0
    victims_count: int = 0
    first_victim_index: int = 0


class Decode(Step, frozen=True, kw_only=True, tag="decode"):
    """Grow the standing set by a token each."""

    victims_count: int = 0
    first_victim_index: int = 0


class Stand(Step, frozen=True, kw_only=True, tag="stand"):
    """Put a request into the standing set, or take it out if it is there."""

    pick_index: int = 0
    count: int = 0
    """One request more than this."""


class Advance(Step, frozen=True, kw_only=True, tag="advance"):
    """State that requests have computed tokens that they took; windows slide."""

    pick_index: int = 0
    count: int = 0
    """One request more than this; the whole standing set with ``standing``."""
    tokens: int = 0
    """At most so many; 0 for all that they took."""
    standing: bool = False


class Free(Step, frozen=True, kw_only=True, tag="free"):
    """End running requests, whatever runs meanwhile."""

    pick_index: int = 0
    count: int = 0
    """One request more than this."""


class Elsewhere(Step, frozen=True, kw_only=True, tag="elsewhere"):
    """Have another program make room in a band, whatever was launched and not told yet.

    It asks for less and less until some fits, and may give up a value first.
    """

    band: int = 0
    pick_index: int = 0
    value: bool = False
    """Give up a value first."""


class AdmitElsewhere(Step, frozen=True, kw_only=True, tag="admit_elsewhere"):
    """Have another program admit somebody, whom the open batch does not know.

    Requests belong to the group, so whoever knows its id may grow, retract or free it. Ranks of
    this program do not know its row: it stands in no set and runs in no forward.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    take_tokens: int = 0


# ---- forwards -------------------------------------------------------------------------------


class Launch(Step, frozen=True, kw_only=True, tag="launch"):
    """Begin a forward over running requests; it stays open until `Record`, `Abort` or `Launch`.

    It reads all their pages and slots and writes the tokens that they took and did not write yet.
    """

    pick_index: int = 0
    count: int = 0
    """One request more than this; everybody if that is more than there are."""
    unstated: bool = False
    """The write set is not stated."""
    standing: bool = False
    """The write set is that of the standing set, which is then who runs."""
    silent: bool = False
    """The forward does not say when it has read the tables."""


class Record(Step, frozen=True, kw_only=True, tag="record"):
    """End the launch block that is open."""


class Abort(Step, frozen=True, kw_only=True, tag="abort"):
    """Leave the launch block that is open by an exception, on the rank that leads."""


class Process(Step, frozen=True, kw_only=True, tag="process"):
    """Notice that the oldest forwards are over: one more than ``count``."""

    count: int = 0


# ---- values and copies ----------------------------------------------------------------------


class Insert(Step, frozen=True, kw_only=True, tag="insert"):
    """End a running request and keep its pages as a value."""

    pick_index: int = 0


class Evict(Step, frozen=True, kw_only=True, tag="evict"):
    """Give up values."""

    pick_index: int = 0
    count: int = 0
    """One value more than this."""


class LoadReserve(Step, frozen=True, kw_only=True, tag="load_reserve"):
    """Take units of a window for pages that a value lacks there."""

    pick_index: int = 0
    band: int = 0
    count: int = 0
    """One unit more than this."""
    windows_count: int = 0
    """Take from so many windows more, as far as there are."""


class LoadName(Step, frozen=True, kw_only=True, tag="load_name"):
    """Name the next units of an open load: one more than ``count``, or all that fit."""

    pick_index: int = 0
    count: int = 0


class LoadSubmit(Step, frozen=True, kw_only=True, tag="load_submit"):
    """Start the copy of an open load; what is not named yet is named before."""

    pick_index: int = 0


class LoadCancel(Step, frozen=True, kw_only=True, tag="load_cancel"):
    """Give up an open load."""

    pick_index: int = 0


class Backup(Step, frozen=True, kw_only=True, tag="backup"):
    """Copy units of a value to the host."""

    pick_index: int = 0
    band: int = 0
    count: int = 0
    """One unit more than this; bands behind it take part with ``bands_count``."""
    bands_count: int = 0


class FailCopy(Step, frozen=True, kw_only=True, tag="fail_copy"):
    """Have the end of a running copy be reported as a failure by one rank."""

    pick_index: int = 0
    rank: int = 0


# ---- transfers ------------------------------------------------------------------------------


class Hold(Step, frozen=True, kw_only=True, tag="hold"):
    """Announce that a peer is to write pages of a request, or of a value."""

    pick_index: int = 0
    count: int = 0
    """Units of each band: one more than this, or all."""
    band: int = 0
    """Only this band; all of them at 0."""
    value: bool = False


class Publish(Step, frozen=True, kw_only=True, tag="publish"):
    """Tell the peer of a held transfer where to write."""

    pick_index: int = 0


class CancelHold(Step, frozen=True, kw_only=True, tag="cancel_hold"):
    """Give up a held transfer."""

    pick_index: int = 0


class Post(Step, frozen=True, kw_only=True, tag="post"):
    """Tell a peer where to read pages of a value, or of a request."""

    pick_index: int = 0
    count: int = 0
    """Units of each band: one more than this, or all."""
    band: int = 0
    """Only this band; all of them at 0."""
    request: bool = False
    """Of a request that runs, instead of a value."""


class LetGo(Step, frozen=True, kw_only=True, tag="let_go"):
    """Let the peers of a transfer, which the network may delay for ever, begin."""

    pick_index: int = 0


class EndTransfer(Step, frozen=True, kw_only=True, tag="end_transfer"):
    """Have one rank report how its part of a transfer ended.

    One that is not over on that rank can only be reported as failed without proof.
    """

    pick_index: int = 0
    rank: int = 0
    failed: bool = False
    unproven: bool = False


# ---- the arena as a whole -------------------------------------------------------------------


class Relief(Step, frozen=True, kw_only=True, tag="relief"):
    """Make room for units per band, chain order; bands without an entry ask for none."""

    units: tuple[int, ...] = ()


class ResetSink(Step, frozen=True, kw_only=True, tag="reset_sink"):
    """Fill the sink with zero; whatever a graph's capture left there is put there before."""


class Idle(Step, frozen=True, kw_only=True, tag="idle"):
    """Say that nothing is launched before the next batch: frontiers draw back."""


class Send(Step, frozen=True, kw_only=True, tag="send"):
    """End the batch of all operations since the last one, and send it."""


class Misuse(Step, frozen=True, kw_only=True, tag="misuse"):
    """Ask for something wrong, which has to be turned down without a trace."""

    kind_index: int = 0
    pick_index: int = 0


# ---- ranks and their devices ----------------------------------------------------------------


class Play(Step, frozen=True, kw_only=True, tag="play"):
    """Let so many actions of all devices run, in an order drawn from the program's seed."""

    actions_count: int = 0
    favour_index: int = 0
    """Which streams run first, of those that `kvd.testing.stress.pace` names; 0: drawn evenly."""


class Follow(Step, frozen=True, kw_only=True, tag="follow"):
    """Have a rank that lags do what the first one did, one part more than ``count``."""

    rank: int = 0
    count: int = 0


class Lead(Step, frozen=True, kw_only=True, tag="lead"):
    """Have another of several mirrored ranks be the first from now on."""

    rank: int = 0


class CheckTables(Step, frozen=True, kw_only=True, tag="check_tables"):
    """Have a rank compare its tables with the books."""

    rank: int = 0


class Rest(Step, frozen=True, kw_only=True, tag="rest"):
    """Have all ranks do everything and all devices come to rest, and compare all that is live."""


class Die(Step, frozen=True, kw_only=True, tag="die"):
    """Let ranks die where they are, and the next incarnation begin on their memory."""

    rank: int = 0
    all_die: bool = False
    """All of them die; otherwise the others leave once their streams ran dry."""


AnyStep: TypeAlias = (
    Admit
    | AskAgain
    | GiveUp
    | Extend
    | Decode
    | Stand
    | Advance
    | Free
    | Elsewhere
    | AdmitElsewhere
    | Launch
    | Record
    | Abort
    | Process
    | Insert
    | Evict
    | LoadReserve
    | LoadName
    | LoadSubmit
    | LoadCancel
    | Backup
    | FailCopy
    | Hold
    | Publish
    | CancelHold
    | Post
    | LetGo
    | EndTransfer
    | Relief
    | ResetSink
    | Idle
    | Send
    | Misuse
    | Play
    | Follow
    | Lead
    | CheckTables
    | Rest
    | Die
)
STEP_TYPES: Final[tuple[type[AnyStep], ...]] = AnyStep.__args__


class Program(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Everything that a run depends on."""

    format: str = FORMAT
    shape: str
    """Name of the stage, one of `kvd.testing.stress.shapes`."""
    seed_index: int
    """Decides in which order modelled actions run, and which share of the dear checks is made."""
    ranks_count: int = RANKS_MIN
    leader: bool = False
    """The first rank leads and the others follow the log; otherwise every rank sends everything."""
    overlap: bool = False
    steps: tuple[AnyStep, ...] = ()


def encode_program(program: Program) -> bytes:
    """Return a program as JSON, for a file that people read."""
    return msgspec.json.format(msgspec.json.encode(program), indent=1) + b"\n"


def decode_program(encoded: bytes) -> Program:
    """Return a program from JSON; raises msgspec.ValidationError or DecodeError."""
    program = msgspec.json.decode(encoded, type=Program)
    if not RANKS_MIN <= program.ranks_count <= RANKS_MAX:
        raise msgspec.ValidationError(
            f"ranks_count is {program.ranks_count}; {RANKS_MIN} to {RANKS_MAX} are allowed"
        )
    return program
