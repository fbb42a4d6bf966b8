"""Augmentation of training images before they are smoothed: geometry, policies, mixing, recipes.

Nothing here has randomness of its own. What is drawn for a sample is a row of uniform numbers,
handed in, which `sfumato.data.TensorLoader` derives from (seed, epoch, sample); what is drawn for
a batch, which is mixing alone, comes from a generator, handed in too.
"""

from sfumato._core.exports import public_names as _public_names
from sfumato.augment.geometry import (
    Augment as Augment,
    ResizedCrop as ResizedCrop,
    remove_objects as remove_objects,
)
from sfumato.augment.mixing import (
    Mixing as Mixing,
    cutmix as cutmix,
    mixup as mixup,
    ricap as ricap,
)
from sfumato.augment.policies import (
    AugMix as AugMix,
    AutoAugment as AutoAugment,
    ColourJitter as ColourJitter,
    RandAugment as RandAugment,
    TrivialAugment as TrivialAugment,
)
from sfumato.augment.protocol import BatchAugment as BatchAugment, Sample as Sample
from sfumato.augment.recipes import (
    RECIPES as RECIPES,
    LabelledAugment as LabelledAugment,
    ObjectnessLabels as ObjectnessLabels,
    Recipe as Recipe,
    label_samples as label_samples,
    repeat_samples as repeat_samples,
    split_copies as split_copies,
)

__all__ = _public_names(globals())
