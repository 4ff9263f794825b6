"""Damaged texts that people and files hand in: model configurations and settings.

Each gives what it was for, or one error of kvd that says what is wrong, soon.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from resource import RUSAGE_SELF, getrusage
from time import monotonic
from typing import Any, Final, cast

import msgspec

from kvd.build import build_group
from kvd.config import effective, specs
from kvd.presets import preset_config, preset_names
from kvd_proto.errors import MESSAGE_CHARACTERS_MAX, ErrorCode, KvdError
from kvd_proto.memory import Declaration, DeclaredConfig, DeclaredLayers, SizingInputs
from tests.e2e.ranks import LAYERS, SIZING
from tests.fuzz.trees import NUMBERS, damaged, nasty, nested
from tests.proto.samples import SAMPLES

SECONDS_MAX: Final = 5.0
"""For one text; all take milliseconds."""
MEMORY_PEAK_KIB_MAX: Final = 256 << 10
"""Most by which the peak of the process may grow, whatever a text claims."""
HUGE: Final = (10**19, 10**400, -(10**400))
"""Whole numbers that JSON and TOML can write and no machine counts with."""
PRESETS: Final = preset_names()
MODEL_TYPES: Final = tuple(
    str(json.loads(preset_config(name)).get("model_type", "llama")) for name in PRESETS
)
Seen = Counter[str]


def try_one(rng: Random, attempt: Callable[[Random], tuple[str, Callable[[], object]]]) -> str:
    """Make and try one text; return ``accepted`` or the error's code.

    Whatever else comes of it is a fault, and shown with the text.
    """
    shown, run = attempt(rng)
    began = monotonic()
    refusal: KvdError | None = None
    try:
        run()
    except KvdError as error:
        refusal = error
    except Exception as error:
        error.add_note(shown[:2000])
        raise
    assert monotonic() - began < SECONDS_MAX, shown[:2000]
    if refusal is None:
        return "accepted"
    assert refusal.code not in (ErrorCode.INTERNAL, ErrorCode.INVARIANT), (refusal, shown[:2000])
    assert 0 < len(refusal.message) <= MESSAGE_CHARACTERS_MAX, shown[:2000]
    return refusal.code.value


def a_configuration(rng: Random) -> tuple[str, Callable[[], object]]:
    """Damage a preset's configuration, and what it is to be sized with."""
    tree = json.loads(preset_config(rng.choice(PRESETS)))
    tree = damaged(tree, rng, times=rng.choice((0, 1, 1, 2, 3)), words=MODEL_TYPES)
    if rng.random() < 0.1 and isinstance(tree, dict):
        fields = cast("dict[str, object]", tree)
        fields[rng.choice((*fields, "num_hidden_layers"))] = rng.choice(HUGE)
    text = _damaged_text(json.dumps(tree, default=repr).encode(), rng)
    inputs = _sizing(rng)
    tp_count, pp_count = rng.choice((1, 1, 2, 8, 7)), rng.choice((1, 1, 2, 5))
    return f"{text!r} {inputs}", lambda: build_group(
        DeclaredConfig(config_json=text), inputs=inputs, tp_count=tp_count, pp_count=pp_count
    )


def a_declaration(rng: Random) -> tuple[str, Callable[[], object]]:
    """Damage a declaration in parts, as it crosses the wire."""
    sample = rng.choice((LAYERS, LAYERS, SAMPLES["memory.layers"], SAMPLES["memory.config"]))
    tree = msgspec.msgpack.decode(msgspec.msgpack.encode(sample))
    encoded = msgspec.msgpack.encode(damaged(tree, rng, times=rng.choice((0, 1, 1, 2))))
    try:
        declaration: Declaration = msgspec.msgpack.decode(
            encoded, type=DeclaredLayers | DeclaredConfig
        )
    except msgspec.DecodeError:
        declaration = DeclaredConfig(config_json=encoded)
    inputs = SIZING if rng.random() < 0.6 else _sizing(rng)
    return f"{declaration} {inputs}", lambda: build_group(declaration, inputs=inputs)


