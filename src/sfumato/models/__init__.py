"""Networks of the papers at CIFAR and ImageNet stems and for texts, others' by name."""

from sfumato.models.allconv import allconv
from sfumato.models.cifar_residual import resnext, wide_resnet
from sfumato.models.densenet import densenet
from sfumato.models.faster_rcnn import faster_rcnn
from sfumato.models.gpcn import GPCN, gpcn
from sfumato.models.heads import GlobalMedianPool2d, Head, classifier
from sfumato.models.network import StagedNetwork
from sfumato.models.onnx_models import OnnxModel
from sfumato.models.parts import SmoothOptions
from sfumato.models.resnet import resnet
from sfumato.models.text_transformer import TextTransformer, text_transformer
from sfumato.models.timm_models import timm_model
from sfumato.models.torchvision_models import torchvision_model
from sfumato.models.torchvision_segmentation import (
    PixelLogits,
    is_segmentation_model,
    torchvision_segmentation,
)
from sfumato.models.unet import UNet, unet
from sfumato.models.vgg import vgg
from sfumato.models.weights import fit_weights, read_weights

__all__ = [
    "GPCN",
    "GlobalMedianPool2d",
    "Head",
    "OnnxModel",
    "PixelLogits",
    "SmoothOptions",
    "StagedNetwork",
    "TextTransformer",
    "UNet",
    "allconv",
    "classifier",
    "densenet",
    "faster_rcnn",
    "fit_weights",
    "gpcn",
    "is_segmentation_model",
    "read_weights",
    "resnet",
    "resnext",
    "text_transformer",
    "timm_model",
    "torchvision_model",
    "torchvision_segmentation",
    "unet",
    "vgg",
    "wide_resnet",
]
