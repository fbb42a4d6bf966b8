"""Smoothing the targets: soft labels, and losses whose gradient acts like one."""

from sfumato.labels.acls import ACLSLoss, acls_loss, acls_penalty
from sfumato.labels.cape import BinAccuracy, CaPELoss, cape_loss, cape_penalty
from sfumato.labels.combine import CombinedLoss, LossParts, combined_loss
from sfumato.labels.correctness import CorrectnessHistory
from sfumato.labels.cpc import CPCLoss, cpc_loss, discrimination_penalty, exclusion_penalty
from sfumato.labels.crl import CRLLoss, crl_loss, ranking_penalty
from sfumato.labels.cross_entropy import CrossEntropyLoss, cross_entropy_loss
from sfumato.labels.ecp import ECPLoss, ecp_loss, entropy_penalty
from sfumato.labels.focal import FLSDLoss, FocalLoss, flsd_loss, focal_loss
from sfumato.labels.likelihood import (
    NormalisedCrossEntropyLoss,
    bias_corrected_log_likelihood,
    geometric_log_likelihood,
    jensen_log_likelihood,
    log_normaliser,
    monte_carlo_log_likelihood,
    normalised_cross_entropy_loss,
)
from sfumato.labels.mbls import MbLSLoss, margin_penalty, mbls_loss
from sfumato.labels.mdca import MDCALoss, mdca_loss, mdca_penalty
from sfumato.labels.mmce import MMCELoss, mmce_loss, mmce_penalty
from sfumato.labels.objectness import (
    ObjectnessLabel,
    box_objectness,
    mask_objectness,
    window_objectness,
)
from sfumato.labels.targets import objectness_labels, smooth_labels, temper_labels

__all__ = [
    "ACLSLoss",
    "BinAccuracy",
    "CPCLoss",
    "CRLLoss",
    "CaPELoss",
    "CombinedLoss",
    "CorrectnessHistory",
    "CrossEntropyLoss",
    "ECPLoss",
    "FLSDLoss",
    "FocalLoss",
    "LossParts",
    "MDCALoss",
    "MMCELoss",
    "MbLSLoss",
    "NormalisedCrossEntropyLoss",
    "ObjectnessLabel",
    "acls_loss",
    "acls_penalty",
    "bias_corrected_log_likelihood",
    "box_objectness",
    "cape_loss",
    "cape_penalty",
    "combined_loss",
    "cpc_loss",
    "crl_loss",
    "cross_entropy_loss",
    "discrimination_penalty",
    "ecp_loss",
    "entropy_penalty",
    "exclusion_penalty",
    "flsd_loss",
    "focal_loss",
    "geometric_log_likelihood",
    "jensen_log_likelihood",
    "log_normaliser",
    "margin_penalty",
    "mask_objectness",
    "mbls_loss",
    "mdca_loss",
    "mdca_penalty",
    "mmce_loss",
    "mmce_penalty",
    "monte_carlo_log_likelihood",
    "normalised_cross_entropy_loss",
    "objectness_labels",
    "ranking_penalty",
    "smooth_labels",
    "temper_labels",
    "window_objectness",
]
