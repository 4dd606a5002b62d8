"""Tables of each application beside the paper's numbers, as one JSON file and a picture each."""

from .dynamics import dynamics
from .flow import flow
from .projector import projector

__all__ = ["dynamics", "flow", "projector"]
