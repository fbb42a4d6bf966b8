"""Boxes from the files of other data sets: VOC / ImageNet XML, COCO JSON, OpenImages CSV."""

from sfumato.data.annotations.coco import read_coco
from sfumato.data.annotations.load import annotated_set, load_annotated
from sfumato.data.annotations.objects import AnnotatedImage, Annotations
from sfumato.data.annotations.openimages import read_openimages
from sfumato.data.annotations.voc import read_voc

__all__ = [
    "AnnotatedImage",
    "Annotations",
    "annotated_set",
    "load_annotated",
    "read_coco",
    "read_openimages",
    "read_voc",
]
