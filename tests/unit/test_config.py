"""Settings as a whole: precedence, origins, refusals, derived paths and the shipped file."""

import os
import tomllib
from pathlib import Path

import pytest

from kvd.config import (
    effective,
    flag_name,
    load_settings,
    section_names,
    service_manager,
    settings_file,
    specs,
)
from kvd.errors import FileError, SettingError
from kvd.setting import AUTO, EffectiveSetting, Origin
from kvd.size.inputs import DEFAULT_SIZING

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "kvd.toml"
ALL_SETTINGS = [(section, name) for section in section_names() for name in specs(section)]


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "kvd.toml"
    file.write_text(text, encoding="utf-8")
    return file


def find(found: tuple[EffectiveSetting, ...], name: str) -> EffectiveSetting:
    (item,) = [item for item in found if item.name == name]
    return item


def test_a_flag_beats_environment_and_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[sizing]\npage_tokens = 16\n")
    found = effective({"page_tokens": "1"}, {"KVD_PAGE_TOKENS": "32"}, file)
    item = find(found, "page_tokens")
    assert (item.value, item.origin, item.source) == (1, Origin.FLAG, "--page")


def test_the_environment_beats_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[sizing]\npage_tokens = 16\n")
    item = find(effective({"page_tokens": None}, {"KVD_PAGE_TOKENS": "32"}, file), "page_tokens")
    assert (item.value, item.origin, item.source) == (32, Origin.ENVIRONMENT, "KVD_PAGE_TOKENS")


def test_the_file_beats_the_default(tmp_path: Path) -> None:
    file = write(tmp_path, '[sizing]\nbudget_bytes = "2GiB"\n')
    item = find(effective({}, {}, file), "budget_bytes")
    assert (item.value, item.origin, item.source) == (2 << 30, Origin.FILE, str(file))


def test_without_any_source_the_defaults_apply() -> None:
    settings = load_settings({}, {}, None)
    assert settings.serve.check_level == "warn"
    assert settings.serve.busy_poll_us == 0
    assert settings.sizing.budget_bytes == 40 << 30
    assert settings.sizing.context_tokens is None


@pytest.mark.parametrize(("section", "name"), ALL_SETTINGS)
def test_every_default_is_an_allowed_value(section: str, name: str) -> None:
    spec = specs(section)[name]
    shown = spec.kind.shown(spec.default)
    assert spec.kind.parse(shown) is not None
    assert spec.reason


def test_no_two_settings_share_a_name_or_a_flag() -> None:
    flags = [flag_name(name, specs(section)[name]) for section, name in ALL_SETTINGS]
    names = [name for _, name in ALL_SETTINGS]
    assert len(set(names)) == len(names)
    assert len(set(flags)) == len(flags)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"KVD_PAGE_TOKENS": "64k"}, r"page_tokens = '64k' \(from KVD_PAGE_TOKENS\).* 1 to 65536"),
        ({"KVD_PAGE_TOKEN": "64"}, "KVD_PAGE_TOKEN = '64'.* did you mean page_tokens"),
        ({"KVD_QQ": "1"}, "KVD_QQ = '1'.* kvd config lists all settings"),
        ({"KVD_PORT_5555_TCP": "tcp://1.2.3.4"}, "KVD_PORT_5555_TCP.* enableServiceLinks: false"),
        ({"KVD_SERVICE_HOST": "1.2.3.4"}, "KVD_SERVICE_HOST.* enableServiceLinks: false"),
        ({"KVD_CHECK_LEVEL": ""}, "check_level = ''.* one of off, warn, strict"),
    ],
)
def test_a_wrong_variable_stops_the_start(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        load_settings({}, environ, None)


@pytest.mark.parametrize("variable", ["KVD_CONFIG", "KVD_CLIENT_SOCKET", "PATH", "XKVD_FOO"])
def test_a_variable_for_somebody_else_is_left_alone(variable: str) -> None:
    assert load_settings({}, {variable: "/x"}, None) == load_settings({}, {}, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[serve]\nsocket_pth = '/x'\n", r"'socket_pth' in \[serve\].* did you mean socket_path"),
        ("[serve]\npage_tokens = 1\n", r"'page_tokens' in \[serve\]"),
        ("[server]\n", r"'server' in .* is no section; the sections are \[serve\], \[sizing\]"),
        ("serve = 1\n", r"'serve' in .* is a value; write \[serve\]"),
        ("[sizing]\npage_tokens = true\n", r"page_tokens = True \(from .*kvd.toml\)"),
        ("[sizing]\nkv_dtype = 'int4'\n", "kv_dtype = 'int4'.* one of bf16, fp8"),
    ],
)
def test_a_wrong_entry_in_the_file_stops_the_start(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        load_settings({}, {}, write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nowhere\.toml' cannot be read: No such file"):
        load_settings({}, {}, tmp_path / "nowhere.toml")


def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be read: Is a directory"):
        load_settings({}, {}, tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"[serve\n", b"\xff\xfe", b"[serve]\nring_entries_count_max = " + b"9" * 5000],
    ids=["torn", "no text", "digits"],
)
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "kvd.toml"
    file.write_bytes(content)
    with pytest.raises(FileError, match=r"kvd\.toml' is not TOML"):
        load_settings({}, {}, file)


def test_a_file_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kvd.toml"
    file.write_bytes(b"[serve]\nsocket = " + b"[" * 20_000 + b"]" * 20_000)
    with pytest.raises(FileError, match="is nested too deeply for settings"):
        load_settings({}, {}, file)


@pytest.mark.parametrize("value", ["x" * 100_000, "9" * 5000])
def test_an_absurd_value_is_cut_short_in_the_message(value: str) -> None:
    with pytest.raises(SettingError, match=r"^frame_bytes_max = '.*\.\.\..*' \(from ") as caught:
        load_settings({}, {"KVD_FRAME_BYTES_MAX": value}, None)
    assert len(caught.value.message) < 300


def test_an_absurd_name_is_refused_soon() -> None:
    with pytest.raises(SettingError, match="is no setting; kvd config lists all settings"):
        load_settings({"x" * 100_000: "1"}, {}, None)


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(SettingError, match="'pages' among the flags"):
        load_settings({"pages": "1"}, {}, None)


def test_the_given_file_beats_the_variable() -> None:
    given = Path("/given.toml")
    assert settings_file(given, {"KVD_CONFIG": "/named.toml"}) == given
    assert settings_file(None, {"KVD_CONFIG": "/named.toml"}) == Path("/named.toml")
    assert settings_file(None, {}) is None


def test_paths_follow_the_runtime_directory() -> None:
    serve = load_settings({"runtime_dir": "/x"}, {}, None).serve
    assert serve.socket_path == Path("/x/kvd.sock")
    assert serve.stats_path == Path("/x/kvd.sock.stats")
    assert serve.descriptor_path == Path("/x/kvd.sock.fd")
    assert serve.hold_path == Path("/x/hold.sock")


def test_the_stats_socket_follows_the_socket() -> None:
    serve = load_settings({"socket_path": "/y/a"}, {}, None).serve
    assert serve.stats_path == Path("/y/a.stats")


@pytest.mark.skipif(os.access("/run/kvd", os.W_OK), reason="this host has a /run/kvd to write to")
@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, Path("/run/user/7/kvd")),
        ({"XDG_RUNTIME_DIR": "relative"}, Path(f"/tmp/kvd-{os.getuid()}")),
        ({}, Path(f"/tmp/kvd-{os.getuid()}")),
    ],
)
def test_the_runtime_directory_is_found(environ: dict[str, str], expected: Path) -> None:
    assert load_settings({}, environ, None).serve.runtime_dir == expected


