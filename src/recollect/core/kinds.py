"""Names that options and heavy modules share; importing them costs nothing."""

from typing import Literal

Kind = Literal["caption", "label"]
"""What a text is: a free caption, or the wording of a class label."""

Sampling = Literal["proportional", "equal", "debiased"]
"""How a batch is divided over the sources: by their weights; half captions, half labels; or whole from one source."""

Precision = Literal["float32", "tf32", "bfloat16", "float16"]
"""Arithmetic of the towers."""
