"""Smoothing the targets: soft labels, and losses whose gradient acts like one.

Every loss and penalty returns a scalar, or for reduction "none" one value per entry (N, d1, ...),
0 where its label is `ignore_index`; float32 for half-precision logits. An empty or all-ignored
batch gives 0 with zero gradient. Bad logits, targets and parameters raise a TypeError or ValueError
that names the argument.
"""

from sfumato._core.exports import public_names as _public_names
from sfumato.labels.acls import (
    ACLSLoss as ACLSLoss,
    acls_loss as acls_loss,
    acls_penalty as acls_penalty,
)
from sfumato.labels.adafocal import (
    AdaFocalLoss as AdaFocalLoss,
    adafocal_loss as adafocal_loss,
)
from sfumato.labels.cape import (
    CaPELoss as CaPELoss,
    cape_loss as cape_loss,
    cape_penalty as cape_penalty,
)
from sfumato.labels.combine import (
    CombinedLoss as CombinedLoss,
    combined_loss as combined_loss,
)
from sfumato.labels.correctness import CorrectnessHistory as CorrectnessHistory
from sfumato.labels.cpc import (
    CPCLoss as CPCLoss,
    cpc_loss as cpc_loss,
    discrimination_penalty as discrimination_penalty,
    exclusion_penalty as exclusion_penalty,
)
from sfumato.labels.crl import (
    CRLLoss as CRLLoss,
    conditional_confidence_penalty as conditional_confidence_penalty,
    crl_loss as crl_loss,
    ranking_penalty as ranking_penalty,
)
from sfumato.labels.cross_entropy import (
    CrossEntropyLoss as CrossEntropyLoss,
    cross_entropy_loss as cross_entropy_loss,
)
from sfumato.labels.ecp import (
    ECPLoss as ECPLoss,
    ecp_loss as ecp_loss,
    entropy_penalty as entropy_penalty,
)
from sfumato.labels.focal import (
    BSCELoss as BSCELoss,
    DualFocalLoss as DualFocalLoss,
    FLSDLoss as FLSDLoss,
    FocalLoss as FocalLoss,
    bsce_loss as bsce_loss,
    dual_focal_loss as dual_focal_loss,
    flsd_loss as flsd_loss,
    focal_loss as focal_loss,
)
from sfumato.labels.likelihood import (
    NormalisedCrossEntropyLoss as NormalisedCrossEntropyLoss,
    bias_corrected_log_likelihood as bias_corrected_log_likelihood,
    geometric_log_likelihood as geometric_log_likelihood,
    jensen_log_likelihood as jensen_log_likelihood,
    log_normaliser as log_normaliser,
    monte_carlo_log_likelihood as monte_carlo_log_likelihood,
    normalised_cross_entropy_loss as normalised_cross_entropy_loss,
)
from sfumato.labels.linear_head import (
    LinearHeadLoss as LinearHeadLoss,
    linear_head_loss as linear_head_loss,
)
from sfumato.labels.maxsup import (
    MaxSupLoss as MaxSupLoss,
    maxsup_loss as maxsup_loss,
    maxsup_penalty as maxsup_penalty,
)
from sfumato.labels.mbls import (
    CALSLoss as CALSLoss,
    MbLSLoss as MbLSLoss,
    cals_loss as cals_loss,
    cals_penalty as cals_penalty,
    margin_penalty as margin_penalty,
    mbls_loss as mbls_loss,
)
from sfumato.labels.mdca import (
    MDCALoss as MDCALoss,
    mdca_loss as mdca_loss,
    mdca_penalty as mdca_penalty,
)
from sfumato.labels.mmce import (
    MMCELoss as MMCELoss,
    mmce_loss as mmce_loss,
    mmce_penalty as mmce_penalty,
)
from sfumato.labels.nacl import (
    NACLLoss as NACLLoss,
    nacl_loss as nacl_loss,
    neighbour_penalty as neighbour_penalty,
)
from sfumato.labels.objectness import (
    ObjectnessLabel as ObjectnessLabel,
    box_objectness as box_objectness,
    mask_objectness as mask_objectness,
    window_objectness as window_objectness,
)
from sfumato.labels.online_label_smoothing import (
    OnlineLabelSmoothingLoss as OnlineLabelSmoothingLoss,
    online_label_smoothing_loss as online_label_smoothing_loss,
)
from sfumato.labels.targets import (
    objectness_labels as objectness_labels,
    smooth_labels as smooth_labels,
    temper_labels as temper_labels,
)

__all__ = _public_names(globals())
