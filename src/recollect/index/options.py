"""Options of adding a source to an index; cheap to import."""

from dataclasses import dataclass
from typing import Literal

from recollect.core.validation import check_number, refuse


@dataclass(frozen=True)
class IngestOptions:
    """How samples become rows.

    Attributes:
        captions: captions to keep per sample.
        template: template for a caption from the class of pictures without captions, e.g. "a photo of a {}."; None adds
            no caption.
        pictures: what to store of each picture: its bytes, its path, whichever the source has (source), or nothing.
        limit: maximum number of samples to read; pictures missing from the source are then not deleted. Required for
            infinite sources.
        near: skip new pictures with at least this cosine to a picture in the index (RECO uses 0.94).
        broken_share: maximum share of unreadable pictures before reading stops. A folder of photos may have many
            damaged files; if most are unreadable, a disk failed or the column is wrong.
        engine: embed in this process, or on Ray: the cluster at RAY_ADDRESS, or this machine if not set (default:
            local).
        early: commit every few seconds at first, so pictures can be searched during a long ingest.

    Raises:
        UserError: a value is out of range, or the template has no {} for the class name.
    """

    captions: Literal["all", "first"] = "all"
    template: str | None = None
    pictures: Literal["source", "bytes", "path", "none"] = "source"
    limit: int | None = None
    near: float | None = None
    broken_share: float = 0.5
    engine: Literal["local", "ray"] = "local"
    early: bool = False

    def __post_init__(self) -> None:
        unfilled = self.template is not None and "{}" not in self.template
        refuse((unfilled, f"--template {self.template}: needs {{}} for the class name"))
        if self.near is not None:
            check_number("--near", self.near, least=-1, most=1)
        if self.limit is not None:
            check_number("--limit", self.limit, least=1)
        check_number("--broken-share", self.broken_share, least=0, most=1)
