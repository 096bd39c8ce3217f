"""Tracker ``console``: progress on a terminal, and a line per step where the output is a file."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rlcore import PluginConfig, Tracker, TrackerContext, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console, RenderableType

    from rlcore.plugins.interfaces import Metrics

SHOWN = (
    ("reward/mean", "reward {}"),
    ("response/tokens_mean", "tokens/response {}"),
    ("policy/entropy", "entropy {}"),
    ("speed/tokens_per_second", "{} tok/s"),
    ("eval/accuracy", "accuracy {}"),
)
"""Metrics of a line, in order, with how they read."""

KEPT = ("reward/mean", "speed/tokens_per_second", "eval/accuracy")
"""Metrics that stay beside the progress bar until the next value comes."""

ENDS = ("stopped", "failed")
"""Phases that a run ends in, if not at its end."""

PHASE_SECONDS = 30.0
"""How long a phase goes on without a line, where lines are all there is."""

WIDTH = 79
"""Columns of a step's line."""


class Config(PluginConfig):
    """Show progress on the terminal; one line per step when the output goes to a file or a pipe."""


@hookimpl
def rlcore_tracker(config: Config, context: TrackerContext) -> Tracker:
    """A progress bar or lines, by what standard output is."""
    from rich.console import Console

    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return ProgressTracker(context, console)
    return LineTracker(context, sys.stdout)


class LineTracker(Tracker):
    """``step 12/150  reward 0.43  tokens/response 21.1  entropy 0.52  4.1k tok/s``, flushed line by line.

    A phase that takes long has a line every 30 seconds: ``… generate 120/512``.
    """

    def __init__(self, context: TrackerContext, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = context.total_steps
        self._stream = stream
        self._clock = clock
        self._phase = ""
        self._told = clock()

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """A line if the last one of this phase, or its start, is long ago."""
        now = self._clock()
        if name != self._phase or not total:  # a phase begins without numbers
            self._phase, self._told = name, now
        elif now - self._told >= PHASE_SECONDS:
            self._told = now
            self._write(f"… {name} {done}/{total}")

    def log(self, step: int, metrics: Metrics) -> None:
        """One line for the step."""
        self._write(step_line(step, self._total, metrics))

    def message(self, level: Literal["info", "warning"], text: str) -> None:
        """One line, however long."""
        self._write(text if level == "info" else f"warning: {text}")

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()


class ProgressTracker(Tracker):
    """A bar over the steps and, under it, the phase with its own progress and the last reward, speed and accuracy.

    Messages and anything else that is printed appear above.
    """

    def __init__(self, context: TrackerContext, console: Console) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Remaining

        self._console = console
        self._total = context.total_steps
        self._step = int(context.state.get("step", 0))
        self._phase = "starting"
        self._last: dict[str, float] = {}
        columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(None), TimeElapsedColumn())
        self._progress = Progress(*columns, TextColumn("left"), Remaining(), console=console, expand=True)
        self._task = self._progress.add_task("step", total=context.total_steps, completed=self._step)
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)
        self._live.start()

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """Show the phase, with how far it is where that is known."""
        self._phase = f"{name} {done}/{total}" if total else name

    def log(self, step: int, metrics: Metrics) -> None:
        """Move the bar to the step, and keep what is shown under it; an evaluation leaves a line above it."""
        if "eval/accuracy" in metrics:
            self.message("info", step_line(step, self._total, metrics))
        self._step = step
        self._last |= {name: metrics[name] for name in KEPT if name in metrics}
        self._progress.update(self._task, completed=step)

    def message(self, level: Literal["info", "warning"], text: str) -> None:
        """Print above the bar."""
        self._console.print(text if level == "info" else f"warning: {text}", markup=False, highlight=False)

    def state(self) -> Mapping[str, Any]:
        """The step that the bar of a resumed run starts at."""
        return {"step": self._step}

    def close(self) -> None:
        """Leave the last state of the bar on the screen."""
        if self._phase not in ENDS:
            self._phase = "done"
        self._live.stop()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        status = "  ".join([f"{self._phase:<20}", *_values(self._last)])
        return Group(self._progress.get_renderable(), Text(status, no_wrap=True, overflow="ellipsis"))


def step_line(step: int, total: int, metrics: Metrics) -> str:
    """The metrics of a step that a person wants to see first, on one line; without the entropy where it is too long."""
    line = "  ".join([f"step {step}/{total}", *_values(metrics)])
    if len(line) > WIDTH and "policy/entropy" in metrics:
        return step_line(step, total, {name: value for name, value in metrics.items() if name != "policy/entropy"})
    return line


def _values(metrics: Mapping[str, float]) -> list[str]:
    return [text.format(_short(metrics[name])) for name, text in SHOWN if name in metrics]


def _short(value: float) -> str:
    """Two or three digits: 0.43, 0.0043, 21.1, 512, 4.1k."""
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.1f}{unit}"
    if 0 < size < 0.01:
        return f"{value:.2g}"
    return f"{value:.{2 if size < 10 else 1 if size < 100 else 0}f}"