def test_a_runtime_directory_too_long_for_its_sockets_is_refused() -> None:
    with pytest.raises(SettingError, match=r"socket_path = .* 109 bytes long.* at most 107"):
        load_settings({"runtime_dir": "/" + "x" * 99}, {}, None)


def test_a_derived_socket_path_is_measured_too() -> None:
    with pytest.raises(SettingError, match="stats_path = "):
        load_settings({"socket_path": "/" + "x" * 104}, {}, None)


def test_busy_poll_takes_the_word_always() -> None:
    found = effective({"busy_poll_us": "always"}, {}, None)
    assert find(found, "busy_poll_us").shown == "always"
    assert load_settings({"busy_poll_us": "always"}, {}, None).serve.busy_poll_us == 3_600_000_000


def test_a_sizing_value_left_open_is_none_and_shown_as_auto() -> None:
    item = find(effective({}, {}, None), "state_slots")
    assert (item.value, item.shown) == (None, AUTO)


def test_the_service_manager_names_the_descriptors_it_kept() -> None:
    environ = {"LISTEN_PID": "42", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "nonce:arena-0"}
    passed = service_manager({**environ, "NOTIFY_SOCKET": "/run/n"}, pid=42)
    assert passed.descriptor_names == ("nonce", "arena-0")
    assert passed.notify_address == "/run/n"


def test_descriptors_of_another_process_are_not_ours() -> None:
    environ = {"LISTEN_PID": "41", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "nonce:arena-0"}
    assert service_manager(environ, pid=42).descriptor_names == ()


def test_descriptors_without_names_are_refused() -> None:
    with pytest.raises(SettingError, match="LISTEN_FDS = '2'"):
        service_manager({"LISTEN_PID": "42", "LISTEN_FDS": "2"}, pid=42)


def test_the_shipped_file_names_every_setting_with_its_default() -> None:
    with SHIPPED.open("rb") as stream:
        shipped = tomllib.load(stream)
    defaults = {
        section: {name: spec.kind.shown(spec.default) for name, spec in specs(section).items()}
        for section in section_names()
    }
    assert shipped == defaults


def test_the_shipped_file_gives_the_default_settings() -> None:
    assert load_settings({}, {}, SHIPPED) == load_settings({}, {}, None)


@pytest.mark.parametrize("name", sorted(specs("sizing")))
def test_sizing_without_settings_uses_the_same_defaults(name: str) -> None:
    assert getattr(DEFAULT_SIZING, name) == specs("sizing")[name].default
