"""`Memory`: image–text pairs embedded by one frozen model, which can grow, shrink and be searched from both sides."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.core.types import Encoder, Kind
from recollect.memory.backends.base import DamagedMemoryError
from recollect.memory.backends.lance import LanceBackend
from recollect.memory.backends.removals import Removal
from recollect.memory.naming import set_captions, set_metadata
from recollect.memory.removals import note_removals
from recollect.memory.rows import Pairs, Record, VectorPrecision
from recollect.memory.searching import NEAR as NEAR
from recollect.memory.searching import SearchedMemory
from recollect.memory.upkeep import KeptMemory


class Memory(SearchedMemory, KeptMemory):
    """Pictures with their embeddings, and the texts of those that have one with theirs, on disk or on a cluster.

    >>> memory = Memory.open("memories/emoji")                                       # doctest: +SKIP
    >>> found = memory.search(model.embed_images([picture]), k=10, modality="image")     # doctest: +SKIP
    >>> [item.caption for item in memory.fetch(found.ids[0])]                        # doctest: +SKIP

    An address is a folder (Lance), or ``milvus://host:port/collection``. Here it is opened and changed; how it is read
    stands in `recollect.memory.searching`, how it is looked after in `recollect.memory.upkeep`.
    """

    @classmethod
    def create(
        cls,
        address: str | Path,
        *,
        width: int,
        model: str,
        model_name: str = "",
        prefix: Kind | None = None,
        precision: VectorPrecision = "float32",
    ) -> "Memory":
        """Make an empty memory.

        Args:
            address: a folder that does not exist yet, or ``milvus://host:port/collection``.
            width: entries of a vector.
            model: fingerprint of the model whose vectors it will hold.
            model_name: what to call that model in messages.
            prefix: how its texts are read by a model with prefix tokens (`core.types.caption_prefix`).
            precision: of the vectors that are kept.

        Raises:
            UserError: something is there already.
        """
        record = Record(width, model, model_name, prefix, precision, uuid.uuid4().hex)
        return cls(_backend(str(address)).create(str(address), record))

    @classmethod
    def open(cls, address: str | Path, version: int | None = None) -> "Memory":
        """Open a memory.

        Args:
            address: its folder, or ``milvus://host:port/collection``.
            version: to read an earlier version of a memory on disk.

        Raises:
            UserError: there is none, or a part of it is missing.
        """
        return cls(_backend(str(address))(str(address), version))

    @staticmethod
    def exists(address: str | Path) -> bool:
        """Whether something is at this address, be it a memory or not."""
        kind = _backend(str(address))
        return kind.exists(str(address))

    @staticmethod
    def examine(address: str | Path) -> list[str]:
        """Read everything at an address, and say what cannot be trusted, a line each; also where it cannot be opened.

        Raises:
            UserError: there is no memory.
        """
        if found := _backend(str(address)).file_damage(str(address)):
            return list(found)
        try:
            return Memory.open(address).damage()
        except DamagedMemoryError as error:
            return [str(error)]

    def add(self, pairs: Pairs) -> None:
        """Add rows, on disk all of them or none.

        Raises:
            UserError: vectors of another model or width, or an id that is there already.
        """
        pairs.check(self.backend.record, self.address)
        if not len(pairs):
            return
        with self.backend.writing():
            if known := self.backend.known(pairs.ids):
                first = next(id for id in pairs.ids if id in known)
                raise UserError(
                    f"{self.address}: {len(known):,} of {len(pairs):,} ids are there already, first {first!r}"
                )
            self.backend.append(pairs)

    def upsert(self, pairs: Pairs) -> int:
        """Add rows, or replace those whose ids are there already; on disk all of them or none.

        Returns:
            How many were replaced.

        Raises:
            UserError: vectors of another model or width.
        """
        pairs.check(self.backend.record, self.address)
        if not len(pairs):
            return 0
        with self.backend.writing():
            known = self.backend.known(pairs.ids)
            if known:
                self.backend.upsert(pairs)
            else:
                self.backend.append(pairs)
        return len(known)

    def set_captions(
        self, captions: Mapping[str, str], encoder: Encoder, by: str = "", folder: Path | None = None
    ) -> int:
        """Give rows a text, or another one, which is embedded and can be searched from then on.

        Args:
            captions: texts by id, or by the file of the picture; an empty text takes a row's text away.
            encoder: the model that embedded the memory.
            by: who wrote them, kept as ``captioned_by`` in the rows' metadata.
            folder: where names of files may be relative to, beside where this process is.

        Returns:
            How many rows have changed.

        Raises:
            UserError: another model, or an id or file that is not there; then nothing is changed.
        """
        self.check_encoder(encoder, "the encoder")
        return set_captions(self.backend, captions, encoder, by, folder)

    def set_metadata(self, key: str, values: Mapping[str, Any], among: Sequence[str] | None = None) -> int:
        """Give rows a value under one key of their metadata, and take it from all others.

        Args:
            values: by id; ids that are not there (any more) are passed over.
            among: ids of the rows that may change; every one by default.

        Returns:
            How many rows have changed.
        """
        return set_metadata(self.backend, key, values, among)

    def delete(self, ids: Sequence[str] | None = None, *, where: str | None = None, stay_away: bool = True) -> int:
        """Remove rows by id, or all that satisfy a filter.

        Args:
            ids: of the rows.
            where: a filter, instead.
            stay_away: note the pictures of rows that came from a source, which does not bring them back when it is
                read again (`removals`, `bring_back`).

        Returns:
            How many were removed.

        Raises:
            UserError: an id is not there, the filter is malformed or nothing satisfies it; then nothing is removed.
        """
        if (ids is None) == (where is None):
            raise ValueError("give ids or a filter, one of both")
        if where is not None:
            ids = self.ids_where(where)
        wanted = list(dict.fromkeys(ids or ()))
        if not wanted:
            return 0
        with self.backend.writing():
            self._check_known(wanted)
            before = self.backend.removals() if stay_away else []
            if stay_away:  # before they go: a kill between both leaves rows that are there, which none keeps away
                note_removals(self.backend, wanted)
            try:
                self.backend.delete(wanted)
            except UserError:  # a full disk: their pictures, under another name, would stay away all the same
                if stay_away:
                    with suppress(UserError):
                        self.backend.keep_removals(before)
                raise
        return len(wanted)

    def removals(self, source: str | None = None) -> list[Removal]:
        """Pictures that were removed, and that stay away when their source is read again.

        Args:
            source: only those of this one.
        """
        return [each for each in self.backend.removals() if source in (None, each.source)]

    def bring_back(self, removals: Collection[Removal]) -> None:
        """Let pictures come in again that were removed: with the next reading of their source, where it has them."""
        if removals:
            with self.backend.writing():
                self.backend.keep_removals(set(self.backend.removals()) - set(removals))

    def snapshot(self) -> "Memory":
        """The memory as it is now, to read from while others write.

        Raises:
            UserError: the store keeps no versions.
        """
        return Memory(self.backend.snapshot())

    def refresh(self) -> None:
        """See what other processes have changed since this memory was opened."""
        self.backend.refresh()


def _backend(address: str) -> Any:
    if address.startswith("milvus://"):
        from recollect.memory.backends.milvus import MilvusBackend

        return MilvusBackend
    if "://" in address:
        raise UserError(f"{address}: not an address of a memory. Give a folder, or milvus://host:port/collection.")
    return LanceBackend
