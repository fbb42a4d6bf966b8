"""Where samples come from: scenes (built in), arrays, folders, texts, torchvision sets."""

from sfumato.augment import Augment, BatchAugment, RandomWindow, ResizedCrop, Sample
from sfumato.data import scenes
from sfumato.data.annotations import (
    AnnotatedImage,
    Annotations,
    annotated_set,
    load_annotated,
    read_coco,
    read_openimages,
    read_voc,
)
from sfumato.data.arrays import load_npz, read_npz
from sfumato.data.balance import median_frequency_weights
from sfumato.data.camvid import load_camvid
from sfumato.data.coco import load_coco, read_coco_detection
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.detection import DetectionDataset, DetectionLoader, DetectionSplits, Objects
from sfumato.data.folders import load_folder
from sfumato.data.load import SOURCES, load_data
from sfumato.data.load_detection import DETECTION_SOURCES, load_detection_data
from sfumato.data.loader import TensorLoader
from sfumato.data.objects import context_only, single_objects, with_context
from sfumato.data.split import divide, stratified_order
from sfumato.data.statistics import channel_statistics
from sfumato.data.text.folders import load_text_folder
from sfumato.data.text.newsgroups import load_newsgroups
from sfumato.data.text.table import load_table
from sfumato.data.text.vocabulary import Vocabulary
from sfumato.data.tiny_imagenet import load_tiny_imagenet
from sfumato.data.torchvision_sets import load_torchvision
from sfumato.data.voc import load_voc_segmentation

__all__ = [
    "DETECTION_SOURCES",
    "SOURCES",
    "AnnotatedImage",
    "Annotations",
    "ArrayDataset",
    "Augment",
    "BatchAugment",
    "DataSplits",
    "DetectionDataset",
    "DetectionLoader",
    "DetectionSplits",
    "Objects",
    "RandomWindow",
    "ResizedCrop",
    "Sample",
    "TensorLoader",
    "Vocabulary",
    "annotated_set",
    "channel_statistics",
    "context_only",
    "divide",
    "load_annotated",
    "load_camvid",
    "load_coco",
    "load_data",
    "load_detection_data",
    "load_folder",
    "load_newsgroups",
    "load_npz",
    "load_table",
    "load_text_folder",
    "load_tiny_imagenet",
    "load_torchvision",
    "load_voc_segmentation",
    "median_frequency_weights",
    "read_coco",
    "read_coco_detection",
    "read_npz",
    "read_openimages",
    "read_voc",
    "scenes",
    "single_objects",
    "stratified_order",
    "with_context",
]
