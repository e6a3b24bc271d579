"""Index of pictures: search, filter, look up nearest neighbors, and keep in sync with a source."""

from recollect.index.cutoff import CutOff
from recollect.index.duplicates import Duplicates
from recollect.index.filters import Filter, parse_filter
from recollect.index.hits import Hit, Hits
from recollect.index.index import NEAR, Index
from recollect.index.info import IndexInfo
from recollect.index.ingest import IngestReport
from recollect.index.lookup import Found
from recollect.index.picture import File, Picture
from recollect.index.query import Minus, Query, Term, as_query, embed_queries
from recollect.index.rows import By, Record, Rows
from recollect.index.samples import IngestOptions

__all__ = [
    "NEAR", "By", "CutOff", "Duplicates", "File", "Filter", "Found", "Hit", "Hits", "Index", "IndexInfo",
    "IngestOptions", "IngestReport", "Minus", "Picture", "Query", "Record", "Rows", "Term", "as_query", "embed_queries",
    "parse_filter",
]  # fmt: skip
