"""One module for each paper; every table and figure is a function that the table below names."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from recollect.core.validation import check_choice
from recollect_papers.study import StudyOptions, StudyReport


@dataclass(frozen=True)
class Study:
    """Where a study lives, and what it shows."""

    module: str
    function: str
    title: str
    pictures: bool = False
    """Whether it reads a folder of real pictures at scale ``small`` too."""

    def load(self) -> Callable[[StudyOptions], StudyReport]:
        """Import the study's function."""
        return getattr(import_module(f"recollect_papers.{self.module}"), self.function)


STUDIES: dict[str, Study] = {
    "lixp/table-1": Study("lixp.tables", "table_1", "context for SigLIP over model and data scale"),
    "lixp/table-2": Study("lixp.peers", "table_2", "methods of the literature and training-free voting on SigLIxP"),
    "lixp/table-3": Study("lixp.tables", "table_3", "context for CLIP"),
    "lixp/table-4": Study("lixp.tables", "table_4", "ablations of the objective: mask, alpha, form, gradients"),
    "lixp/table-5": Study("lixp.tables", "table_5", "ablations of the buffer: batch, heads, norms, stale, size"),
    "lixp/table-6": Study("lixp.tables", "table_6", "augmented entries in the buffer"),
    "lixp/figure-1": Study("lixp.figures", "figure_1", "accuracy over shots, and sample efficiency"),
    "lixp/figure-2": Study("lixp.figures", "figure_2", "gain on each data set"),
    "lixp/figure-3": Study("lixp.figures", "figure_3", "gain of each classifier"),
    "lixp/figure-4": Study("lixp.figures", "figure_4", "post-training with context"),
    "lixp/figure-5": Study("lixp.figures", "figure_5", "gain against the number of examples"),
    "lixp/figure-6": Study("lixp.figures", "figure_6", "training dynamics"),
    "lixp/real": Study(
        "lixp.real", "real", "what a head on strong towers costs, and what context gives back", pictures=True
    ),
    "lixp/unlocked": Study(
        "lixp.real", "unlocked", "the same with the image tower's last stage trained too", pictures=True
    ),
    "lixp/variations": Study(
        "lixp.real", "variations", "the same with CLIP's loss, larger batches, and labels", pictures=True
    ),
    "lixp/both": Study("lixp.both", "both", "one vector with what examples and what words need", pictures=True),
    "lixp/post-train": Study(
        "lixp.post_train", "post_train", "a model of everyday photographs trained on with another domain", pictures=True
    ),
    "lixp/methods": Study("lixp.methods", "methods", "which few-shot method at how many shots", pictures=True),
    "prefix/table-1": Study("prefix.tables", "table_1", "labels and captions together, with and without prefixes"),
    "prefix/table-2": Study("prefix.tables", "table_2", "equal and debiased sampling, with and without prefixes"),
    "prefix/table-3": Study("prefix.tables", "table_3", "linear probes"),
    "prefix/table-4": Study("prefix.tables", "table_4", "the prefix at the test"),
    "prefix/table-5": Study("prefix.tables", "table_5", "shift of image domain"),
    "prefix/table-7": Study("prefix.tables", "table_7", "shift of class names"),
    "prefix/table-8": Study("prefix.tables", "table_8", "retrieval with each prefix"),
    "prefix/table-9": Study("prefix.tables", "table_9", "batch size and length"),
    "prefix/figure-3": Study("prefix.figures", "figure_3", "attention of the end token over a class prompt"),
    "prefix/figure-4": Study("prefix.figures", "figure_4", "map of class prompts with each prefix"),
    "prefix/figure-5": Study("prefix.figures", "figure_5", "attention over the prompt of an unseen class"),
    "prefix/figure-6": Study("prefix.figures", "figure_6", "attention over a caption"),
    "prefix/figure-7": Study("prefix.figures", "figure_7", "map of the prompts of all classes"),
    "prefix/figure-8": Study("prefix.figures", "figure_8", "map of the images of both sources"),
    "prefix/figure-9": Study("prefix.figures", "figure_9", "map of class prompts and captions"),
    "prefix/real": Study(
        "prefix.real", "real", "captions and labels together on strong towers, each reading", pictures=True
    ),
    "efsa/table-2": Study("efsa.tables", "table_2", "every way of searching, each domain a pool by itself"),
    "efsa/table-3": Study("efsa.tables", "table_3", "every way of searching, all domains in one pool"),
    "efsa/table-4": Study("efsa.tables", "table_4", "loss of an episode"),
    "efsa/table-5": Study("efsa.tables", "table_5", "candidates of an episode"),
    "efsa/table-6": Study("efsa.tables", "table_6", "captioners"),
    "efsa/table-7": Study("efsa.tables", "table_7", "every way of searching, with SigLIP"),
    "efsa/figure-1": Study("efsa.figures", "figure_1", "zero-shot recall, and what limits it"),
    "efsa/figure-3": Study("efsa.figures", "figure_3", "what is found first before and after an episode"),
    "efsa/figure-4": Study("efsa.figures", "figure_4", "low-rank adapters against all parameters"),
    "efsa/figure-5": Study("efsa.figures", "figure_5", "steps of an episode"),
    "efsa/figure-6": Study("efsa.figures", "figure_6", "length of the captions"),
    "efsa/real": Study("efsa.real", "real", "episodes, captions and mixtures on strong towers", pictures=True),
    "reco/table-1": Study("reco.tables", "table_1", "zero-shot classification with a memory, several models"),
    "reco/table-2": Study("reco.tables", "table_2", "entities, seen and unseen, with a memory"),
    "reco/table-3": Study("reco.tables", "table_3", "uni- and cross-modal search and fusion; the mean"),
    "reco/table-4": Study("reco.tables", "table_4", "fusion of images, of texts, of both, in every mode"),
    "reco/real": Study("reco.real", "real", "an index that knows more than the model, on strong towers", pictures=True),
    "reco/reading": Study(
        "reco.real", "reading", "why the learned gate reads less than a mean on strong towers", pictures=True
    ),
    "reco/figure-2": Study("reco.tables", "figure_2", "search and fusion as a diagram"),
    "reco/figure-3": Study("reco.tables", "figure_3", "additional training, a memory that grows, rows that are read"),
    "reco/figure-4": Study("reco.tables", "figure_4", "what uni- and cross-modal search find"),
}


def find_study(name: str) -> Study:
    """The study called ``name``.

    Raises:
        UserError: there is none.
    """
    return STUDIES[check_choice(name, STUDIES, "study")]
