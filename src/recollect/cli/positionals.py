"""What commands are given by place, written once, so that the usage of each says what it wants."""

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

ModelPlace = Annotated[Positional[str], tyro.conf.arg(metavar="MODEL")]
MaybeModelPlace = Annotated[Positional[str | None], tyro.conf.arg(metavar="[MODEL]")]
ModelPlaces = Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="MODEL [MODEL ...]")]
SourcePlace = Annotated[Positional[str], tyro.conf.arg(metavar="SOURCE")]
MemoryPlace = Annotated[Positional[str], tyro.conf.arg(metavar="MEMORY")]
FolderPlace = Annotated[Positional[Path], tyro.conf.arg(metavar="FOLDER")]
