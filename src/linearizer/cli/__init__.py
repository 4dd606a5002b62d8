"""The command line: parse, call, print. One file for each kind of command, which adds them.

Heavy parts (torch) are imported inside the commands: help and completion answer at once.
"""

# isort: off
from .base import app, main, run

from . import training as training  # in the order of the help
from . import algebra as algebra
from . import flows as flows
from . import projectors as projectors
from . import readouts as readouts
from . import styles as styles
from . import forecasts as forecasts
from . import dynamics as dynamics
from . import data as data
from . import paper as paper
from . import studio as studio

# isort: on

__all__ = ["app", "main", "run"]