def _sizing(rng: Random) -> SizingInputs:
    """Return sizing inputs, some of them wrong."""
    inputs = SizingInputs(budget_bytes=rng.choice((1 << 20, 1 << 30, 40 << 30, 1 << 41)))
    if rng.random() < 0.5:
        return inputs
    name = rng.choice(inputs.__struct_fields__)
    value: Any = rng.choice((*NUMBERS, 16, 100, 8192))
    if name == "state_share":
        value = rng.choice((0.5, -1.0, 1e308, float("nan"), float("inf")))
    elif name == "kv_dtype":
        value = rng.choice(("fp8", "bf16", "", "x" * 5000))
    elif name == "stage_layers_count":
        value = rng.choice(((), (1,), (-1, 5), (1,) * 5000, (1 << 63, 1)))
    elif name == "overlap":
        value = True
    changed: dict[str, Any] = {name: value}
    return msgspec.structs.replace(inputs, **changed)


def _damaged_text(text: bytes, rng: Random) -> bytes:
    act = rng.randrange(30)
    at = rng.randrange(len(text) + 1)
    if act == 0:
        return text[:at]
    if act == 1:
        return text[:at] + rng.randbytes(3) + text[at:]
    if act == 2:
        return text[:at] + rng.choice((b"[", b"{", b'"', b"1" * 5000, b"[" * 100_000)) + text[at:]
    if act == 3:
        return rng.choice((b"", b"null", b"[]", b"\xff\xfe{}", b"[" * 200_000, b'{"a":' * 200_000))
    return text


SETTING_NAMES: Final = tuple(
    (section, name) for section in ("serve", "sizing") for name in specs(section)
)
WORDS: Final = ("auto", "max", "0", "1", "-1", "64", "40GiB", "1e9", "1.5", "nan", "on", "true")
ENDS: Final = ("", "x" * 100_000, "9" * 5000, "1" * 19 + "TiB", "\x7f", "\udcff", "/" * 300)


def settings_of(folder: Path) -> Callable[[Random], tuple[str, Callable[[], object]]]:
    """Return what damages settings in a file of this folder, variables and flags."""
    file = folder / "kvd.toml"

    def attempt(rng: Random) -> tuple[str, Callable[[], object]]:
        text = _settings_text(rng)
        file.write_bytes(text)
        variables = {_variable(rng): _word(rng) for _ in range(rng.choice((0, 0, 1, 2)))}
        flags: dict[str, object] = {
            rng.choice(SETTING_NAMES)[1] if rng.random() < 0.95 else _word(rng): _flag(rng)
            for _ in range(rng.choice((0, 0, 1, 2)))
        }
        used = file if rng.random() < 0.6 else None
        shown = f"{text!r} {variables} {flags}"
        return shown, lambda: effective(flags, variables, used)

    return attempt


def _variable(rng: Random) -> str:
    name = rng.choice(SETTING_NAMES)[1] if rng.random() < 0.9 else _word(rng)[:200]
    return f"KVD_{name.upper()}"


def _word(rng: Random) -> str:
    return rng.choice(WORDS) if rng.random() < 0.7 else rng.choice(ENDS)


def _flag(rng: Random) -> object:
    if rng.random() < 0.6:
        return _word(rng)
    return rng.choice((nasty(rng), rng.choice(HUGE), nested(50, as_list=True)))


def _settings_text(rng: Random) -> bytes:
    lines: list[str] = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        section, name = rng.choice(SETTING_NAMES)
        if rng.random() < 0.05:
            section = rng.choice(("", "servee", '"x y"', "serve.sizing", "[serve]"))
        lines += [f"[{section}]", f"{name} = {_toml_value(rng)}"]
    return _damaged_text("\n".join(lines).encode(errors="surrogateescape"), rng)


def _toml_value(rng: Random) -> str:
    act = rng.randrange(8)
    if act < 3:
        return f'"{_word(rng)}"'
    if act == 3:
        return str(rng.choice((*NUMBERS, *HUGE)))
    if act == 4:
        return rng.choice(("nan", "inf", "-inf", "1e400", "1.5", "0x" + "f" * 5000, "9" * 5000))
    if act == 5:
        return rng.choice(("true", "[]", "{}", "[1000, 1001]", "1979-05-27", "[1, -1, 'a']"))
    if act == 6:
        return "[" * (depth := rng.choice((2, 500, 20_000))) + "]" * depth
    return rng.choice(WORDS)


def try_many(
    seed: int, count: int, attempt: Callable[[Random], tuple[str, Callable[[], object]]]
) -> Seen:
    """Make and try so many texts of one kind; return how often each came out how."""
    rng = Random(seed)
    before_kib = getrusage(RUSAGE_SELF).ru_maxrss
    seen = Counter(try_one(rng, attempt) for _ in range(count))
    grown_kib = getrusage(RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib <= MEMORY_PEAK_KIB_MAX, f"some text took {grown_kib} KiB"
    return seen
