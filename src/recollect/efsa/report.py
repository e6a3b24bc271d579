"""What went wrong in the episodes of a search."""

from dataclasses import dataclass


@dataclass
class EpisodeReport:
    """How often something went wrong.

    Attributes:
        not_finite: episodes that broke down; these queries have the zero-shot ranking.
        without_captions: queries with fewer than two captioned pictures, and so without an episode.
        captions_missing: candidates without a caption, which their episodes left out.
        images_gone: candidates whose picture cannot be opened; they keep their zero-shot places.
    """

    not_finite: int = 0
    without_captions: int = 0
    captions_missing: int = 0
    images_gone: int = 0
