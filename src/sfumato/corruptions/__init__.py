"""Corruptions of images, by severity: noise, blur, weather and digital artefacts."""

from sfumato._core.exports import public_names as _public_names
from sfumato.corruptions.attacks import attack_scores as attack_scores, fgsm as fgsm, pgd as pgd
from sfumato.corruptions.catalogue import (
    CORRUPTIONS as CORRUPTIONS,
    EXTRA_CORRUPTIONS as EXTRA_CORRUPTIONS,
    SEVERITIES as SEVERITIES,
    corrupt as corrupt,
)
from sfumato.corruptions.figures import (
    corruption_boxes as corruption_boxes,
    corruption_heatmap as corruption_heatmap,
    corruption_sheet as corruption_sheet,
    frequency_curve as frequency_curve,
    severity_curve as severity_curve,
)
from sfumato.corruptions.frequency import (
    accuracy_by_frequency as accuracy_by_frequency,
    frequency_mask as frequency_mask,
    frequency_noise as frequency_noise,
)
from sfumato.corruptions.sequences import (
    HARDER_PERTURBATIONS as HARDER_PERTURBATIONS,
    PERTURBATIONS as PERTURBATIONS,
    is_ordered as is_ordered,
    perturb as perturb,
)
from sfumato.corruptions.storage import (
    corruption_generator as corruption_generator,
    read_corrupted as read_corrupted,
    write_corrupted as write_corrupted,
)

__all__ = _public_names(globals())
