"""Title, unit and good direction of every metric that a run writes: what all tables read.

The one place to describe a new metric. It stands here and not in `metrics`, because the report is
made without torch.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Better = Literal["higher", "lower"]
Range = Literal["share", "nonnegative", "any"]


class Description(NamedTuple):
    """Title, direction and range of a metric."""

    title: str
    better: Better | None = None  # None where neither direction is good as such
    range: Range = "any"  # "share" is shown in percent


DESCRIPTIONS: dict[str, Description] = {
    "accuracy": Description("accuracy", "higher", "share"),
    "nll": Description("NLL", "lower", "nonnegative"),
    "brier": Description("Brier", "lower", "nonnegative"),
    "ece": Description("ECE", "lower", "share"),
    "aece": Description("AECE", "lower", "share"),
    "mce": Description("MCE", "lower", "share"),
    "classwise_ece": Description("classwise ECE", "lower", "share"),
    "classwise_ace": Description("classwise ACE", "lower", "share"),
    "nll_calibration": Description("NLL, calibration", "lower", "nonnegative"),
    "nll_refinement": Description("NLL, refinement", "lower", "nonnegative"),
    "brier_calibration": Description("Brier, calibration", "lower", "nonnegative"),
    "brier_refinement": Description("Brier, refinement", "lower", "nonnegative"),
    "overconfidence": Description("overconfidence", "lower", "share"),
    "underconfidence": Description("underconfidence", "lower", "share"),
    "average_confidence": Description("mean confidence", None, "share"),
    "relative_confidence": Description("relative confidence", "higher", "share"),
    # Of images without labels.
    "entropy": Description("entropy", None, "nonnegative"),
    "expected_accuracy": Description("expected accuracy", None, "share"),
    "aurc": Description("AURC", "lower", "share"),
    "augrc": Description("AUGRC", "lower", "share"),
    "accuracy_at_80": Description("accuracy at 80 % coverage", "higher", "share"),
    "true_calibration_error": Description("true calibration error", "lower", "share"),
    "true_ece": Description("true ECE", "lower", "share"),
    "temperature": Description("temperature", None, "nonnegative"),
    "order": Description("order of the norm", None, "nonnegative"),
    # Of corrupted and of changing images.
    "error": Description("error", "lower", "share"),
    "rmsce": Description("RMS calibration error", "lower", "share"),
    "consistency": Description("consistency", "higher", "share"),
    "consistency_to_previous": Description("consistency to the frame before", "higher", "share"),
    "flip_rate": Description("flip rate", "lower", "share"),
    "cec": Description("CEC", "lower", "nonnegative"),
    "cec_released": Description("CEC, as released", "lower", "nonnegative"),
    "mean_ce": Description("mCE", "lower", "nonnegative"),
    "mean_cnll": Description("mCNLL", "lower", "nonnegative"),
    "mean_cece": Description("mCECE", "lower", "nonnegative"),
    "success_rate": Description("success rate", "lower", "share"),
    # Of strange inputs.
    "auroc": Description("AUROC", "higher", "share"),
    "fpr95": Description("FPR at 95 % TPR", "lower", "share"),
    "aupr_in": Description("AUPR in", "higher", "share"),
    "aupr_out": Description("AUPR out", "higher", "share"),
    "shrinkage": Description("shrinkage of the covariance", None, "share"),
    # Of objects in images.
    "mean_objectness": Description("mean objectness", None, "share"),
    "mean_objectness_deviation": Description("objectness deviation", "lower", "share"),
    # Of maps.
    "iou": Description("IoU", "higher", "share"),
    "mean_iou": Description("mIoU", "higher", "share"),
    "foreground_ece": Description("ECE foreground", "lower", "share"),
    "foreground_aece": Description("AECE foreground", "lower", "share"),
    "label_consistency": Description("consistency of the labels", None, "share"),
    # Of detections.
    "d_ece": Description("D-ECE", "lower", "share"),
    "d_ece_by_place": Description("D-ECE by place and size", "lower", "share"),
    "ap": Description("AP", "higher", "share"),
    "ap50": Description("AP50", "higher", "share"),
    "ap75": Description("AP75", "higher", "share"),
    "ar": Description("AR", "higher", "share"),
    **{
        f"{key}_{size}": Description(f"{key.upper()} {size}", "higher", "share")
        for key in ("ap", "ar")
        for size in ("small", "medium", "large")
    },
}

# What stands at the top of `metrics.json` by itself: any other name there is that of a further
# test set, and no such set may have one of these.
OWN_SPLITS = (
    *("train", "validation", "test", "scaled", "normalised", "ensemble", "context", "objectness"),
    *("corrupted", "perturbed", "attacked", "frequency", "ood", "own", "seconds", "samples"),
    *("units", "scaled_by_ece", "relative_to_baseline", "reliability", "cells", "by_class"),
    "skipped_images",
)

# Where a metric means something else than elsewhere: without its object an image can't be known,
# and a right answer was read off the background.
IN_SPLIT = {
    ("context", "accuracy"): Description("accuracy without object", "lower", "share"),
    ("context", "average_confidence"): Description("confidence without object", "lower", "share"),
    ("context", "overconfidence"): Description("overconfidence without object", "lower", "share"),
    ("context", "underconfidence"): Description(
        "underconfidence without object", "higher", "share"
    ),
}


def describe_metric(key: str) -> Description:
    """The description of a metric; `ece_100`, a known one with a setting, is known as well.

    A metric that is not in the table has no direction: a wrong verdict is worse than none.

    Example:
        >>> describe_metric("ece_100")
        Description(title='ECE 100', better='lower', range='share')
        >>> describe_metric("my_error")
        Description(title='my error', better=None, range='any')
    """
    if key in DESCRIPTIONS:
        return DESCRIPTIONS[key]
    name, _, setting = key.rpartition("_")
    if setting.isdigit() and name in DESCRIPTIONS:
        known = DESCRIPTIONS[name]
        return known._replace(title=f"{known.title} {setting}")
    return Description(key.replace("_", " "))
