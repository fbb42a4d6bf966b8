"""Draw docs/figures/which-method.svg: from a situation to the method to try first.

Run: python docs/figures/which_method.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, HEIGHT = 960, 560
STYLE = """
svg{--paper:#fff;--ink:#20242c;--soft:#5b6472;--line:#8a93a3;--ask:#eef1f6;--use:#f7e6dd;
--accent:#b4532a}
@media (prefers-color-scheme:dark){svg{--paper:#1b1e25;--ink:#e8eaee;--soft:#a9b1bf;--line:#6b7383;
--ask:#262b35;--use:#43291d;--accent:#f0a27d}}
text{font-family:system-ui,sans-serif;fill:var(--ink);font-size:14px}
.title{font-size:16px;font-weight:600}.answer{fill:var(--soft);font-size:13px}
.name{font-weight:600;fill:var(--accent)}.paper{fill:var(--paper)}
.ask{fill:var(--ask);stroke:var(--line)}.use{fill:var(--use);stroke:var(--accent)}
.way{stroke:var(--line);stroke-width:1.5;fill:none}.head{fill:var(--line)}
"""
# Questions from top to bottom: question, answer that leads down, answer that leads to the right,
# what to use there, and a line about it.
QUESTIONS = (
    (
        "Only predictions at hand?",
        "no",
        "yes",
        "sfumato audit, then calibrate",
        "no network needed",
    ),
    (
        "Is the network calibrated?",
        "no, or unknown",
        "yes (ECE near the expected value)",
        "nothing: keep cross entropy",
        "sfumato.evaluate tells",
    ),
    (
        "Validation images to spare?",
        "no",
        "yes",
        "temperature scaling",
        "trains nothing, keeps the predicted classes",
    ),
    (
        "Strongly overconfident?",
        "no",
        "yes (few images, many epochs)",
        "ACLS or online label smoothing",
        "where it is not, they overcorrect",
    ),
)
WISHES = (
    ("accuracy with few images", "spatial smoothing", "one pass, no parameters"),
    ("noise, blur, weather", "mollification", "costs clean accuracy"),
    ("rank its own mistakes", "CRL, spatial smoothing", "lower AURC"),
    ("video", "temporal smoothing", "steadier; small objects suffer"),
)


def words(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="{kind}"/>'


def right(x: float, y: float, to: float) -> str:
    head = f'<path class="head" d="M{to - 9} {y - 5}L{to} {y}L{to - 9} {y + 5}Z"/>'
    return f'<path class="way" d="M{x} {y}H{to - 8}"/>{head}'


def down(x: float, y: float, to: float) -> str:
    head = f'<path class="head" d="M{x - 5} {to - 9}L{x} {to}L{x + 5} {to - 9}Z"/>'
    return f'<path class="way" d="M{x} {y}V{to - 8}"/>{head}'


def question(place: int) -> str:
    ask, below, beside, use, why = QUESTIONS[place]
    top = 56 + 84 * place
    parts = [box(30, top, 230, 44, "ask"), words(46, top + 27, ask)]
    parts += [right(260, top + 22, 560), words(274, top + 15, beside, "answer")]
    parts += [box(560, top - 4, 370, 52, "use"), words(576, top + 18, use, "name")]
    parts += [words(576, top + 38, why, "answer")]
    parts += [down(145, top + 44, top + 84), words(155, top + 68, below, "answer")]
    return "".join(parts)


def wish(place: int) -> str:
    want, use, why = WISHES[place]
    left = 30 + 229 * place
    parts = [box(left, 436, 213, 88, "use"), words(left + 14, 460, want, "answer")]
    parts += [words(left + 14, 484, use, "name"), words(left + 14, 508, why, "answer")]
    return "".join(parts)


def drawing() -> str:
    title = "Which method for me?"
    body = [words(30, 34, title, "title"), *map(question, range(len(QUESTIONS)))]
    body += [words(30, 418, "What else do you want? Train with:", "title")]
    body += [*map(wish, range(len(WISHES)))]
    note = "Try on your own data: sfumato new my-study --data photos, then sfumato run."
    body.append(words(30, 548, note, "answer"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{title}</title><style>{STYLE}</style>"
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="10"/>{"".join(body)}</svg>\n'
    )


if __name__ == "__main__":
    Path(__file__).with_name("which-method.svg").write_text(drawing(), encoding="utf-8")
