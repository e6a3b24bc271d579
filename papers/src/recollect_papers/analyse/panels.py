"""The maps of prefix conditioning (Fig. 4, 7, 8, 9), each with what can be measured of it in the space itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from recollect.core.types import Encoder, Kind, Source
from recollect.evaluation.features import image_features
from recollect_papers.analyse.language import (
    PREFIX_NAMES,
    UNCONDITIONAL,
    own_prefixes,
    reading_name,
    scatter,
    told_apart,
)
from recollect_papers.analyse.maps import Cloud

Plane = Callable[[np.ndarray], np.ndarray]
"""From embeddings (n, width) to the plane (n, 2)."""

Measured = dict[str, float | str]

APART = "same set as nearest (%)"

_MOST_NAMES = 8


@dataclass(frozen=True)
class Panel:
    """A map and its figures."""

    cloud: Cloud
    measured: Measured


def classes_panel(
    model: Encoder, prompts: Sequence[Sequence[str]], prefix: Kind | None, plane: Plane, names: Sequence[str] = ()
) -> Panel:
    """Prompts of classes read with one prefix, a colour a class (Fig. 4b to 4d, 7).

    Args:
        prompts: of each class.
        names: of the classes, for a legend where they are few.
    """
    owner = np.repeat(np.arange(len(prompts)), [len(texts) for texts in prompts])
    embedded = model.embed_texts([text for texts in prompts for text in texts], prefix).numpy()
    found, title = scatter(embedded, owner), reading_name(model, prefix)
    measured: Measured = {"read with": title, "within": found.within, "between": found.between,
                          "between / within": found.ratio}  # fmt: skip
    shown = tuple(names) if len(names) <= _MOST_NAMES else ()
    return Panel(Cloud(title, plane(embedded), owner, shown), measured)


def prefixes_panel(model: Encoder, texts: Sequence[str], prefixes: Sequence[Kind | None], plane: Plane) -> Panel:
    """The same texts read with each prefix, a colour a prefix (Fig. 4a)."""
    embedded = {PREFIX_NAMES[prefix]: model.embed_texts(texts, prefix).numpy() for prefix in prefixes}
    measured: Measured = {"sets": ", ".join(embedded)}
    for one, other in combinations(embedded, 2):
        key = APART if len(embedded) == 2 else f"{APART}, {one} and {other}"
        measured[key] = told_apart(embedded[one], embedded[other])
    groups = np.repeat(np.arange(len(prefixes)), len(texts))
    return Panel(
        Cloud("class prompts", plane(np.concatenate(list(embedded.values()))), groups, tuple(embedded)), measured
    )


def captions_panel(model: Encoder, prompts: Sequence[str], captions: Sequence[str], plane: Plane) -> Panel:
    """Class prompts and captions, each read with its own prefix where the model has prefixes (Fig. 9)."""
    own = own_prefixes(model)
    first = model.embed_texts(prompts, "label" if "label" in own else None).numpy()
    second = model.embed_texts(captions, "caption" if "caption" in own else None).numpy()
    title = "each with its prefix" if own else UNCONDITIONAL
    return _pair(title, first, second, ("class prompts", "captions"), plane)


def images_panel(model: Encoder, labelled: Source, captioned: Sequence[Source], plane: Plane) -> Panel:
    """Images of a label set and images with captions (Fig. 8)."""
    first = image_features(model, labelled).images
    second = np.concatenate([image_features(model, source).images for source in captioned])
    title = "trained with prefixes" if own_prefixes(model) else "trained without prefixes"
    return _pair(title, first, second, ("images of classes", "images with captions"), plane)


def _pair(title: str, first: np.ndarray, second: np.ndarray, names: tuple[str, str], plane: Plane) -> Panel:
    groups = np.repeat([0, 1], [len(first), len(second)])
    cloud = Cloud(title, plane(np.concatenate([first, second])), groups, names)
    return Panel(cloud, {"sets": ", ".join(names), APART: told_apart(first, second)})
