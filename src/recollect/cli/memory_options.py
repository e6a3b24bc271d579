"""``--memory MEM --fusion F --mode both``: any command that embeds can embed with what is found in a memory (RECO)."""

from dataclasses import dataclass, replace

from recollect.cli.unread import refuse_unread
from recollect.core.errors import UserError
from recollect.core.files import beside
from recollect.core.places import public_place
from recollect.core.progress import output
from recollect.core.types import Encoder, Source
from recollect.evaluation.features import FeatureCache, image_features
from recollect.evaluation.results import Result
from recollect.memory.fusion.block import FusionModule, FusionSettings
from recollect.memory.fusion.encoder import Mode, RetrievalEnhancedEncoder
from recollect.memory.opening import open_model_of
from recollect.memory.store import Memory

MEAN = "mean"
"""Name of the fusion that is not learned."""


@dataclass(frozen=True)
class MemoryOptions:
    """A memory that embeddings read (RECO)."""

    memory: str | None = None
    """Embed with what is found in this memory: a folder, or milvus://host:port/collection."""
    fusion: str | None = None
    """With --memory: the OUT/model of `recollect train reco`, or `mean`, the plain mean with what was found."""
    mode: Mode | None = None
    """Which embeddings read the memory: image, text, or both; by default all that the fusion refines."""
    k: int | None = None
    """Rows that each embedding reads; by default as many as the fusion was trained with, 10 for `mean`."""
    read_where: str | None = None
    """Read only rows that satisfy a filter, e.g. "source = 'emoji' and domain != 'noto'"."""
    searcher: str | None = None
    """Where the model that embedded the memory is now, for a fusion of `recollect train ra-clip`; by default where it
    was then."""
    near: float | None = None
    """Leave out rows whose image has at least this cosine with a tested image; 0.94 in RECO."""

    @property
    def asked(self) -> bool:
        """Whether a memory is to be read."""
        return self.memory is not None or self.fusion is not None

    def check(self) -> None:
        """Refuse half of what is needed.

        Raises:
            UserError: naming the option.
        """
        if self.asked and (self.memory is None or self.fusion is None):
            there, other = ("--memory", "--fusion") if self.memory else ("--fusion", "--memory")
            raise UserError(f"{there} needs {other}: name both, the memory and what `recollect train reco` made of it.")
        if not self.asked:
            why = "says how a memory is read. Name one with --memory."
            refuse_unread(self, "mode", "k", "read_where", "searcher", "near", why=why)
        if self.near is not None and not 0 < self.near <= 1:
            raise UserError(f"--near {self.near}: a cosine lies above 0 and at most at 1")

    @property
    def model(self) -> str:
        """What the memory says that it was embedded by; empty where none is read, or another model finds in it."""
        if self.memory is None or self.searcher is not None:
            return ""
        memory = Memory.open(self.memory)
        return beside(memory.model_name, memory.address)

    def apply(
        self, encoder: Encoder, tested: Source | None = None, cache: FeatureCache | None = None
    ) -> "Encoder | RetrievalEnhancedEncoder":
        """The encoder itself, or one that reads the memory.

        Args:
            encoder: the frozen model.
            tested: images whose near-duplicates in the memory are left out, where that is asked; how many, is printed.
            cache: of the model's own embeddings.

        Raises:
            UserError: a part cannot be opened, or the parts do not belong together.
        """
        self.check()
        if self.memory is None or self.fusion is None:
            return encoder
        memory = Memory.open(self.memory)
        if self.fusion == MEAN:
            fusion = FusionModule(FusionSettings(encoder.width, "mean"))
        else:
            fusion = FusionModule.open(self.fusion)
        mode, searcher = self.mode or fusion.settings.modalities, self._searcher(memory, fusion)
        k = fusion.trained.get("k", 10) if self.k is None else self.k
        enhanced = RetrievalEnhancedEncoder(encoder, memory, fusion, mode, k, self.read_where, searcher=searcher)
        if self.near is None or tested is None:
            return enhanced
        near = memory.near_duplicates(image_features(searcher or encoder, tested, cache).images, self.near)
        output().print(
            f"{tested.name}: {len(near):,} of {len(memory):,} rows of {memory.address} are near-duplicates of tested "
            f"images (cosine {self.near:g} or more) and are left out",
            highlight=False,
            soft_wrap=True,
        )
        if len(near) > len(memory) - k:
            raise UserError(
                f"{memory.address}: {len(memory) - len(near):,} rows are left without near-duplicates, fewer than k = "
                f"{k}. Ask for a smaller --k or a higher --near."
            )
        return RetrievalEnhancedEncoder(
            encoder, memory, fusion, mode, k, self.read_where, exclude_ids=near, searcher=searcher
        )

    def _searcher(self, memory: Memory, fusion: FusionModule) -> Encoder | None:
        """The model that finds, where that is not the one whose embeddings are refined."""
        if fusion.settings.reads is None:
            if self.searcher is not None:
                raise UserError(f"--searcher {self.searcher}: {self.fusion} reads the memory of its own model.")
            return None
        return open_model_of(memory, self.searcher, option="--searcher")[0]

    def name(self, model: str, encoder: Encoder) -> str:
        """What to call a model in results: with the memory's version and the fusion's fingerprint, if it reads one."""
        if not isinstance(encoder, RetrievalEnhancedEncoder):
            return model
        read = encoder.description
        extra = (f", where {self.read_where}" if self.read_where else "") + (
            f", near {self.near:g}" if self.near else ""
        )
        fusion = f"{public_place(str(self.fusion))} {read['fusion'][:8]}"
        return f"{model} + {read['memory']} version {read['version']}, {fusion}, {read['mode']}, k={read['k']}{extra}"


def with_memory(result: Result, encoder: Encoder) -> Result:
    """The result, saying in its settings which memory was read and how."""
    if not isinstance(encoder, RetrievalEnhancedEncoder):
        return result
    return replace(result, settings={**result.settings, "reads": encoder.description})
