"""``recollect train reco``: teach a frozen model to read a memory."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from recollect.cli.parsing import parse_options
from recollect.cli.positionals import MaybeModelPlace
from recollect.cli.train import config_in, recipe_of_run
from recollect.cli.unread import refuse_unread, split_for
from recollect.core.errors import UserError
from recollect.core.files import check_writable
from recollect.core.given import is_given, option_of
from recollect.core.progress import output
from recollect.core.types import Source
from recollect.data.sources import open_source
from recollect.index import NEAR, Index
from recollect.models import load_model, loading
from recollect.reco.block import FusionKind, FusionSettings, Read, Start
from recollect.reco.crossfit import Fold, fold_of
from recollect.reco.learning import FUSION_PRESETS, FusionPreset, FusionRecipe, train_fusion
from recollect.reco.neighbours import ScoreOf, check_k
from recollect.reco.newness import STRENGTHS, Newness, NewnessKind
from recollect.reco.objective import TERMS, LossTerm, Mask
from recollect.reco.pairs import embed_pairs
from recollect.training.optimiser import Optimiser
from recollect.training.options import Data, Model, ObjectiveOptions, Recipe
from recollect.training.run_folder import check_free, differences

_OF_PRESET = ("start", "mask", "newness", "newness_strength", "newness_share", "score_of")


@dataclass(frozen=True)
class TrainReco:
    """Train the fusion that reads a memory, on top of a frozen model (RECO).

    The training pairs are embedded once and their neighbours are found once; training then reads embeddings, so that
    ten epochs take minutes. The fusion learns to read by --start, --mask and --newness; --preset paper trains as RECO
    is printed. OUT/model is the fusion, OUT/metrics.jsonl has a line for each logged step. A run that was stopped goes
    on with the same command and --resume.

    `recollect train reco --config OTHER/recipe.json` takes the options of another run.
    """

    memory: str
    """Its memory: a folder, or milvus://host:port/collection."""
    data: tuple[str, ...]
    """Training pairs: one or more sources. They may also be in the memory: no pair reads itself."""
    model: MaybeModelPlace = None
    """The frozen model, which embedded the memory: RUN/model, any folder of a CLIP-type checkpoint, or a hub id; by
    default where it was then."""
    out: Path = Path("runs/reco")
    """Folder of the run."""
    split: str | None = None
    """Split of the sources; the training split by default."""
    limit: int | None = None
    """Take at most so many pairs of each source."""
    preset: FusionPreset = "reading"
    """What --start, --mask, --newness and --score-of are where they are not given: what reads best on concepts held out
    for that choice, or the paper's own."""
    start: Start | None = None
    """What the block corrects: the embedding (the paper), the mean of it and of what it reads, or a mixture of both
    whose weight is learned (gate); by default as the preset says: gate, paper: embedding."""
    mask: Mask | None = None
    """Pairs of a batch that are no negatives of each other: of equal caption, of one id with several captions, both, or
    none; by default as the preset says: caption, paper: none."""
    newness: NewnessKind | None = None
    """Make training pairs look new to the model: random offsets for each caption and modality, or a random rotation of
    each modality in each step; by default as the preset says: offsets, paper: none."""
    newness_strength: float | None = None
    """Length of an offset (2 by default), where an embedding's is 1; or the largest rotation (1 by default)."""
    newness_share: float = 0.5
    """Share of the captions that have an offset in a step."""
    crossfit: tuple[str, ...] = ()
    """Cross-fitting: N further models, trained as MODEL was but on data with ?without=0/N, ?without=1/N and so on. Each
    pair is then trained on as the model embeds it that has not seen it, among all pairs by that model."""
    k: int = 10
    """Rows that each embedding reads."""
    max_score: float = NEAR
    """Pass over rows that are at least this near to the training pair, as near-duplicates."""
    score_of: ScoreOf | None = None
    """Whose cosine --max-score is: that of the two images for both searches, so that a text reads rows of its own
    caption as it does at test; or that of the vectors that are searched; by default as the preset says: image, paper:
    searched."""
    kind: FusionKind = "transformer"
    """The paper's block, or an MLP of the same size that reads no memory."""
    search: Literal["uni", "cross"] = "uni"
    """Find by the vectors of the query's own modality, or of the other (Table 3)."""
    read: Read = "cross"
    """Read the other modality of what was found, or the query's own (Table 3); or both, two tokens a row (RA-CLIP)."""
    modalities: Literal["both", "image", "text"] = "both"
    """Which embeddings are refined (Table 4)."""
    terms: tuple[LossTerm, ...] = TERMS
    """Terms of the loss: both refined, only the image, only the text (Eq. 2)."""
    epochs: int = 10
    """Over the training pairs."""
    batch_size: int = 4096
    """Of all processes together."""
    chunk: int | None = None
    """Pairs fused at a time; all by default."""
    optimiser: Optimiser = field(default_factory=lambda: FusionRecipe().optimiser)
    """AdamW and its schedule."""
    scale: float | None = None
    """Inverse temperature at the start; the model's own by default."""
    seed: int = 0
    """Of everything random."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    resume: bool = False
    """Go on from the last checkpoint of --out."""
    device: str | None = None
    """Where to compute; the best there is by default."""

    @classmethod
    def parse(cls, words: list[str], prog: str) -> "TrainReco":
        """Read the command line; ``--config`` names a file that sets the defaults of all other options.

        Raises:
            UserError: no recipe of such a run.
        """
        given = config_in(words)
        if given is None:
            return parse_options(cls, words, prog)
        file, rest = given
        recipe = recipe_of_run(file, FusionRecipe, "train reco")
        begun = cls._of(recipe, file)
        if any(option_of(word) == "preset" for word in rest):
            begun = replace(begun, **{name: getattr(cls, name) for name in _OF_PRESET})
        command = parse_options(cls, rest, prog, default=begun)
        if command.newness != begun.newness and not is_given("newness_strength"):
            command = replace(command, newness_strength=None)  # the other run's is a measure of something else
        return command

    @classmethod
    def _of(cls, recipe: FusionRecipe, file: Path) -> "TrainReco":
        """The options that ask for a recipe."""
        fusion, newness = recipe.fusion, recipe.newness
        same = ("memory", "terms", "k", "max_score", "score_of", "mask", "limit", "epochs", "crossfit", "optimiser",
                "batch_size", "chunk", "seed", "log_every", "checkpoint_every")  # fmt: skip
        command = cls(
            model=recipe.model.start,
            data=recipe.data.sources,
            split=recipe.data.split,
            scale=recipe.objective.scale,
            newness=newness.kind,
            newness_strength=newness.strength,
            newness_share=newness.share,
            **{name: getattr(recipe, name) for name in same},
            **{name: getattr(fusion, name) for name in ("kind", "search", "read", "modalities", "start")},
        )
        objective = replace(recipe.objective, base="softmax")  # it has no other
        asked = replace(recipe, steps=Recipe.steps, fusion=replace(fusion, width=1), objective=objective)
        if unsaid := next(iter(differences(command.recipe(), asked)), None):
            raise UserError(f"{file}: {unsaid} is no option of `recollect train reco`. Was the run made from Python?")
        return command

    def run(self) -> None:
        """Embed, look up, train."""
        self._refuse_unread()
        recipe = self.recipe()
        replace(recipe, fusion=replace(recipe.fusion, width=1), steps=1).check()
        check_writable(self.out, "--out")
        check_free(self.out, self.resume)
        index = Index.open(self.memory)  # what is wrong with it should show before anything is embedded
        check_k(index, self.k)
        encoder, name = index.open_model(self.model, self.device, option="MODEL")
        recipe = replace(recipe, model=Model(start=name))
        sources = tuple(open_source(spec, split=self._split(spec)) for spec in self.data)
        if self.limit is None and any(source.endless for source in sources):
            raise UserError("a built-in stream has no end. Say how many pairs to take with --limit N.")
        pairs = embed_pairs(encoder, sources, self.limit, recipe.data.broken_share)
        folds = self._folds(sources, recipe.data.broken_share)
        model = train_fusion(recipe, encoder, pairs, self.out, folds=folds, resume=self.resume, device=self.device)
        output().print(f"fusion: {model}\nmetrics: {self.out / 'metrics.jsonl'}", highlight=False, soft_wrap=True)

    def _refuse_unread(self) -> None:
        """Refuse options that say nothing beside the others, and models that are not there."""
        for spec in self.data:
            self._split(spec)
        if self.kind == "mlp":
            why = "is of what reads a memory, and --kind mlp reads none."
            refuse_unread(self, "k", "search", "read", "start", "max_score", "score_of", why=why)
        newness = self.newness or FUSION_PRESETS[self.preset]().newness.kind
        if newness == "none":
            refuse_unread(self, "newness_strength", why="there is no simulated newness. Add --newness offsets.")
        if newness != "offsets":
            refuse_unread(self, "newness_share", why="is of --newness offsets. Add that, or leave this out.")
        if len(self.crossfit) == 1:
            raise UserError("--crossfit takes two models or more: number I of N was trained with ?without=I/N.")
        for place in (self.model, *self.crossfit):
            if place is not None:
                loading.check_model_place(place)

    def _split(self, spec: str) -> str | None:
        """The split to open a source with."""
        return split_for(spec, self.split, self.split if is_given("config") else None)

    def _folds(self, sources: tuple[Source, ...], broken_share: float) -> list[Fold]:
        """What each model of --crossfit makes of the pairs, and which of them are new to it."""
        folds = []
        for number, place in enumerate(self.crossfit):
            pairs = embed_pairs(load_model(place, self.device), sources, self.limit, broken_share)
            folds.append(Fold(pairs, fold_of(pairs, sources, len(self.crossfit)) == number))
        return folds

    def recipe(self) -> FusionRecipe:
        """What these options ask for."""
        preset = FUSION_PRESETS[self.preset]()
        newness = preset.newness
        if self.newness is not None:
            newness = Newness(self.newness, STRENGTHS[self.newness])
        strength = newness.strength if self.newness_strength is None else self.newness_strength
        newness = replace(newness, strength=strength, share=self.newness_share)
        start = self.start or preset.fusion.start
        return replace(
            preset,
            model=Model(start=self.model or ""),
            data=Data(sources=self.data, split=self.split),
            objective=ObjectiveOptions(base="softmax", scale=self.scale),
            optimiser=self.optimiser,
            batch_size=self.batch_size,
            chunk=self.chunk,
            seed=self.seed,
            log_every=self.log_every,
            checkpoint_every=self.checkpoint_every,
            fusion=FusionSettings(1, self.kind, self.search, self.read, self.modalities, start),
            memory=self.memory,
            terms=self.terms,
            k=self.k,
            max_score=self.max_score,
            score_of=self.score_of or preset.score_of,
            mask=self.mask or preset.mask,
            newness=newness,
            limit=self.limit,
            epochs=self.epochs,
            crossfit=self.crossfit,
        )
