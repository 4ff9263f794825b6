"""Settings: every value an operator can choose, and the only reader of files and environment.

One precedence: flags, then ``KVD_*`` in the environment, then the TOML file, then the defaults.
A setting that is unknown or does not parse stops the start. Each consumer has one frozen struct;
beside every field stand its default, its range and the reason for both.

Importing this module is cheap on purpose: the command line reads settings before anything else.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, NewType, cast

from kvd.errors import FileError, SettingError, shown
from kvd.limits import (
    BUDGET_BYTES_MAX,
    CHUNK_TOKENS_MAX,
    CONTEXT_TOKENS_MAX,
    DRAFT_TOKENS_MAX,
    PAGE_TOKENS_MAX,
    RUNNING_REQUESTS_COUNT_MAX,
    SLOTS_MAX,
    STATE_SHARE_MAX,
    STATE_SHARE_MIN,
)
from kvd.setting import (
    AUTO,
    METADATA_KEY,
    AbsolutePath,
    Auto,
    ByteSize,
    Choice,
    EffectiveSetting,
    Origin,
    Ratio,
    SettingSpec,
    Text,
    UidList,
    WholeNumber,
    check_socket_path,
    default_runtime_dir,
    derived,
    parse_setting,
    setting,
    unknown_setting,
)

Microseconds = NewType("Microseconds", int)
TcpPort = NewType("TcpPort", int)

ENVIRONMENT_PREFIX: Final = "KVD_"
CONFIG_VARIABLE: Final = "KVD_CONFIG"
"""Names the settings file where no ``--config`` does."""
CLIENT_PREFIX: Final = "KVD_CLIENT_"
"""Variables for engine processes; the daemon leaves them alone."""

_KiB: Final = 1 << 10
_MiB: Final = 1 << 20
_GiB: Final = 1 << 30

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_ALWAYS_US: Final = 3_600_000_000
"""An hour between two batches: whoever polls that long never sleeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What the daemon and the holder need to start."""

    runtime_dir: Path = derived(
        Auto(
            AbsolutePath(), "/run/kvd if it is writable, else $XDG_RUNTIME_DIR/kvd or /tmp/kvd-UID"
        ),
        "holds sockets and the lock; mode 0700, so the paths below need no rights of their own",
    )
    socket_path: Path = derived(
        Auto(AbsolutePath(), "runtime_dir/kvd.sock"),
        "where schedulers and workers connect: ipc://PATH; at most 107 bytes",
        flag="--socket",
    )
    stats_path: Path = derived(
        Auto(AbsolutePath(), "socket_path with .stats appended"),
        "read-only stats and health, apart from the hot path so that a stuck one can be seen",
        flag="--stats-socket",
    )
    descriptor_path: Path = derived(
        Auto(AbsolutePath(), "socket_path with .fd appended"),
        "hands arena and fence pages to clients as file descriptors, which ZeroMQ cannot carry",
        flag="--descriptor-socket",
    )
    hold_path: Path = derived(
        Auto(AbsolutePath(), "runtime_dir/hold.sock"),
        "where kvd hold listens, and where holder = external looks for it",
        flag="--hold-socket",
    )
    holder: Literal["own", "external", "systemd"] = setting(
        "own",
        Choice(("own", "external", "systemd")),
        "who keeps the memory while the daemon restarts: a holder that serve starts and that dies "
        "with it, a running kvd hold, or systemd's descriptor store",
    )
    device: Literal["host", "cuda"] = setting(
        "host",
        Choice(("host", "cuda")),
        "where arenas lie: in shared memory of the host, which runs everywhere, or on GPUs; the "
        "daemon itself uses no GPU either way",
    )
    gpu: str | None = setting(
        None,
        Auto(Text("the UUID of one GPU, as nvidia-smi -L prints it"), "every GPU that is visible"),
        "the GPU that arenas are created on with device = cuda; ranks on another are refused",
    )
    allowed_uids: tuple[int, ...] = setting(
        (),
        UidList(),
        "users besides the daemon's own who may attach; checked against the kernel's credentials",
    )
    frame_bytes_max: int = setting(
        16 * _MiB,
        ByteSize(64 * _KiB, 1 * _GiB),
        "largest message accepted; a prompt of a million tokens at page size 1 needs 12 MiB",
    )
    group_wait_ms: int = setting(
        60_000,
        WholeNumber((100, _HOUR_MS)),
        "how long a group may stay incomplete before the missing ranks are named; loading "
        "weights on slow ranks comes before their hello",
    )
    lag_wait_ms: int = setting(
        30_000,
        WholeNumber((100, _HOUR_MS)),
        "how long a leader's reply waits for a rank that is rank_lag_count_max entries behind "
        "before it is an error",
    )
    quiet_wait_ms: int = setting(
        30_000,
        WholeNumber((1_000, _HOUR_MS)),
        "how long a dead rank's streams may stay busy before its memory is quarantined; a kernel "
        "was seen to write on for 6 s through a forked child",
    )
    survivor_wait_ms: int = setting(
        600_000,
        WholeNumber((0, 24 * _HOUR_MS)),
        "how long the memory of a group without ranks is kept for the values in it; then it is "
        "given back, and they are lost",
    )
    drain_wait_ms: int = setting(
        10_000,
        WholeNumber((0, _HOUR_MS)),
        "how long a stop waits for steps in flight; below the 90 s after which systemd kills",
    )
    heartbeat_ms: int = setting(
        1_000,
        WholeNumber((100, _MINUTE_MS)),
        "how often both sides say that they live; a hint only, no idle client is ever dropped",
    )
    rank_lag_count_max: int = setting(
        4_096,
        WholeNumber((1, 1 << 20)),
        "log entries that the slowest rank may be behind the leader; a decode step of 256 requests "
        "writes about 5",
    )
    log_ring_count: int = setting(
        65_536,
        WholeNumber((0, 1 << 24)),
        "log entries kept beyond what ranks still need, to show what came before a divergence",
    )
    idle_move_units_max: int = setting(
        4_096,
        WholeNumber((0, 1 << 20)),
        "pages and slots that an idle program's stage moves to draw its frontiers back, so that "
        "later takes need not; 0 moves nothing unasked",
    )
    batch_move_units_max: int = setting(
        0,
        WholeNumber((0, 1 << 20)),
        "the same at the end of every batch; moves share the bandwidth of the forwards, so the "
        "default leaves them to takes that need them",
    )
    busy_poll_us: Microseconds = setting(
        Microseconds(0),
        WholeNumber((0, _ALWAYS_US), word_for_highest="always"),
        "how long the daemon spins before it sleeps; saves a wake-up per batch and costs a core",
    )
    check_level: Literal["off", "warn", "strict"] = setting(
        "warn",
        Choice(("off", "warn", "strict")),
        "which invariants are checked: none, the cheap ones with fatal ones stopping the work, "
        "all after every operation; strict also has every rank compare its tables with the books "
        "at idle and before it leaves, and wait for its effects to do so",
    )
    idle_leaks: Literal["raise", "count"] = setting(
        "raise",
        Choice(("raise", "count")),
        "what a leak does that is found at level warn while a stage is idle: end the incarnation, "
        "which frees all there is, or be counted and logged",
    )
    trace_dir: Path | None = setting(
        None,
        Auto(AbsolutePath(), "nothing is recorded"),
        "folder in which every incarnation records its operations and what was decided, one file "
        "per stage, for kvd trace; each batch then takes longer, and costs some KiB of disk",
    )
    trace_bytes_max: int = setting(
        1 * _GiB,
        ByteSize(1 * _MiB, 1 << 50),
        "longest trace of one stage; a trace that would get longer ends and says so, and the "
        "daemon goes on",
    )
    metrics_host: str = setting(
        "127.0.0.1",
        Text("an address to listen on, as 127.0.0.1"),
        "metrics carry no secrets, but nothing leaves the host unasked",
    )
    metrics_port: TcpPort = setting(
        TcpPort(0), WholeNumber((0, 65_535)), "Prometheus metrics over HTTP; 0 is off"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingSettings:
    """How an arena is sized where the hello of a group says nothing else."""

    budget_bytes: int = setting(
        40 * _GiB,
        # A hello may ask for less, and is told the floor; here it is a forgotten suffix.
        ByteSize(1 * _MiB, BUDGET_BYTES_MAX),
        "memory per rank for arena and tables; half of an 80 GB card, beside the weights",
        flag="--budget",
    )
    page_tokens: int = setting(
        64,
        WholeNumber((1, PAGE_TOKENS_MAX)),
        "tokens per page; 64 is what current attention kernels take, 1 wastes no token and "
        "costs more bookkeeping",
        flag="--page",
    )
    context_tokens: int | None = setting(
        None,
        Auto(WholeNumber((1, CONTEXT_TOKENS_MAX)), "what the model's configuration says"),
        "longest request; fixes the width of the page table's rows",
        flag="--context",
    )
    running_requests_count: int | None = setting(
        None,
        Auto(
            WholeNumber((1, RUNNING_REQUESTS_COUNT_MAX)),
            "as many as the budget carries, between 2,048 and 4,096",
        ),
        "most requests that hold pages at a time; fixes the number of request rows",
        flag="--running",
    )
    state_share: float = setting(
        0.9,
        Ratio(STATE_SHARE_MIN, STATE_SHARE_MAX),
        "bytes of recurrent state per byte of token pages that sizing aims at; advice only, "
        "either side may later use the other's bytes",
    )
    state_slots: int | None = setting(
        None,
        Auto(WholeNumber((1, SLOTS_MAX)), "as many as state_share gives"),
        "recurrent-state slots that sizing aims at; overrides state_share",
    )
    chunk_tokens: int = setting(
        8_192,
        WholeNumber((1, CHUNK_TOKENS_MAX)),
        "most tokens of one prefill pass; windows need room for the chunks in flight",
        flag="--chunk",
    )
    draft_tokens: int = setting(
        0,
        WholeNumber((0, DRAFT_TOKENS_MAX)),
        "tokens that a draft model proposes per step; 0 is no draft model",
    )
    kv_dtype: Literal["bf16", "fp8"] = setting(
        "bf16", Choice(("bf16", "fp8")), "element type of keys and values: 2 or 1 bytes"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, one struct per consumer."""

    serve: ServeSettings
    sizing: SizingSettings


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """What a service manager passed in: where to report readiness, which descriptors it kept."""

    notify_address: str | None
    descriptor_names: tuple[str, ...]
    """Names of descriptors 3, 4, ... in order; empty if they are meant for another process."""


