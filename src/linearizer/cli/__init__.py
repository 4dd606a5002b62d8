"""The command line: parse, call, print. General commands are here, an application has its own.

Heavy parts (torch) are imported inside the commands: help and completion answer at once.
"""

# isort: off
from importlib import import_module

from .base import app, main, run
from ..apps.registry import BUILT_IN

from . import train as train  # in the order of the help
from . import evaluate as evaluate
from . import algebra as algebra

for room in dict.fromkeys("readout" if n in ("attributes", "distill") else n for n in BUILT_IN):
    commands = import_module(f"linearizer.apps.{room}.cli").commands
    app.registered_commands += commands.registered_commands
    app.registered_groups += commands.registered_groups

from . import data as data  # noqa: E402
from . import studio as studio  # noqa: E402
from . import quickstart as quickstart  # noqa: E402

# isort: on

__all__ = ["app", "main", "run"]
