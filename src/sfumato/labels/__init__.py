"""Smoothing the targets: soft labels, and losses whose gradient acts like one."""

from types import ModuleType as _ModuleType

from sfumato.labels.acls import ACLSLoss as ACLSLoss, acls_loss as acls_loss
from sfumato.labels.acls_regulariser import acls_penalty as acls_penalty
from sfumato.labels.adafocal import (
    AdaFocalLoss as AdaFocalLoss,
    adafocal_loss as adafocal_loss,
)
from sfumato.labels.bsce import BSCELoss as BSCELoss, bsce_loss as bsce_loss
from sfumato.labels.cals import (
    CALSLoss as CALSLoss,
    cals_loss as cals_loss,
    cals_penalty as cals_penalty,
)
from sfumato.labels.cape import (
    BinAccuracy as BinAccuracy,
    CaPELoss as CaPELoss,
    cape_loss as cape_loss,
    cape_penalty as cape_penalty,
)
from sfumato.labels.combine import (
    CombinedLoss as CombinedLoss,
    LossParts as LossParts,
    combined_loss as combined_loss,
)
from sfumato.labels.conditional_confidence import (
    conditional_confidence_penalty as conditional_confidence_penalty,
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
    crl_loss as crl_loss,
    ranking_penalty as ranking_penalty,
)
from sfumato.labels.cross_entropy import (
    CrossEntropyLoss as CrossEntropyLoss,
    cross_entropy_loss as cross_entropy_loss,
)
from sfumato.labels.dual_focal import (
    DualFocalLoss as DualFocalLoss,
    dual_focal_loss as dual_focal_loss,
)
from sfumato.labels.ecp import (
    ECPLoss as ECPLoss,
    ecp_loss as ecp_loss,
    entropy_penalty as entropy_penalty,
)
from sfumato.labels.focal import (
    FLSDLoss as FLSDLoss,
    FocalLoss as FocalLoss,
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
from sfumato.labels.maxsup import (
    MaxSupLoss as MaxSupLoss,
    maxsup_loss as maxsup_loss,
    maxsup_penalty as maxsup_penalty,
)
from sfumato.labels.mbls import (
    MbLSLoss as MbLSLoss,
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

# Each import above says `as` with the same name, which makes it public to type checkers too: a new
# loss is one line here.
__all__ = sorted(
    name
    for name, value in globals().items()
    if not name.startswith("_") and not isinstance(value, _ModuleType)
)
