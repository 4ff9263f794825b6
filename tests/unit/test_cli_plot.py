"""Pictures in files: both formats, what they show, and clear words where none can be drawn."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvd.cli import map as map_command
from kvd.cli import plot
from kvd.cli.main import cli
from kvd.cli.query import DaemonStatistics, GroupStatistics, StageStatistics, Statistics
from kvd.errors import FileError, SettingError
from tests.unit.test_cli_picture import MIXED

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def document(*stages: StageStatistics) -> Statistics:
    return Statistics(
        schema="kvd.stats/1",
        daemon=DaemonStatistics(pid=1, uptime_s=1.0, epoch=1, build="0"),
        groups=(GroupStatistics(name="g", tp=1, pp=1, incarnation=1, state="", stages=stages),),
    )


def run_map(monkeypatch: pytest.MonkeyPatch, found: Statistics, *arguments: str) -> tuple[int, str]:
    """Run ``kvd map`` against a daemon that says these statistics."""

    def fetch(_path: Path) -> bytes:
        return b""

    def read(_document: bytes) -> Statistics:
        return found

    monkeypatch.setattr(map_command, "fetch_statistics", fetch)
    monkeypatch.setattr(map_command, "read_statistics", read)
    done = CliRunner().invoke(cli, ["map", *arguments])
    return done.exit_code, done.output


def test_map_writes_both_formats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    png, svg = tmp_path / "arena.png", tmp_path / "arena.svg"

    code, output = run_map(monkeypatch, document(MIXED), "--png", str(png), "--svg", str(svg))

    assert (code, output) == (0, f"wrote {png} and {svg}\n")
    assert png.read_bytes().startswith(PNG_MAGIC)
    assert "<svg" in svg.read_text()


def test_map_prints_its_document_beside_the_picture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "named-as-one-likes"

    code, output = run_map(monkeypatch, document(MIXED), "--png", str(path), "--json")

    assert code == 0
    assert json.loads(output)["schema"] == "kvd.map/1"
    assert path.read_bytes().startswith(PNG_MAGIC)


def test_map_draws_nothing_without_an_arena(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "arena.png"

    code, output = run_map(monkeypatch, document(), "--png", str(path))

    assert code != 0
    assert "no group is attached" in output
    assert not path.exists()


def test_a_missing_library_is_named_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def find_nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(plot, "find_spec", find_nothing)

    code, output = run_map(monkeypatch, document(MIXED), "--svg", str(tmp_path / "arena.svg"))

    assert code != 0
    assert "matplotlib" in output
    assert "extra 'plot'" in output


def test_the_same_arena_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"

    for path in (first, second):
        plot.save_figure(plot.draw_arenas([("g", MIXED)]), path)

    assert first.read_bytes() == second.read_bytes()


def test_the_legend_counts_every_use(tmp_path: Path) -> None:
    axes = plot.draw_arenas([("group g, stage 0", MIXED)]).axes[0]

    words = " ".join(text.get_text() for text in axes.get_legend().get_texts())

    assert axes.get_title("left") == "group g, stage 0"
    assert "window_128: 10 live, 6 holes, 3 promised, 4 pending, 0 fixed" in words
    assert all(word in words for word in ("fixed", "pending", "promised", "hole", "sink", "free"))


@pytest.mark.parametrize("stage_count", [1, 3])
def test_nothing_of_the_legend_is_cut_off(tmp_path: Path, stage_count: int) -> None:
    image = pytest.importorskip("matplotlib.image")
    path = tmp_path / "arena.png"

    plot.save_figure(plot.draw_arenas([("g", MIXED)] * stage_count), path)

    # The legend has a frame: where it is cut off, its sides reach the edge of the picture.
    pixels = image.imread(path)
    assert (pixels[0] == 1).all()
    assert (pixels[-1] == 1).all()


def test_a_bar_is_drawn_for_every_stretch() -> None:
    axes = plot.draw_arenas([("g", MIXED)]).axes[0]

    assert len(axes.collections) == 10
    assert axes.get_xlim() == (0, MIXED.arena_bytes / (1 << 20))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "arena.png"

    with pytest.raises(FileError, match="nowhere"):
        plot.save_figure(plot.draw_arenas([("g", MIXED)]), path)


def test_a_picture_of_another_format_is_refused() -> None:
    with pytest.raises(SettingError, match=r"\.png or \.svg"):
        plot.check_plot_path(Path("plot.pdf"))
