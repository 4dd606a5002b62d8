"""Tables of each application beside the paper's numbers, as one JSON file and a picture each."""

from .attributes import attributes
from .disentanglement import disentanglement, disentanglement_of
from .dynamics import dynamics
from .flow import flow
from .forecast import forecast, weather, weather_table
from .projector import projector
from .style import style

__all__ = ["attributes", "disentanglement", "disentanglement_of", "dynamics", "flow", "forecast",
           "projector", "style", "weather", "weather_table"]  # fmt: skip
