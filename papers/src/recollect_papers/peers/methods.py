"""Few-shot methods of this package by name, for `recollect evaluate few-shot` and `recollect classify`."""

from collections.abc import Mapping

from recollect.classifiers.heads.methods import MakeEstimator
from recollect_papers.peers.ape import ApeClassifier, ApeTrained
from recollect_papers.peers.mixtures import DualMemory, GaussianDiscriminant
from recollect_papers.peers.proker import PublishedProKeR
from recollect_papers.peers.timo import Timo
from recollect_papers.peers.tip_x import TipX
from recollect_papers.peers.trained import ClipAdapter, TipAdapterF

FEW_SHOT_METHODS: Mapping[str, MakeEstimator] = {
    "gda": lambda texts, scale: GaussianDiscriminant(texts, scale=scale),
    "dmn-tf": lambda texts, scale: DualMemory(texts, scale=scale),
    "dmn-tf-published": lambda texts, scale: DualMemory(texts, scale=scale, preset="published"),
    "proker-published": lambda texts, scale: PublishedProKeR(texts),
    "tip-x": lambda texts, scale: TipX(texts, scale=scale),
    "ape": lambda texts, scale: ApeClassifier(texts, scale=scale),
    "timo": lambda texts, scale: Timo(texts),
    "clip-adapter": lambda texts, scale: ClipAdapter(texts, scale=scale),
    "ape-t": lambda texts, scale: ApeTrained(texts, scale=scale),
    "tip-adapter-f": lambda texts, scale: TipAdapterF(texts, scale=scale),
}
