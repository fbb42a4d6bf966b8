"""The built-in world: rendered scenes of ten classes, with everything known about them."""

from sfumato.data.scenes.picture import preview
from sfumato.data.scenes.render import CLASSES, CONTEXTS
from sfumato.data.scenes.sets import generate, generate_objects, load, load_objects
from sfumato.data.scenes.video import SceneStream, load_streams, stream

__all__ = [
    "CLASSES",
    "CONTEXTS",
    "SceneStream",
    "generate",
    "generate_objects",
    "load",
    "load_objects",
    "load_streams",
    "preview",
    "stream",
]
