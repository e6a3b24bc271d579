"""Writers that `index/test_safety.py` runs in other processes."""

import os
import signal

from index_rows import HashEncoder, make_rows
from recollect.index import Index, ingest, samples
from recollect.index.stores import lance


def die_at(moment):
    """SIGKILL this process before the writer's ``moment``-th step."""
    count = [0]

    def counted(function):
        def step(*arguments, **options):
            count[0] += 1
            if count[0] >= moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return step

    lance.write_checksums = counted(lance.write_checksums)
    lance.LanceStore.upsert = counted(lance.LanceStore.upsert)
    lance.LanceStore.delete = counted(lance.LanceStore.delete)
    os.replace = counted(os.replace)
    os.rename = counted(os.rename)
    os.fsync = counted(os.fsync)


def write(folder, photos, moment):
    ingest._MAX_PENDING = samples.BLOCK = 4
    index = Index.open(folder, HashEncoder())
    die_at(moment)
    index.add(photos)
    index.set_captions(dict.fromkeys(index.ids[:3], "five stars"))
    index.remove(index.ids[:2])
    index.forget("photos")


def insert_many(folder, first):
    index = Index.open(folder)
    for number in range(first, first + 6):
        index.insert(make_rows(2, first=2 * number))
