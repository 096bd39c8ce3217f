"""Small charts as SVG text. Steps run from left to right; what is drawn is the data as it is, nothing smoothed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 320, 120
LEFT, RIGHT, TOP, BOTTOM = 44, 6, 8, 18
COLORS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#0891b2", "#ca8a04", "#dc2626", "#64748b")


def line_chart(points: Sequence[tuple[int, float]]) -> str:
    """A curve through (step, value) points, with the ends of both axes written out; a dot where there is one point."""
    if not points:
        return _svg("")
    steps, values = zip(*points, strict=True)
    low, high = min(values), max(values)
    marks = [(_x(step, steps), _y(value, low, high)) for step, value in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in marks)
    curve = f'<polyline points="{path}" fill="none" stroke="var(--line)" stroke-width="1.5"/>'
    dot = f'<circle cx="{marks[-1][0]:.1f}" cy="{marks[-1][1]:.1f}" r="2.5" fill="var(--line)"/>'
    return _svg(curve + dot + _axes(steps, low, high))


def stacked_chart(steps: Sequence[int], series: Mapping[str, Sequence[float]]) -> tuple[str, str]:
    """A bar for each step, made of the values of all series; returns the chart and its key as HTML."""
    totals = [sum(values) for values in zip(*series.values(), strict=True)]
    high = max(totals, default=0.0) or 1.0
    width = max(1.0, (WIDTH * 2 - LEFT - RIGHT) / len(steps))
    bars = []
    base = [0.0] * len(steps)
    colors = [COLORS[i % len(COLORS)] for i in range(len(series))]
    for color, values in zip(colors, series.values(), strict=True):
        for i, value in enumerate(values):
            top, bottom = (_y(v, 0.0, high) for v in (base[i] + value, base[i]))
            bars.append(
                f'<rect x="{LEFT + i * width:.1f}" y="{top:.1f}" width="{width * 0.9:.1f}" height="{bottom - top:.1f}" '
                f'fill="{color}"/>'
            )
            base[i] += value
    key = "".join(f'<span style="background:{c}"></span>{name}' for c, name in zip(colors, series, strict=True))
    return _svg("".join(bars) + _axes(steps, 0.0, high, WIDTH * 2), WIDTH * 2), key


def short(value: float) -> str:
    """Three digits: 0.0123, 12.3, 4.09k, 1.2M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def _x(step: int, steps: Sequence[int]) -> float:
    span = steps[-1] - steps[0]
    return LEFT + (WIDTH - LEFT - RIGHT) * ((step - steps[0]) / span if span else 0.5)


def _y(value: float, low: float, high: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * ((high - value) / (high - low) if high > low else 0.5)


def _axes(steps: Sequence[int], low: float, high: float, width: int = WIDTH) -> str:
    floor = HEIGHT - BOTTOM
    labels = [(LEFT - 4, TOP + 8, "end", short(high)), (LEFT, HEIGHT - 4, "start", f"{steps[0]}")]
    labels.append((width - RIGHT, HEIGHT - 4, "end", f"{steps[-1]}"))
    if high > low:
        labels.append((LEFT - 4, floor, "end", short(low)))
    rule = f'<path d="M{LEFT} {TOP}V{floor}H{width - RIGHT}" fill="none" stroke="var(--rule)"/>'
    return rule + "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in labels
    )


def _svg(content: str, width: int = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {HEIGHT}" role="img">{content}</svg>'
