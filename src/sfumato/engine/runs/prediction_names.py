"""Which array or column of a stranger's file holds what, by the names that people use.

A name decides what its values mean; values decide only whether they are valid. So `predictions`
are probabilities, checked row by row, unless the reader is told that they are logits. The one
exception is a single probability beside the predicted class (`prediction_meaning`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["probs", "logits"]

LABELS = (
    *("labels", "label", "target", "targets", "ground_truth", "true_label", "true_labels"),
    *("y_true", "true_class", "true_classes", "ground_truths", "gt", "y"),
)
LOGITS = ("logits", "logit")
PROBS = (
    *("probs", "prob", "probabilities", "probability", "proba", "y_prob", "y_proba", "softmax"),
    *("pred_probs", "predicted_probs", "p"),
)
UNNAMED = ("predictions", "preds", "outputs", "output", "scores", "y_score", "y_pred", "array")
CONFIDENCE = ("confidence", "confidences", "conf", "score", "max_prob", "top_prob")
PREDICTED = (
    *("predicted", "prediction", "pred_label", "pred_labels", "predicted_label", "pred_class"),
    *("predicted_labels", "predicted_class", "pred", "y_pred", "predictions", "preds"),
)
CORRECT = ("correct", "is_correct", "matched", "hit")
GROUPS = ("group", "groups")
TIMES = ("time", "timestamp", "times", "date", "datetime")
CLASSES = ("classes", "class_names", "class_name")
INDEX = ("index",)
BOXES = ("box", "boxes")
IMAGES = ("image", "image_id", "image_ids", "img_id")
_SCORES_OR_CLASSES = frozenset(UNNAMED) & frozenset(PREDICTED)
_SECOND_CLASS = ("1", "true")
_BY_CLASS: dict[str, tuple[str, ...]] = {
    "logits": ("logit_", "logits_"),
    "probs": ("prob_", "probs_", "probability_", "proba_", "p_"),
}


@dataclass
class Roles:
    """Names of a file by what they hold; None and empty where there is none."""

    labels: str | None = None
    scores: list[str] = field(default_factory=list)  # one name, or a column for each class
    kind: Kind | None = None  # of the scores; None where their name doesn't say it
    both: bool = False  # logits and probabilities
    classes: list[str] | None = None  # named by the columns
    confidence: str | None = None
    predicted: str | None = None
    correct: str | None = None
    groups: str | None = None
    times: str | None = None
    index: str | None = None
    boxes: str | None = None
    images: str | None = None
    class_names: str | None = None
    beside: str | None = None  # predicted classes, of which the one score of a row may speak


def roles_of(names: Iterable[str], flat: Iterable[str] = (), lists: Iterable[str] = ()) -> Roles:
    """What each name of a file stands for.

    Args:
        names: arrays or columns, in the order of the file.
        flat: those of them that can't be scores, because they hold one whole number a row.
        lists: those of them that hold several numbers a row.
    """
    names, lists = list(names), set(lists)
    known = {name.strip().lower(): name for name in reversed(names)}

    def first(candidates: Iterable[str]) -> str | None:
        return next((known[name] for name in candidates if name in known), None)

    found = Roles(
        labels=first(LABELS),
        confidence=first(CONFIDENCE),
        correct=first(CORRECT),
        groups=first(GROUPS),
        times=first(TIMES),
        index=first(INDEX),
        boxes=first(BOXES),
        images=first(IMAGES),
        class_names=first(CLASSES),
    )
    has_outcome = found.correct or (found.labels and first(PREDICTED))
    is_enough = bool(found.confidence and has_outcome)
    logits = _named(names, first, "logits", is_enough=is_enough)
    probs = _named(names, first, "probs", is_enough=is_enough)
    found.both = bool(logits[0] and probs[0])
    if logits[0]:
        found.kind, (found.scores, found.classes) = "logits", logits
    elif probs[0]:
        found.kind, (found.scores, found.classes) = "probs", probs
    else:
        no_scores = {name.strip().lower() for name in flat}
        if found.confidence:  # beside which the predicted class is what is missing
            no_scores |= {each for each in _SCORES_OR_CLASSES if known.get(each) not in lists}
        found.scores, found.classes = _unnamed(names, first, no_scores)
    found.predicted = first(name for name in PREDICTED if known.get(name) not in found.scores)
    if is_enough and found.labels is None:  # scores without labels tell less
        found.scores, found.classes, found.kind = [], None, None
    if len(found.scores) == 1 and found.scores[0] not in lists:
        is_any_class = found.scores[0].strip().lower() in (*PROBS, *UNNAMED)
        found.beside = found.predicted if is_any_class else None
    return found


def _named(
    names: list[str], first: Callable[[Iterable[str]], str | None], kind: Kind, *, is_enough: bool
) -> tuple[list[str], list[str] | None]:
    """One array or column under a usual name, or a column for each class, with the classes.

    A single column `prob_<class>` is that of the second of two classes, if it is called so; where
    confidences are enough it is none, since `p_value` begins like one.
    """
    one = first(LOGITS if kind == "logits" else PROBS)
    if one is not None:
        return [one], None
    found: list[tuple[list[str], list[str]]] = []
    for prefix in _BY_CLASS[kind]:
        columns = [name for name in names if name.strip().lower().startswith(prefix)]
        found.append((columns, [name.strip()[len(prefix) :].strip() for name in columns]))
    columns, classes = max(found, key=lambda each: min(len(each[0]), 2))
    if len(columns) == 1 and is_enough:
        return [], None
    if len(columns) == 1 and kind == "probs" and classes[0].lower() in _SECOND_CLASS:
        return columns, None
    return columns, classes or None


def _unnamed(
    names: list[str], first: Callable[[Iterable[str]], str | None], no_scores: set[str]
) -> tuple[list[str], list[str] | None]:
    """Columns called 0, 1, 2 ..., or an array whose name doesn't say what it holds."""
    numbered = sorted((name for name in names if re.fullmatch(r"\s*\d+\s*", name)), key=int)
    if len(numbered) > 1 and [int(name) for name in numbered] == list(range(len(numbered))):
        return numbered, [name.strip() for name in numbered]
    one = first(name for name in UNNAMED if name not in no_scores)
    return ([] if one is None else [one]), None
