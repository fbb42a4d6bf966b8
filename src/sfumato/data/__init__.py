"""Where samples come from: scenes (built in), arrays, folders, torchvision sets."""

from sfumato.data import scenes
from sfumato.data.arrays import load_npz, read_npz
from sfumato.data.augment import Augment, BatchAugment
from sfumato.data.balance import median_frequency_weights
from sfumato.data.camvid import load_camvid
from sfumato.data.dataset import ArrayDataset, DataSplits, Sample
from sfumato.data.folders import load_folder
from sfumato.data.load import SOURCES, load_data
from sfumato.data.loader import TensorLoader
from sfumato.data.split import divide, stratified_order
from sfumato.data.statistics import channel_statistics
from sfumato.data.tiny_imagenet import load_tiny_imagenet
from sfumato.data.torchvision_sets import load_torchvision
from sfumato.data.voc import load_voc_segmentation
from sfumato.data.window import RandomWindow

__all__ = [
    "SOURCES",
    "ArrayDataset",
    "Augment",
    "BatchAugment",
    "DataSplits",
    "RandomWindow",
    "Sample",
    "TensorLoader",
    "channel_statistics",
    "divide",
    "load_camvid",
    "load_data",
    "load_folder",
    "load_npz",
    "load_tiny_imagenet",
    "load_torchvision",
    "load_voc_segmentation",
    "median_frequency_weights",
    "read_npz",
    "scenes",
    "stratified_order",
]
