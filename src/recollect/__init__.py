"""recollect: vision-language models that learn to look things up.

What stands here is the package's front door: these names stay where they are. Each is imported when it is first used,
so that ``import recollect`` costs nothing. `__init__.pyi` says the same to type checkers and editors.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_HOMES: dict[str, str] = {
    # rooms
    "fewshot": "recollect.fewshot",
    "objectives": "recollect.objectives",
    "testing": "recollect.testing",
    # models
    "PRESETS": "recollect.models",
    "DualEncoder": "recollect.models",
    "build_model": "recollect.models",
    "load_model": "recollect.models",
    # data and tasks
    "Batch": "recollect.core.types",
    "Sample": "recollect.core.types",
    "Source": "recollect.core.types",
    "Encoder": "recollect.core.types",
    "open_source": "recollect.data.sources",
    "EncoderBase": "recollect.core.types",
    "ImageTransform": "recollect.data.transforms",
    "DataMix": "recollect.data.batches.mixture",
    "BatchStream": "recollect.data.batches.stream",
    "ClassificationTask": "recollect.tasks.classification",
    "classification_task": "recollect.tasks.classification",
    "RetrievalTask": "recollect.tasks.retrieval",
    "retrieval_task": "recollect.tasks.retrieval",
    "suite": "recollect.tasks.catalogue",
    "Division": "recollect.tasks.classification",
    # training
    "RECIPES": "recollect.training.recipes",
    "Recipe": "recollect.training.options",
    "train": "recollect.training.loop",
    "Data": "recollect.training.options",
    # memory and fusion
    "FusionModule": "recollect.memory.fusion.block",
    "FusionRecipe": "recollect.memory.fusion.learning",
    "Memory": "recollect.memory",
    "Pairs": "recollect.memory.rows",
    "RetrievalEnhancedEncoder": "recollect.memory.fusion.encoder",
    "train_fusion": "recollect.memory.fusion.learning",
    "open_encoder": "recollect.memory.fusion.encoder",
    # search
    "EpisodeOptions": "recollect.search.episodes.options",
    "EpisodicSearcher": "recollect.search.episodes.searcher",
    "Query": "recollect.search.query",
    "Searcher": "recollect.search.searcher",
    "open_searcher": "recollect.search.opening",
    # evaluation
    "FeatureCache": "recollect.evaluation.features",
    "Result": "recollect.evaluation.results",
    "entities": "recollect.evaluation.entities",
    "few_shot": "recollect.evaluation.few_shot",
    "image_features": "recollect.evaluation.features",
    "linear_probe": "recollect.evaluation.probe",
    "retrieval": "recollect.evaluation.retrieval",
    "zero_shot": "recollect.evaluation.zero_shot",
    # classifiers
    "Classifier": "recollect.apps.classify.classifier",
    "name_pictures": "recollect.apps.classify.naming",
    "next_to_label": "recollect.apps.classify.clicks",
    "cut_off": "recollect.apps.classify.clicks",
    "ClickModel": "recollect.apps.classify.clicks",
    # errors
    "UserError": "recollect.core.errors",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'recollect' has no attribute {name!r}")
    home = _HOMES[name]
    found = import_module(home)
    if home != f"recollect.{name}":  # a room stands for itself, everything else is a name in its home
        found = getattr(found, name)
    return found  # not kept here: who replaces a name in its home, for a test say, is seen, and so is putting it back


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
