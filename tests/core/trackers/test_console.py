import io
import os
import pty
import sys
from collections.abc import Callable

import pytest
from rich.console import Console
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import TrackerContext
from rlcore.plugins.loading import build
from rlcore.trackers.console import LineTracker, ProgressTracker, step_line

METRICS = {
    "reward/mean": 0.43,
    "response/tokens_mean": 21.08,
    "policy/entropy": 0.52,
    "speed/tokens_per_second": 4123.0,
    "policy/loss": 0.1,
}
Context = Callable[..., TrackerContext]


def test_the_line_of_a_step() -> None:
    assert step_line(12, 150, METRICS) == "step 12/150  reward 0.43  tokens/response 21.1  entropy 0.52  4.1k tok/s"
    assert step_line(0, 150, {"eval/accuracy": 0.382}) == "step 0/150  accuracy 0.38"
    assert step_line(1, 2, {"reward/mean": float("nan")}) == "step 1/2  reward nan"


def test_the_longest_usual_line_fits_80_columns() -> None:
    values = {"response/tokens_mean": 999.4, "reward/mean": 0.123, "policy/entropy": 0.52, "eval/accuracy": 0.456}
    told = "step 1500/1500  reward 0.12  tokens/response 999  4.1k tok/s  accuracy 0.46"  # no room for the entropy
    assert step_line(1500, 1500, METRICS | values) == told
    assert len(told) < 80


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (0.434, "0.43"),
        (-0.5, "-0.50"),
        (0.004321, "0.0043"),
        (9.994, "9.99"),
        (21.08, "21.1"),
        (999.4, "999"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert step_line(1, 2, {"reward/mean": value}) == f"step 1/2  reward {text}"


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_where_the_output_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, context: Context, terminal: bool
) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "dumb")
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    tracker = build(PluginRef("tracker", "console"), context())
    assert isinstance(tracker, LineTracker)
    tracker.phase("generate", 1, 2)
    tracker.log(12, METRICS)
    tracker.message("info", "hello [bold]" + "x" * 200)
    tracker.message("warning", "careful")
    tracker.close()
    assert stream.getvalue().splitlines() == [
        step_line(12, 150, METRICS),
        "hello [bold]" + "x" * 200,
        "warning: careful",
    ]


def test_a_long_phase_has_a_line_every_30_seconds(context: Context) -> None:
    stream, now = io.StringIO(), [0.0]
    tracker = LineTracker(context(), stream, clock=lambda: now[0])
    for seconds, name, done in (
        (0, "generate", 0),
        (29, "generate", 100),
        (31, "generate", 120),
        (60, "generate", 130),
        (61, "generate", 140),
        (90, "generate", 0),  # the next step's
        (100, "generate", 50),
        (119, "update", 1),
        (150, "update", 2),
    ):
        now[0] = float(seconds)
        tracker.phase(name, done, 512 if done else 0)
    assert stream.getvalue().splitlines() == ["… generate 120/512", "… generate 140/512", "… update 2/512"]


@pytest.fixture
def progress(context: Context) -> tuple[ProgressTracker, io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=24, color_system=None, legacy_windows=False)
    return ProgressTracker(context(step=11), console), stream


def screen(output: str) -> list[str]:
    """The lines that a terminal shows after this output: carriage returns, cursor up, erase line."""
    lines, row = [""], 0
    i = 0
    while i < len(output):
        if output[i] == "\x1b":
            end = i + 2
            while not output[end].isalpha():
                end += 1
            code, number = output[end], output[i + 2 : end]
            if code == "A":
                row -= int(number or 1)
            elif code == "K":
                lines[row] = ""
            i = end + 1
            continue
        if output[i] == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif output[i] != "\r":
            lines[row] += output[i]
        i += 1
    return [line.rstrip() for line in lines]


def test_progress_shows_step_phase_and_last_values_at_width_80(progress: tuple[ProgressTracker, io.StringIO]) -> None:
    tracker, stream = progress
    tracker.log(12, METRICS | {"eval/accuracy": 0.4})
    tracker.log(13, METRICS | {"reward/mean": 0.5})
    tracker.message("warning", "look [here]")
    tracker.phase("generate", 128, 512)
    tracker._live.refresh()
    message, bar, status = screen(stream.getvalue())[-3:]
    assert message == "warning: look [here]"
    assert bar.split()[:2] == ["step", "13/150"]
    assert len(bar) <= 80
    assert status == "generate 128/512      reward 0.50  4.1k tok/s  accuracy 0.40"
    assert tracker.state() == {"step": 13}
    tracker.close()
    assert screen(stream.getvalue())[-2].split()[0] == "done"


@pytest.mark.parametrize("end", ["stopped", "failed"])
def test_a_run_that_did_not_get_to_its_end_is_not_done(progress: tuple[ProgressTracker, io.StringIO], end: str) -> None:
    tracker, stream = progress
    tracker.phase(end)
    tracker.close()
    assert screen(stream.getvalue())[-2].split()[0] == end


def test_every_evaluation_stays_on_the_screen(progress: tuple[ProgressTracker, io.StringIO]) -> None:
    tracker, stream = progress
    tracker.log(12, {"eval/accuracy": 0.25})
    tracker.log(13, METRICS)
    tracker.log(14, {"eval/accuracy": 0.5})
    tracker.close()
    lines = [line for line in screen(stream.getvalue()) if "accuracy" in line and line.startswith("step")]
    assert lines == ["step 12/150  accuracy 0.25", "step 14/150  accuracy 0.50"]


def test_a_resumed_bar_starts_where_the_run_goes_on(progress: tuple[ProgressTracker, io.StringIO]) -> None:
    tracker, stream = progress
    tracker.close()
    assert any(line.split()[:2] == ["step", "11/150"] for line in screen(stream.getvalue()))


def test_a_real_terminal_gets_the_bar(monkeypatch: pytest.MonkeyPatch, context: Context) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("TERM", "xterm")
        tracker = build(PluginRef("tracker", "console"), context())
        tracker.close()
        terminal.flush()
        assert isinstance(tracker, ProgressTracker)
        shown = b""
        while b"/150" not in shown:  # a read gives what has arrived; without the bar this one waits for the timeout
            shown += os.read(master, 65536)
    os.close(master)
