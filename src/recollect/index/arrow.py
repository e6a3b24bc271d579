"""Arrow arrays to and from NumPy.

Those of texts and integers do without ``pyarrow.array``, ``pyarrow.scalar`` and ``to_numpy``, which import pandas: most
of a second.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64


def string_array(values: Sequence[str]) -> Any:
    """An Arrow array of texts."""
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers).cast(pa.string())


def integer_array(values: Int64[np.ndarray, " n"]) -> Any:
    """An Arrow array of integers; it shares their memory."""
    import pyarrow as pa

    values = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def integer_values(column: Any) -> Int64[np.ndarray, " n"]:
    """The inverse of `integer_array` for integers of any size; missing ones are -1."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = _one_array(column).cast(pa.int64())
    if not len(array):
        return np.empty(0, dtype=np.int64)
    if array.null_count:
        array = pc.fill_null(array, integer_array(np.array([-1]))[0])
    return np.frombuffer(array.buffers()[1], dtype=np.int64)[array.offset : array.offset + len(array)]


def vector_matrix(column: Any) -> np.ndarray:
    """A column of fixed-size lists as a (rows, width) array in its stored precision."""
    array = _one_array(column)
    width = array.type.list_size
    return array.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)


def caption_matrix(column: Any) -> tuple[np.ndarray, Int64[np.ndarray, " rows"]]:
    """A column of lists of vectors as (all captions, width) and the number of captions per row."""
    import pyarrow.compute as pc

    array = _one_array(column)
    return vector_matrix(array.flatten()), integer_values(pc.list_value_length(array))


def vector_array(vectors: np.ndarray, type: Any) -> Any:
    """The inverse of `vector_matrix`: an Arrow array of a type of fixed-size lists."""
    import pyarrow as pa

    flat = np.ascontiguousarray(vectors, dtype=type.value_type.to_pandas_dtype()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), type.list_size)


def _one_array(column: Any) -> Any:
    import pyarrow as pa

    if not isinstance(column, pa.ChunkedArray):
        return column
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
