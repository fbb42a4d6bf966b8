"""Writes tables.js: what the playground takes from the library.

The pictures are scenes of the built-in data, the options of the losses are those of the table of
parts. `python docs/playground/export.py` writes the file anew; a test says when that is due.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from sfumato.data import scenes
from sfumato.engine.config.components import COMPONENTS

PAGE = Path(__file__).parent
SIZE = 48
PICTURES = (0, 3, 22, 29)  # star, crescent, cross and ring, each large and alone


def single_entry_losses() -> dict[str, dict[str, Any]]:
    """The defaults of every loss whose value depends on one entry alone, by name."""
    return {
        part.name: {
            name: option.default
            for name, option in part.options.items()
            if isinstance(option.default, int | float) and name != "ignore_index"
        }
        for part in COMPONENTS
        if part.kind == "loss" and part.is_of_single_entries
    }


def drawn_losses() -> list[str]:
    """The names in LOSSES of the page."""
    return re.findall(r"^  (\w+): \[", (PAGE / "losses.js").read_text(encoding="utf-8"), re.M)


def pictures() -> list[dict[str, str]]:
    """Label and bytes, (height, width, 3), of each picture."""
    samples = scenes.generate(max(PICTURES) + 1, seed=5, size=SIZE, ambiguity=0.0, noise=0.0)
    return [
        {
            "label": samples.classes[int(samples.labels[place])],
            "bytes": base64.b64encode(
                samples.images[place].permute(1, 2, 0).contiguous().numpy().tobytes()
            ).decode(),
        }
        for place in PICTURES
    ]


def tables() -> str:
    defaults = single_entry_losses()
    content = {
        "classes": list(scenes.CLASSES),
        "size": SIZE,
        "options": {name: defaults[name] for name in drawn_losses()},
        "pictures": pictures(),
    }
    return f'"use strict";\n\nconst TABLES = {json.dumps(content, indent=1)};\n'


if __name__ == "__main__":
    (PAGE / "tables.js").write_text(tables(), encoding="utf-8")
