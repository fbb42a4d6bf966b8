"""Draw docs/figures/house.svg: the rooms of the package, who may import whom, the way of a sample.

Run: python docs/figures/house.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, HEIGHT = 960, 620
INK, PAPER, LINE = "#20242c", "#ffffff", "#8a93a3"
FLOORS = {
    "top": "#f3e8d2",
    "engine": "#dfe9f5",
    "world": "#e6efe0",
    "leaf": "#f7dfd9",
    "ground": "#e9e6ef",
}

# name: (x, y, width, floor, what it holds)
ROOMS: dict[str, tuple[int, int, int, str, str]] = {
    "cli": (40, 60, 200, "top", "the commands"),
    "study": (260, 60, 280, "top", "study file to runs"),
    "report": (560, 60, 360, "top", "result files to tables and pages"),
    "engine": (40, 164, 880, "engine", "trains, predicts, measures, keeps runs on disk"),
    "data": (40, 270, 200, "world", "where samples come from"),
    "models": (260, 270, 280, "world", "networks, features inside"),
    "analysis": (560, 270, 360, "world", "why it works"),
    "augment": (40, 380, 112, "leaf", "moves, mixes"),
    "inputs": (168, 380, 112, "leaf", "mollifies"),
    "features": (296, 380, 112, "leaf", "smooths maps"),
    "labels": (424, 380, 112, "leaf", "losses"),
    "predictions": (552, 380, 116, "leaf", "averages"),
    "corruptions": (684, 380, 116, "leaf", "damages"),
    "metrics": (816, 380, 104, "leaf", "measures"),
    "ops": (40, 490, 430, "ground", "the passes over memory, and their C"),
    "_core": (490, 490, 430, "ground", "checks, files, seeds, names with parameters"),
}
ROOM_HEIGHT = 72
# The way of one sample, in order.
WAY = ("data", "augment", "inputs", "models", "labels", "predictions", "metrics", "study", "report")


def room(name: str) -> str:
    x, y, width, floor, holds = ROOMS[name]
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{ROOM_HEIGHT}" rx="6" '
        f'fill="{FLOORS[floor]}" stroke="{LINE}"/>',
        f'<text x="{x + 12}" y="{y + 30}" class="name">{escape(name)}</text>',
        f'<text x="{x + 12}" y="{y + 54}" class="holds">{escape(holds)}</text>',
    ]
    if name in WAY:
        step = WAY.index(name) + 1
        parts += [
            f'<circle cx="{x + width - 8}" cy="{y}" r="11" fill="{INK}"/>',
            f'<text x="{x + width - 8}" y="{y + 4}" class="step">{step}</text>',
        ]
    return "".join(parts)


def arrow(y: int) -> str:
    """From a floor down to the next: the upper one imports the lower one."""
    x = WIDTH // 2
    return (
        f'<line x1="{x}" y1="{y + 2}" x2="{x}" y2="{y + 24}" stroke="{INK}" stroke-width="2"/>'
        f'<path d="M {x - 6} {y + 22} L {x + 6} {y + 22} L {x} {y + 33} Z" fill="{INK}"/>'
    )


def picture() -> str:
    style = (
        "text{font-family:system-ui,sans-serif;fill:" + INK + "}"
        ".name{font-size:16px;font-weight:600}.holds{font-size:13px}"
        ".step{font-size:12px;fill:#fff;text-anchor:middle}.note{font-size:14px}"
    )
    floors = (134, 232, 342, 452)
    body = [*map(arrow, floors), *map(room, ROOMS)]
    notes = (
        "A floor imports the floors below it, never one above; the seven leaves don't import each "
        "other.",
        "Numbers: the way of one sample. The engine leads it through the rooms; none is entered "
        "twice.",
    )
    body += [
        f'<text x="40" y="{588 + 20 * i}" class="note">{escape(note)}</text>'
        for i, note in enumerate(notes)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    title = "<title>The rooms of the package and the way of one sample through them</title>"
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>'
    heading = '<text x="40" y="36" class="name">The house</text>'
    return f"{head}{title}<style>{style}</style>{paper}{heading}{''.join(body)}</svg>\n"


if __name__ == "__main__":
    Path(__file__).with_name("house.svg").write_text(picture(), encoding="utf-8")
