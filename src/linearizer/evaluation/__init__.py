"""Tables of each application beside the paper's numbers, as one JSON file and a picture each."""

from .dynamics import dynamics
from .flow import flow
from .forecast import forecast, weather, weather_table
from .projector import projector
from .style import style

__all__ = ["dynamics", "flow", "forecast", "projector", "style", "weather", "weather_table"]
