"""Registry of studies: the function behind each table and figure."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from recollect.core.validation import check_choice
from recollect_papers.study import StudyOptions, StudyReport


@dataclass(frozen=True)
class Study:
    """Module and function of a study, and its title.

    Attributes:
        pictures: whether the study reads a folder of real pictures at scale ``small`` too.
    """

    module: str
    function: str
    title: str
    pictures: bool = False

    def load(self) -> Callable[[StudyOptions], StudyReport]:
        """Import the study's function."""
        return getattr(import_module(f"recollect_papers.{self.module}"), self.function)


STUDIES: dict[str, Study] = {
    "lixp/table-1": Study("lixp.tables", "table_1", "context for SigLIP over model and data scale"),
    "lixp/table-2": Study("lixp.peers", "table_2", "published methods, and training-free voting on SigLIxP"),
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
        "lixp.real", "real", "few-shot cost of a trained head on strong towers, with and without context", pictures=True
    ),
    "lixp/unlocked": Study(
        "lixp.real", "unlocked", "lixp/real with the image tower's last stage trained too", pictures=True
    ),
    "lixp/towers": Study("lixp.real", "towers", "lixp/real with both towers trained, on a GPU", pictures=True),
    "lixp/variations": Study(
        "lixp.real", "variations", "lixp/real with CLIP's loss, larger batches, and labels", pictures=True
    ),
    "lixp/both": Study("lixp.both", "both", "one vector for few-shot classification and text search", pictures=True),
    "lixp/post-train": Study(
        "lixp.post_train",
        "post_train",
        "post-training a model of everyday photos on another domain",
        pictures=True,
    ),
    "lixp/methods": Study("lixp.methods", "methods", "few-shot methods compared by number of shots", pictures=True),
    "prefix/table-1": Study("prefix.tables", "table_1", "labels and captions together, with and without prefixes"),
    "prefix/table-2": Study("prefix.tables", "table_2", "equal and debiased sampling, with and without prefixes"),
    "prefix/table-3": Study("prefix.tables", "table_3", "linear probes"),
    "prefix/table-4": Study("prefix.tables", "table_4", "choice of prefix at test time"),
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
        "prefix.real", "real", "captions and labels together on strong towers, with each prefix", pictures=True
    ),
    "prefix/trained": Study("prefix.real", "trained", "prefix/real with the text tower trained too", pictures=True),
    "efsa/table-2": Study("efsa.tables", "table_2", "all search methods, one pool per domain"),
    "efsa/table-3": Study("efsa.tables", "table_3", "all search methods, all domains in one pool"),
    "efsa/table-4": Study("efsa.tables", "table_4", "episode loss"),
    "efsa/table-5": Study("efsa.tables", "table_5", "number of candidates per episode"),
    "efsa/table-6": Study("efsa.tables", "table_6", "captioners"),
    "efsa/table-7": Study("efsa.tables", "table_7", "all search methods, with SigLIP"),
    "efsa/figure-1": Study("efsa.figures", "figure_1", "zero-shot recall and its limits"),
    "efsa/figure-3": Study("efsa.figures", "figure_3", "top result before and after an episode"),
    "efsa/figure-4": Study("efsa.figures", "figure_4", "low-rank adapters vs. all parameters"),
    "efsa/figure-5": Study("efsa.figures", "figure_5", "number of steps per episode"),
    "efsa/figure-6": Study("efsa.figures", "figure_6", "caption length"),
    "efsa/real": Study("efsa.real", "real", "episodes, captions and mixtures on strong towers", pictures=True),
    "reco/table-1": Study("reco.tables", "table_1", "zero-shot classification with an index, several models"),
    "reco/table-2": Study("reco.tables", "table_2", "entities, seen and unseen, with an index"),
    "reco/table-3": Study("reco.tables", "table_3", "uni- and cross-modal search and fusion, and plain averaging"),
    "reco/table-4": Study("reco.tables", "table_4", "fusion of images, texts or both, in each mode"),
    "reco/real": Study("reco.real", "real", "an index with knowledge the model lacks, on strong towers", pictures=True),
    "reco/reading": Study(
        "reco.real", "reading", "weights and learning rates of fusions on strong towers", pictures=True
    ),
    "reco/starter": Study("reco.real", "starter", "reco/real with the starter", pictures=True),
    "reco/figure-2": Study("reco.tables", "figure_2", "search and fusion as a diagram"),
    "reco/figure-3": Study("reco.tables", "figure_3", "longer training, index size, and number of retrieved rows"),
    "reco/figure-4": Study("reco.tables", "figure_4", "example results of uni- and cross-modal search"),
}


def find_study(name: str) -> Study:
    """Return a study by name.

    Raises:
        UserError: unknown name.
    """
    return STUDIES[check_choice(name, STUDIES, "study")]
