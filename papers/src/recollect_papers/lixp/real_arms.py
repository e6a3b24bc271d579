"""What ``lixp/real`` trains: each row of its tables as a recipe, with the one it is compared with."""

from dataclasses import dataclass, replace

from recollect.objectives import ContextOptions
from recollect.training.options import Recipe
from recollect.training.recipes import RECIPES, with_context
from recollect_papers.lixp.sets import TRAINING_PAIRS
from recollect_papers.study import StudyOptions

DROPOUT, ALPHA, TAU = 0.5, 0.7, 0.01
"""As earlier trials on the choosing sets left them: dropout for SigLIP without context, then alpha and tau_context."""

BATCHES, ALPHAS, TAUS = (0.25, 4), (0.5, 0.9), (0.003, 0.03)
"""What the figures vary, one at a time, about the main setting; batches are factors of its own."""

LENGTHS = {0.5: 3, 2: 3, 4: 1}
"""Lengths as factors of the main setting's, and how many seeds each has: a long run takes what four others take."""

EQUAL_PAIRS, ALPHA_AND_TAU = "batch of equal pairs", "alpha and tau"
"""Axes of an arm: the batch, in as many steps as see the main setting's number of pairs; and both settings of context
at once, which a table alone shows."""

_NEARLY_NONE = 1e-6  # a weight must be positive; of a batch this leaves no sample
_FEW_SOURCES = (7759.0, 6000.0, _NEARLY_NONE, _NEARLY_NONE, _NEARLY_NONE)  # emoji and aerial photographs


@dataclass(frozen=True)
class Arm:
    """One way of training, compared with another of the same seed.

    Attributes:
        name: in files and tables.
        recipe: without data and seed.
        against: the arm whose figures its gain is over; empty for a baseline.
        seeds: how many of the study's seeds it is run with; None takes all.
        weights: of the training sources; their sizes if empty.
        axis: what a figure or a table of settings varies, and its value here; empty for the tables of arms.
    """

    name: str
    recipe: Recipe
    against: str = ""
    seeds: int | None = None
    weights: tuple[float, ...] = ()
    axis: tuple[str, float] | tuple[()] = ()


def arms(options: StudyOptions) -> list[Arm]:
    """What is trained, in the order of its worth."""
    siglip, clip = (_shortened(RECIPES[name](), options) for name in ("siglip-locked", "clip-locked"))
    siglixp = _with_context(siglip)
    main = [Arm("SigLIP", siglip), Arm("SigLIxP", siglixp, "SigLIP")]
    controls = [
        Arm("SigLIxP, no mask", _ablated(siglixp, ContextOptions(mask=False)), "SigLIP", 5),
        Arm("SigLIxP, shuffled context", _ablated(siglixp, ContextOptions(shuffled=True)), "SigLIP", 5),
        Arm("SigLIP, label smoothing 0.1", _smoothed(siglip, 0.1), "SigLIP", 3),
        Arm("SigLIP, other dropout", _with_dropout(siglip, 0.2), "SigLIP", 3),
        Arm("SigLIP, weight decay 0.3", _with_decay(siglip, 0.3), "SigLIP", 3),
        Arm("CLIP", clip, seeds=5),
        Arm("CLIxP", _with_context(clip), "CLIP", 5),
    ]
    return [*main, *controls, *_grid(siglip), *([] if options.scale == "smoke" else _all_pairs(siglip))]


