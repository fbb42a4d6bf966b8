"""Compare procedures that find a threshold: how much they accept, how often they violate delta.

Ten classes with true posteriors softmax(z), z ~ N(0, 2.02^2), and a model that reports
softmax(2 z): overconfident. Ours, MAPIE's risk control, and the bisection of Geifman and El-Yaniv
(SGR, NIPS 2017, Algorithm 2) see the same draws; the true risk of a threshold is that of 10^6 more.

    python benchmarks/thresholds.py --draws 1000
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable

import numpy as np
from scipy.stats import beta

from sfumato.predictions import risk_threshold

DELTA = 0.1
SETTINGS = ((0.15, 800), (0.15, 3000), (0.1, 3000), (0.3, 800))


def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidence of the overconfident model, and the true chance that it is right, (N,) each."""
    logits = 2.02 * rng.standard_normal((count, 10))
    logits -= logits.max(1, keepdims=True)
    return 1 / np.exp(2 * logits).sum(1), 1 / np.exp(logits).sum(1)


def ours(confidence: np.ndarray, correct: np.ndarray, risk: float) -> float | None:
    return risk_threshold(confidence, correct, target_risk=risk, delta=DELTA).confidence


def without_guarantee(confidence: np.ndarray, correct: np.ndarray, risk: float) -> float | None:
    """Find the lowest threshold whose error was at most the target on these rows."""
    order = np.argsort(-confidence)
    errors = np.cumsum(~correct[order]) / np.arange(1, len(order) + 1)
    reached = np.nonzero(errors <= risk)[0]
    return float(confidence[order][reached[-1]]) if len(reached) else None


def bisection(confidence: np.ndarray, correct: np.ndarray, risk: float) -> float | None:
    """SGR: ceil(log2 n) steps of bisection over the sorted confidences, delta shared by them."""
    ordered = np.sort(confidence)
    low, high, found = 0, len(ordered) - 1, None
    steps = math.ceil(math.log2(len(ordered)))
    for _ in range(steps):
        middle = math.ceil((low + high) / 2)
        kept = confidence >= ordered[middle]
        errors, accepted = (kept & ~correct).sum(), kept.sum()
        if errors < accepted and beta.ppf(1 - DELTA / steps, errors + 1, accepted - errors) <= risk:
            high, found = middle, float(ordered[middle])
        else:
            low = middle
    return found


def mapie_control(procedure: str) -> Callable[[np.ndarray, np.ndarray, float], float | None]:
    def find(confidence: np.ndarray, correct: np.ndarray, risk: float) -> float | None:
        from mapie.risk_control import BinaryClassificationController

        controller = BinaryClassificationController(
            lambda rows: np.stack([1 - rows[:, 0], rows[:, 0]], 1),
            risk="precision",
            target_level=1 - risk,
            confidence_level=1 - DELTA,
            fwer_method=procedure,
        )
        rows, right = confidence[:, None], correct.astype(int)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where no threshold is found
            if procedure == "split_fixed_sequence":
                learnt = len(rows) // 5
                controller.learn_fixed_sequence_order(rows[:learnt], right[:learnt])
                rows, right = rows[learnt:], right[learnt:]
            controller.calibrate(rows, right)
        best = controller.best_predict_param
        return None if best is None else float(best)

    return find


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, float], float | None]] = {
    "Sfumato": ours,
    "MAPIE, Bonferroni-Holm": mapie_control("bonferroni_holm"),
    "MAPIE, fixed sequence": mapie_control("fixed_sequence"),
    "MAPIE, split fixed sequence": mapie_control("split_fixed_sequence"),
    "Geifman and El-Yaniv": bisection,
    "no guarantee": without_guarantee,
}


def measure(draws: int, settings: tuple[tuple[float, int], ...] = SETTINGS) -> list[list[str]]:
    """Share of draws with a threshold, mean coverage and violations, a row a method."""
    confidence, chance = draw(np.random.default_rng(0), 1_000_000)
    order = np.argsort(-confidence)
    sure, wrong = confidence[order], np.cumsum(1 - chance[order]) / np.arange(1, len(order) + 1)
    rows = []
    for name, method in METHODS.items():
        cells = []
        for risk, count in settings:
            found = np.zeros((draws, 3))
            for number in range(draws):
                rng = np.random.default_rng((number, count))
                seen, right = draw(rng, count)
                threshold = method(seen, rng.random(count) < right, risk)
                kept = 0 if threshold is None else int(np.searchsorted(-sure, -threshold, "right"))
                found[number] = (kept > 0, kept / len(sure), kept > 0 and wrong[kept - 1] > risk)
            cells.append("{:.2f} {:.3f} {:.3f}".format(*found.mean(0)))
        rows.append([name, *cells])
    return rows


def main() -> None:
    """Print the table: found, coverage, violations for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    for row in measure(parser.parse_args().draws):
        print(" | ".join(row), flush=True)


if __name__ == "__main__":
    main()
