"""A run in one HTML file: curves, where the time went, what was said, samples. No script, nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rlcore.errors import RunFolderError
from rlcore.run.charts import line_chart, stacked_chart
from rlcore.run.folder import ENVIRONMENT, MANIFEST, read_manifest
from rlcore.run.messages import MESSAGES_FILE, read_messages
from rlcore.run.metrics import METRICS_FILE, MetricsFile

FIRST = (
    "reward/mean",
    "eval/accuracy",
    "eval/reward/mean",
    "group/zero_spread_fraction",
    "response/tokens_mean",
    "response/truncated_fraction",
    "policy/entropy",
    "policy/kl_to_reference",
    "reward/kl_to_reference",
    "policy/grad_norm",
    "policy/clip_fraction",
    "speed/tokens_per_second",
)
"""Metrics whose curves come first, where the run has them; the others are folded away."""

SHOWN_SAMPLES = 4  # of the best and of the worst

_STYLE = """
:root { color-scheme: light dark; --line: #2563eb; --rule: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
h2 { margin-top: 2em; } small { opacity: .7; } summary { cursor: pointer; margin: 1em 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(320px, 1fr)); gap: 1em; }
figure { margin: 0; padding: .6em; border: 1px solid var(--rule); border-radius: 6px; }
figcaption { font-size: 13px; } figcaption b { float: right; font-weight: 600; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 11px; fill: currentColor; }
.wide svg text { font-size: 7px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
pre { border: 1px solid var(--rule); border-radius: 6px; padding: .6em; }
.key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; border-radius: 2px; }
"""


def write_report(run: Path, out: Path) -> None:
    """Write the report of the run in this folder to the file ``out``. Raises RunFolderError where there is no run."""
    name = str(read_manifest(run).get("name", run.name))
    rows = MetricsFile(run / METRICS_FILE).read()
    if not rows:
        raise RunFolderError(f"{run} has no metrics in {METRICS_FILE}: it made no step, or has no tracker jsonl")
    body = "\n".join(
        [
            f"<h1>{escape(name)}</h1>",
            f"<p>{escape(_summary(rows))}<br><small>{escape(str(run))}</small></p>",
            *_curves(rows),
            *_timeline(rows),
            *_messages(run),
            *_samples(run),
            *_records(run),
        ]
    )
    head = f'<meta charset="utf-8"><title>{escape(name)}</title><style>{_STYLE}</style>'
    out.write_text(f"<!doctype html>\n<html><head>{head}</head><body>\n{body}\n</body></html>\n", encoding="utf-8")


def _summary(rows: Sequence[Mapping[str, Any]]) -> str:
    parts = [f"{rows[-1]['step']} steps"]
    for name, label in (("reward/mean", "reward"), ("eval/accuracy", "held-out accuracy")):
        seen = [row[name] for row in rows if row.get(name) is not None]
        if len(seen) > 1:
            parts.append(f"{label} {seen[0]:.3g} → {seen[-1]:.3g}")
    return " · ".join(parts)


def _curves(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name in row if name != "step" and not name.startswith("time/")))
    first = [name for name in FIRST if name in names]
    yield "<h2>Curves</h2>"
    yield f'<div class="charts">{"".join(_figure(name, rows) for name in first)}</div>'
    rest = "".join(_figure(name, rows) for name in sorted(set(names) - set(first)))
    yield f'<details><summary>All other metrics</summary><div class="charts">{rest}</div></details>'


def _figure(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    last = f"{points[-1][1]:.4g}" if points else "no value"
    return f"<figure><figcaption>{escape(name)} <b>{last}</b></figcaption>{line_chart(points)}</figure>"


def _timeline(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name.startswith("time/")]
    series = {name[5:].removesuffix("_seconds"): [row.get(name) or 0.0 for row in rows] for name in names}
    series.pop("step", None)
    if not series:
        return
    chart, key = stacked_chart([row["step"] for row in rows], series)
    yield "<h2>Where the time went</h2>"
    yield f'<figure class="wide"><figcaption>seconds a step <span class="key">{key}</span></figcaption>{chart}</figure>'


def _messages(run: Path) -> Iterator[str]:
    messages = read_messages(run / MESSAGES_FILE)
    if messages:
        yield "<h2>Messages</h2><ul>"
        yield from (f"<li><b>{escape(m['level'])}</b> {escape(m['text'])}</li>" for m in messages)
        yield "</ul>"


def _samples(run: Path) -> Iterator[str]:
    files = sorted((run / "rollouts").glob("step_*.parquet"))
    if not files:
        return
    columns = ["prompt", "response", "reward", "ground_truth", "finish"]
    rows = sorted(pq.read_table(files[-1], columns=columns).to_pylist(), key=lambda row: row["reward"])
    # One sample of a prompt is enough on either side.
    best = list({row["prompt"]: row for row in rows}.values())[-SHOWN_SAMPLES:][::-1]
    worst = list({row["prompt"]: row for row in reversed(rows)}.values())[-SHOWN_SAMPLES:][::-1]
    yield f"<h2>Samples of {escape(files[-1].stem)}</h2>"
    for label, chosen in (("Best", best), ("Worst", worst)):
        for row in chosen:
            yield (
                f"<p><b>{label}</b>: reward {row['reward']:.4g}, {escape(row['finish'])}, "
                f"ground truth {escape(str(row['ground_truth']))}</p>"
                f"<pre>{escape(row['prompt'])}</pre><pre>{escape(row['response'])}</pre>"
            )


def _records(run: Path) -> Iterator[str]:
    yield "<h2>What ran</h2>"
    for file in (MANIFEST, ENVIRONMENT):
        path = run / file
        text = path.read_text(encoding="utf-8") if path.is_file() else "missing"
        if path.suffix == ".json" and path.is_file():
            text = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
        yield f"<details><summary>{escape(file)}</summary><pre>{escape(text)}</pre></details>"
