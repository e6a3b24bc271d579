"""The demo: four papers on built-in data, in one page that is one file. `report.demo` makes it."""

from typing import Literal

DemoScale = Literal["smoke", "default"]

DURATION = "six minutes"
"""On two free cores, at the default scale; what every guide says."""
