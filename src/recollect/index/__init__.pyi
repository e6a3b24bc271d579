"""Public names of the package, imported on first use."""

from .cutoff import CutOff as CutOff
from .duplicates import Duplicates as Duplicates
from .filters import Filter as Filter
from .filters import parse_filter as parse_filter
from .hits import Hit as Hit
from .hits import Hits as Hits
from .index import NEAR as NEAR
from .index import Index as Index
from .info import IndexInfo as IndexInfo
from .ingest import IngestReport as IngestReport
from .lookup import Found as Found
from .options import IngestOptions as IngestOptions
from .picture import File as File
from .picture import Picture as Picture
from .query import Minus as Minus
from .query import Query as Query
from .query import Term as Term
from .query import as_query as as_query
from .query import embed_queries as embed_queries
from .rows import By as By
from .rows import Record as Record
from .rows import Rows as Rows