def _grid(siglip: Recipe) -> list[Arm]:
    """Batch, length, sources, alpha and tau_context, each alone; other batches of equal pairs; alpha with tau."""
    found: list[Arm] = []

    def pair(
        words: str, changed: Recipe, axis: tuple[str, float], weights: tuple[float, ...] = (), seeds: int = 3
    ) -> None:
        base = f"SigLIP, {words}"
        # The baseline of a length is a control too: stopping early or late, with a schedule of its own.
        against = "SigLIP" if axis[0] == "steps" else ""
        found.append(Arm(base, changed, against, seeds, weights, axis))
        found.append(Arm(f"SigLIxP, {words}", _with_context(changed), base, seeds, weights, axis))

    for factor in BATCHES:
        size = max(2, round(siglip.batch_size * factor))
        pair(f"batch {size:,}", replace(siglip, batch_size=size), ("batch", float(size)))
    for length, seeds in LENGTHS.items():
        steps = max(1, round(siglip.steps * length))
        pair(f"{steps:,} steps", replace(siglip, steps=steps), ("steps", float(steps)), seeds=seeds)
    for factor in BATCHES:
        size, steps = max(2, round(siglip.batch_size * factor)), max(1, round(siglip.steps / factor))
        equal = replace(siglip, batch_size=size, steps=steps)
        pair(f"batch {size:,}, {steps:,} steps", equal, (EQUAL_PAIRS, float(size)), seeds=3 if factor < 1 else 2)
    pair("two sources", siglip, ("pairs", sum(_FEW_SOURCES)), _FEW_SOURCES)
    varied = [(f"alpha {alpha}", ("alpha", alpha), _with_context(siglip, alpha=alpha)) for alpha in ALPHAS]
    varied += [(f"tau {tau}", ("tau_context", tau), _with_context(siglip, tau=tau)) for tau in TAUS]
    found += [Arm(f"SigLIxP, {words}", recipe, "SigLIP", 3, axis=axis) for words, axis, recipe in varied]
    for alpha in ALPHAS:
        for tau in TAUS:
            recipe = _with_context(siglip, tau, alpha)
            found.append(Arm(f"SigLIxP, alpha {alpha}, tau {tau}", recipe, "SigLIP", 1, axis=(ALPHA_AND_TAU, alpha)))
    return found


def _all_pairs(siglip: Recipe) -> list[Arm]:
    """Every training pair in one batch, in as many steps as see the main setting's number of pairs.

    At the main setting's number of steps it would take as long as twenty runs of that one, and more with context, whose
    work grows with the square of the batch. A step takes a minute or two: each is kept, so that the run can be stopped.
    """
    steps = round(siglip.batch_size * siglip.steps / TRAINING_PAIRS)
    base = f"SigLIP, batch {TRAINING_PAIRS:,}, {steps} steps"
    changed = replace(siglip, batch_size=TRAINING_PAIRS, steps=steps, log_every=1, checkpoint_every=1)
    axis = (EQUAL_PAIRS, float(TRAINING_PAIRS))
    return [
        Arm(base, changed, "", 2, axis=axis),
        Arm(f"SigLIxP, batch {TRAINING_PAIRS:,}, {steps} steps", _with_context(changed), base, 2, axis=axis),
    ]


def _shortened(recipe: Recipe, options: StudyOptions) -> Recipe:
    recipe = replace(recipe, model=replace(recipe.model, dropout=DROPOUT))
    if options.scale == "smoke":
        model = replace(recipe.model, start="glyph-random", dropout=None)
        return replace(recipe, model=model, batch_size=64, steps=6, log_every=2, checkpoint_every=6)
    # At scale small a batch that two shared cores can do several seeds of in an hour; full is the recipe's own.
    size = 2048 if options.scale == "small" else recipe.batch_size
    return replace(recipe, batch_size=size, log_every=20, checkpoint_every=50)


def _with_context(recipe: Recipe, tau: float = TAU, alpha: float = ALPHA) -> Recipe:
    return with_context(recipe, tau, alpha)


def _with_dropout(recipe: Recipe, share: float) -> Recipe:
    dropout = share if recipe.model.start == "patches" else None
    return replace(recipe, model=replace(recipe.model, dropout=dropout))


def _with_decay(recipe: Recipe, decay: float) -> Recipe:
    return replace(recipe, optimiser=replace(recipe.optimiser, weight_decay=decay))


def _smoothed(recipe: Recipe, smoothing: float) -> Recipe:
    return replace(recipe, objective=replace(recipe.objective, smoothing=smoothing))


def _ablated(recipe: Recipe, ablation: ContextOptions) -> Recipe:
    context = recipe.objective.context
    assert context is not None
    return replace(recipe, objective=replace(recipe.objective, context=replace(context, options=ablation)))
