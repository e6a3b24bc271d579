"""What a model is tested on: classes to tell apart, and images and texts to find."""

from dataclasses import dataclass

from recollect.core.types import Source


@dataclass(frozen=True)
class ClassificationTask:
    """Images to classify, and examples to learn from.

    Attributes:
        name: appears in reports and file names.
        support: labelled examples to draw shots from.
        query: test images; never an argument of a ``fit``.
        class_names: readable names; labels of ``support`` and ``query`` index them.
        templates: prompt templates with ``{}`` for the class name.
        class_texts: explicit prompts of every class, in place of templates and names.
    """

    name: str
    support: Source
    query: Source
    class_names: tuple[str, ...]
    templates: tuple[str, ...]
    class_texts: tuple[tuple[str, ...], ...] | None = None
