"""The front door, as type checkers and editors read it; `__init__.py` imports each name when it is first used."""

from recollect import fewshot as fewshot
from recollect import objectives as objectives
from recollect import testing as testing
from recollect.apps.classify.classifier import Classifier as Classifier
from recollect.core.errors import UserError as UserError
from recollect.core.types import Batch as Batch
from recollect.core.types import Encoder as Encoder
from recollect.core.types import Sample as Sample
from recollect.core.types import Source as Source
from recollect.data.sources import open_source as open_source
from recollect.evaluation.entities import entities as entities
from recollect.evaluation.features import FeatureCache as FeatureCache
from recollect.evaluation.features import image_features as image_features
from recollect.evaluation.few_shot import few_shot as few_shot
from recollect.evaluation.probe import linear_probe as linear_probe
from recollect.evaluation.results import Result as Result
from recollect.evaluation.retrieval import retrieval as retrieval
from recollect.evaluation.zero_shot import zero_shot as zero_shot
from recollect.memory import Memory as Memory
from recollect.memory.fusion.block import FusionModule as FusionModule
from recollect.memory.fusion.encoder import RetrievalEnhancedEncoder as RetrievalEnhancedEncoder
from recollect.memory.fusion.learning import FusionRecipe as FusionRecipe
from recollect.memory.fusion.learning import train_fusion as train_fusion
from recollect.models import PRESETS as PRESETS
from recollect.models import DualEncoder as DualEncoder
from recollect.models import build_model as build_model
from recollect.models import load_model as load_model
from recollect.search.episodes.options import EpisodeOptions as EpisodeOptions
from recollect.search.episodes.searcher import EpisodicSearcher as EpisodicSearcher
from recollect.search.query import Query as Query
from recollect.search.searcher import Searcher as Searcher
from recollect.tasks.classification import ClassificationTask as ClassificationTask
from recollect.tasks.classification import classification_task as classification_task
from recollect.tasks.retrieval import RetrievalTask as RetrievalTask
from recollect.tasks.retrieval import retrieval_task as retrieval_task
from recollect.training.loop import train as train
from recollect.training.options import Recipe as Recipe
from recollect.training.recipes import RECIPES as RECIPES

__version__: str
