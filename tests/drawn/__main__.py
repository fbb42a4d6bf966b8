"""Run: python -m tests.drawn [COUNT] [FIRST]

Draws COUNT studies (500), from number FIRST (0) on, and says what became of each kind; ends with 1
where `check` accepted one that failed, or refused one without saying why. Number N is always the
same study.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random

import torch

from tests.drawn.studies import draw_study, judge


def main(count: int, first: int) -> int:
    """How many broke the promise."""
    torch.set_num_threads(1)
    found, reasons = Counter[str](), Counter[str]()
    for number in range(first, first + count):
        content, began = draw_study(Random(number)), time.perf_counter()
        folder = Path(tempfile.mkdtemp())
        try:
            verdict = judge(content, folder)
            found[verdict.outcome] += 1
            reasons[verdict.reason[:100]] += 1
        except Exception as error:
            found["broken"] += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"BROKEN {number}: {said[:600]} ({Path(where.filename).name}:{where.lineno})")
            print("   ", json.dumps(content["recipe"]), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if (seconds := time.perf_counter() - began) > 20:
            print(f"slow {number}: {seconds:.0f} s {json.dumps(content['recipe'])}", flush=True)
    for reason, times in reasons.most_common():
        print(f"{times:5} {reason or chr(45)}")
    print(dict(found), f"of {count} from {first}")
    return found["broken"]


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:3]]
    sys.exit(1 if main(*(numbers + [500, 0][len(numbers) :])) else 0)
