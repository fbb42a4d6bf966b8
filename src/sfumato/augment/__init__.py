"""What happens to training images before they are smoothed: geometry, policies, mixing, recipes.

Nothing here has randomness of its own. What is drawn for a sample is a row of uniform numbers,
handed in, which `sfumato.data.TensorLoader` derives from (seed, epoch, sample); what is drawn for
a batch, which is mixing alone, comes from a generator, handed in too.
"""

from sfumato.augment.colour import ColourJitter
from sfumato.augment.copies import CopiedSamples, repeat_samples, split_copies
from sfumato.augment.flip_crop import Augment
from sfumato.augment.mixing import Mixing, cutmix, mixup, ricap
from sfumato.augment.policies import (
    AugMix,
    AutoAugment,
    PixelPolicy,
    RandAugment,
    TrivialAugment,
)
from sfumato.augment.protocol import BatchAugment, Sample
from sfumato.augment.recipes import RECIPES, Geometry, Recipe
from sfumato.augment.resized_crop import ResizedCrop
from sfumato.augment.soft_labels import LabelledAugment, ObjectnessLabels, label_samples
from sfumato.augment.window import RandomWindow

__all__ = [
    "RECIPES",
    "AugMix",
    "Augment",
    "AutoAugment",
    "BatchAugment",
    "ColourJitter",
    "CopiedSamples",
    "Geometry",
    "LabelledAugment",
    "Mixing",
    "ObjectnessLabels",
    "PixelPolicy",
    "RandAugment",
    "RandomWindow",
    "Recipe",
    "ResizedCrop",
    "Sample",
    "TrivialAugment",
    "cutmix",
    "label_samples",
    "mixup",
    "repeat_samples",
    "ricap",
    "split_copies",
]
