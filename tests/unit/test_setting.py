"""Parsing of single settings: what is accepted, what is refused, how values are shown."""

import math
from pathlib import Path

import pytest

from kvd.errors import SettingError
from kvd.setting import (
    AUTO,
    AbsolutePath,
    Auto,
    ByteSize,
    Choice,
    Kind,
    Ratio,
    Text,
    UidList,
    WholeNumber,
    check_socket_path,
    parse_bytes,
    show_bytes,
)

NUMBER = WholeNumber((1, 100))
FOREVER = WholeNumber((0, 100), word_for_highest="always")
SIZE = ByteSize(1, 1 << 40)
RATIO = Ratio(0.5, 2.0)
CHOICE = Choice(("off", "on"))
TEXT = Text("a name")
PATH = AbsolutePath()
UIDS = UidList()
MAYBE = Auto(NUMBER, "derived")


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (NUMBER, 1, 1),
        (NUMBER, "100", 100),
        (FOREVER, "always", 100),
        (SIZE, 4096, 4096),
        (SIZE, "4096", 4096),
        (SIZE, "40GiB", 40 << 30),
        (SIZE, "3 KiB", 3 << 10),
        (SIZE, "1TiB", 1 << 40),
        (RATIO, "0.5", 0.5),
        (RATIO, 2, 2.0),
        (CHOICE, "on", "on"),
        (TEXT, "x", "x"),
        (PATH, "/run/kvd", Path("/run/kvd")),
        (UIDS, "", ()),
        (UIDS, "1001, 1000,1000", (1000, 1001)),
        (UIDS, [7], (7,)),
        (MAYBE, "auto", AUTO),
        (MAYBE, "5", 5),
    ],
)
def test_an_allowed_form_is_parsed(kind: Kind, raw: object, value: object) -> None:
    assert kind.parse(raw) == value


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (NUMBER, 0),
        (NUMBER, 101),
        (NUMBER, True),
        (NUMBER, 1.0),
        (NUMBER, "1e1"),
        (NUMBER, "٣"),
        (NUMBER, "1" * 5000),
        (NUMBER, ""),
        (NUMBER, "always"),
        (SIZE, "40GB"),
        (SIZE, "1.5GiB"),
        (SIZE, "GiB"),
        (SIZE, "2TiB"),
        (SIZE, -1),
        (SIZE, 0),
        (RATIO, "nan"),
        (RATIO, math.nan),
        (RATIO, math.inf),
        (RATIO, True),
        (RATIO, "half"),
        (CHOICE, "ON"),
        (CHOICE, 1),
        (TEXT, ""),
        (TEXT, "a\0b"),
        (PATH, "run/kvd"),
        (PATH, ""),
        (PATH, "/a\0b"),
        (UIDS, "root"),
        (UIDS, "1,,2"),
        (UIDS, [-1]),
        (UIDS, [1 << 32]),
        (UIDS, 5),
        (MAYBE, "none"),
    ],
)
def test_any_other_form_is_refused(kind: Kind, raw: object) -> None:
    assert kind.parse(raw) is None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (NUMBER, 7),
        (FOREVER, 100),
        (SIZE, 40 << 30),
        (SIZE, 1025),
        (RATIO, 0.75),
        (CHOICE, "off"),
        (PATH, Path("/x")),
        (UIDS, (1, 2)),
        (MAYBE, 9),
        (MAYBE, AUTO),
    ],
)
def test_what_is_shown_parses_to_the_same_value(kind: Kind, value: object) -> None:
    assert kind.parse(kind.shown(value)) == value


def test_a_value_left_open_is_shown_as_auto() -> None:
    assert MAYBE.shown(None) == AUTO


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, 0), (1023, 1023), (1024, "1KiB"), (1536, 1536), (2048 << 20, "2GiB")],
)
def test_bytes_are_shown_with_the_largest_suffix_that_divides_them(
    size_bytes: int, text: str | int
) -> None:
    assert show_bytes(size_bytes) == text


def test_a_size_that_does_not_parse_is_named_with_what_would_be_right() -> None:
    with pytest.raises(SettingError, match=r"--budget = '40GB' .* 40GiB"):
        parse_bytes("40GB", name="--budget")


def test_a_socket_path_of_107_bytes_is_accepted() -> None:
    check_socket_path(Path("/" + "x" * 106), name="socket_path")


def test_a_socket_path_is_measured_in_bytes() -> None:
    path = Path("/" + "ü" * 60)
    with pytest.raises(SettingError, match=r"is 121 bytes long.* at most 107"):
        check_socket_path(path, name="socket_path")
