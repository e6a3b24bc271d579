"""Conversions between Arrow and NumPy arrays.

The string and integer functions avoid ``pyarrow.array``, ``pyarrow.scalar`` and ``to_numpy``, which import pandas (most
of a second).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64


def string_array(values: Sequence[str]) -> Any:
    """Return an Arrow array of strings."""
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers).cast(pa.string())


def integer_array(values: Int64[np.ndarray, " n"]) -> Any:
    """Return an Arrow array of integers that shares their memory."""
    import pyarrow as pa

    values = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def integer_values(column: Any) -> Int64[np.ndarray, " n"]:
    """Return the int64 values of an Arrow column of any integer type; nulls become -1."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = _one_array(column).cast(pa.int64())
    if not len(array):
        return np.empty(0, dtype=np.int64)
    if array.null_count:
        array = pc.fill_null(array, integer_array(np.array([-1]))[0])
    return np.frombuffer(array.buffers()[1], dtype=np.int64)[array.offset : array.offset + len(array)]


def vector_matrix(column: Any) -> np.ndarray:
    """Return a column of fixed-size lists as a (rows, width) array in its stored precision."""
    array = _one_array(column)
    width = array.type.list_size
    return array.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)


def caption_matrix(column: Any) -> tuple[np.ndarray, Int64[np.ndarray, " rows"]]:
    """Return a column of lists of vectors as one (captions, width) array, and the number of captions per row."""
    import pyarrow.compute as pc

    array = _one_array(column)
    return vector_matrix(array.flatten()), integer_values(pc.list_value_length(array))


def vector_array(vectors: np.ndarray, type: Any) -> Any:
    """Return vectors as an Arrow array of the given fixed-size list type; inverse of `vector_matrix`."""
    import pyarrow as pa

    flat = np.ascontiguousarray(vectors, dtype=type.value_type.to_pandas_dtype()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), type.list_size)


def _one_array(column: Any) -> Any:
    import pyarrow as pa

    if not isinstance(column, pa.ChunkedArray):
        return column
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
