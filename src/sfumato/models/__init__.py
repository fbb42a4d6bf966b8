"""Networks of the papers at CIFAR and ImageNet stems and for texts, others' by name."""

from sfumato._core.exports import public_names as _public_names
from sfumato.models.faster_rcnn import faster_rcnn as faster_rcnn
from sfumato.models.layers import SmoothOptions as SmoothOptions, classifier as classifier
from sfumato.models.libraries import (
    timm_model as timm_model,
    torchvision_model as torchvision_model,
    torchvision_segmentation as torchvision_segmentation,
)
from sfumato.models.onnx_models import OnnxModel as OnnxModel
from sfumato.models.resnet import (
    densenet as densenet,
    resnet as resnet,
    resnext as resnext,
    wide_resnet as wide_resnet,
)
from sfumato.models.text import gpcn as gpcn, text_transformer as text_transformer
from sfumato.models.unet import unet as unet
from sfumato.models.vgg import allconv as allconv, vgg as vgg
from sfumato.models.weights import (
    HeadFeatures as HeadFeatures,
    fit_weights as fit_weights,
    read_weights as read_weights,
)

__all__ = _public_names(globals())