_SECTIONS: Final[Mapping[str, type[ServeSettings] | type[SizingSettings]]] = {
    "serve": ServeSettings,
    "sizing": SizingSettings,
}


def specs(section: str) -> dict[str, SettingSpec]:
    """Return every setting of a section by name, in the order of its struct."""
    return {item.name: item.metadata[METADATA_KEY] for item in fields(_SECTIONS[section])}


def section_names() -> tuple[str, ...]:
    """Return the sections of the settings file."""
    return tuple(_SECTIONS)


def flag_name(name: str, spec: SettingSpec) -> str:
    """Return the command-line option of a setting."""
    return spec.flag or "--" + name.replace("_", "-")


def process_environment() -> dict[str, str]:
    """Return the environment of this process, for the functions of this module."""
    return dict(os.environ)


def settings_file(given: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the settings file: the given one, else the one that ``KVD_CONFIG`` names."""
    if given is not None:
        return given
    named = environ.get(CONFIG_VARIABLE)
    return Path(named) if named else None


def load_settings(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> Settings:
    """Return the settings that apply.

    ``flags`` maps setting names to raw or typed values; None means that the flag was not given.

    Raises SettingError for an unknown or wrong setting, FileError for an unreadable file.
    """
    values = {(item.section, item.name): item.value for item in effective(flags, environ, file)}

    def section(name: str) -> dict[str, Any]:
        # Every value went through the kind that stands beside its field.
        return {key: value for (owner, key), value in values.items() if owner == name}

    return Settings(
        serve=ServeSettings(**section("serve")), sizing=SizingSettings(**section("sizing"))
    )


def effective(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> tuple[EffectiveSetting, ...]:
    """Return every setting with its value and where that came from, section by section.

    Raises SettingError for an unknown or wrong setting, FileError for an unreadable file.
    """
    in_file = _read_file(file) if file is not None else {}
    _refuseunknown_setting(flags, environ)
    found: dict[str, tuple[object, Origin, str]] = {}
    for section in _SECTIONS:
        for name, spec in specs(section).items():
            raw, origin, source = _strongest(name, spec, flags, environ, in_file, file)
            value = parse_setting(spec, name=name, raw=raw, source=source)
            left_open = value == AUTO and not isinstance(spec.default, str)
            found[name] = (None if left_open else value, origin, source)
    values = {name: value for name, (value, _, _) in found.items()}
    _derive_paths(values, environ)
    return tuple(
        EffectiveSetting(
            section=section,
            name=name,
            value=values[name],
            shown=spec.kind.shown(values[name]),
            origin=found[name][1],
            source=found[name][2],
            allowed=spec.kind.allowed,
            reason=spec.reason,
        )
        for section in _SECTIONS
        for name, spec in specs(section).items()
    )


def service_manager(environ: Mapping[str, str], *, pid: int) -> ServiceManager:
    """Return what systemd passed to the process ``pid``.

    Raises SettingError if the number of descriptors does not fit their names.
    """
    names: tuple[str, ...] = ()
    if environ.get("LISTEN_PID") == str(pid):
        count_text = environ.get("LISTEN_FDS", "0")
        joined = environ.get("LISTEN_FDNAMES", "")
        names = tuple(joined.split(":")) if joined else ()
        if count_text != str(len(names)):
            raise SettingError(
                f"LISTEN_FDS = {count_text!r} does not fit LISTEN_FDNAMES = {joined!r}: "
                f"{len(names)} names; start the daemon through its unit file"
            )
    return ServiceManager(
        notify_address=environ.get("NOTIFY_SOCKET") or None, descriptor_names=names
    )


def _strongest(
    name: str,
    spec: SettingSpec,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    in_file: Mapping[str, object],
    file: Path | None,
) -> tuple[object, Origin, str]:
    """Return the raw value of the strongest source that has one, that source and its name."""
    if flags.get(name) is not None:
        return flags[name], Origin.FLAG, flag_name(name, spec)
    variable = ENVIRONMENT_PREFIX + name.upper()
    if variable in environ:
        return environ[variable], Origin.ENVIRONMENT, variable
    if name in in_file:
        return in_file[name], Origin.FILE, str(file)
    default = AUTO if spec.default is None else spec.default
    return default, Origin.DEFAULT, "default"


def _derive_paths(values: dict[str, object], environ: Mapping[str, str]) -> None:
    """Replace ``auto`` by the value it stands for, then check the length of socket paths."""
    if values["runtime_dir"] == AUTO:
        values["runtime_dir"] = default_runtime_dir(environ)
    runtime_dir = cast("Path", values["runtime_dir"])
    if values["socket_path"] == AUTO:
        values["socket_path"] = runtime_dir / "kvd.sock"
    if values["hold_path"] == AUTO:
        values["hold_path"] = runtime_dir / "hold.sock"
    for name, suffix in (("stats_path", ".stats"), ("descriptor_path", ".fd")):
        if values[name] == AUTO:
            values[name] = Path(f"{values['socket_path']}{suffix}")
    for name in ("socket_path", "hold_path", "stats_path", "descriptor_path"):
        check_socket_path(cast("Path", values[name]), name=name)


def _read_file(file: Path) -> dict[str, object]:
    """Return the settings of a file by name.

    Raises FileError if it cannot be read as TOML, SettingError for what it should not hold.
    """
    import tomllib  # only those who have a file pay for its parser

    try:
        with file.open("rb") as stream:
            tables = tomllib.load(stream)
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise FileError(f"settings file '{file}' cannot be read: {reason}") from error
    except RecursionError as error:
        raise FileError(f"settings file '{file}' is nested too deeply for settings") from error
    except ValueError as error:
        # Wrong TOML, wrong UTF-8, or a number with more digits than Python reads.
        raise FileError(f"settings file '{file}' is not TOML: {error}") from error
    values: dict[str, object] = {}
    for section, table in tables.items():
        if section not in _SECTIONS:
            allowed = ", ".join(f"[{name}]" for name in _SECTIONS)
            raise SettingError(f"'{section}' in '{file}' is no section; the sections are {allowed}")
        if not isinstance(table, dict):
            raise SettingError(f"'{section}' in '{file}' is a value; write [{section}] above it")
        for name, value in cast("dict[str, object]", table).items():
            if name not in specs(section):
                raise unknown_setting(
                    f"'{name}' in [{section}] of '{file}'", name, tuple(specs(section))
                )
            values[name] = value
    return values


def _refuseunknown_setting(flags: Mapping[str, object], environ: Mapping[str, str]) -> None:
    known = tuple(name for section in _SECTIONS for name in specs(section))
    for name in flags:
        if name not in known:
            raise unknown_setting(f"'{name}' among the flags", name, known)
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name in known or variable.startswith(CLIENT_PREFIX):
            continue
        said = f"{variable} = {shown(environ[variable])}"
        if name == "port" or name.startswith(("port_", "service_")):
            raise SettingError(
                f"{said} is no setting but looks like a link that Kubernetes makes for a service "
                f"called kvd: set enableServiceLinks: false in the pod, or rename the service"
            )
        raise unknown_setting(f"{said} in the environment", name, known)
