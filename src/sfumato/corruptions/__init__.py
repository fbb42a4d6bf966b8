"""What the world does to images: noise, blur, weather and digital damage, by severity."""

from sfumato.corruptions.attacks import AttackScores, attack_scores, fgsm, pgd
from sfumato.corruptions.catalogue import (
    CATEGORIES,
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    corrupt,
)
from sfumato.corruptions.context import ContextScores, context_scores, remove_objects
from sfumato.corruptions.figures import (
    corruption_boxes,
    corruption_heatmap,
    corruption_sheet,
    frequency_curve,
    severity_curve,
)
from sfumato.corruptions.frequency import accuracy_by_frequency, frequency_mask, frequency_noise
from sfumato.corruptions.reading import read_corrupted, stored_corruptions
from sfumato.corruptions.sequences import (
    HARDER_PERTURBATIONS,
    PERTURBATIONS,
    frame_count,
    is_ordered,
    perturb,
)
from sfumato.corruptions.writing import corruption_generator, write_corrupted
from sfumato.metrics.consistency import (
    consistency,
    cross_entropy_consistency,
    flip_rate,
    relative_confidence,
)
from sfumato.metrics.corruption_ratio import alexnet_scores, corruption_ratio

__all__ = [
    "CATEGORIES",
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "HARDER_PERTURBATIONS",
    "PERTURBATIONS",
    "SEVERITIES",
    "AttackScores",
    "ContextScores",
    "accuracy_by_frequency",
    "alexnet_scores",
    "attack_scores",
    "consistency",
    "context_scores",
    "corrupt",
    "corruption_boxes",
    "corruption_generator",
    "corruption_heatmap",
    "corruption_ratio",
    "corruption_sheet",
    "cross_entropy_consistency",
    "fgsm",
    "flip_rate",
    "frame_count",
    "frequency_curve",
    "frequency_mask",
    "frequency_noise",
    "is_ordered",
    "perturb",
    "pgd",
    "read_corrupted",
    "relative_confidence",
    "remove_objects",
    "severity_curve",
    "stored_corruptions",
    "write_corrupted",
]
