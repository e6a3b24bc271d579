"""The real data sets open unmodified."""

from collections import Counter

import pyarrow.parquet as pq
import pytest

from recollect.data.sources import open_source

SETS = ("caltech101", "cifar10", "dtd10", "emoji", "eurosat", "flickr8k", "omniglot", "pacs", "rsicd_captions",
        "tiny_imagenet", "tiny_imagenet_b")  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_every_set_opens_and_decodes_to_rgb(real_data, name):
    source = open_source(str(real_data(name)))
    for index in range(0, len(source), len(source) // 20):
        sample = source[index]
        assert sample.image.mode == "RGB"
        assert min(sample.image.size) >= 64
        assert sample.texts or sample.label >= 0


@pytest.mark.parametrize("name", SETS)
def test_every_split_has_the_rows_of_the_file(real_data, name):
    file = real_data(name)
    splits = pq.read_table(file, columns=["split"])["split"].to_pylist()
    for split, count in Counter(splits).items():
        assert len(open_source(str(file), split=split)) == count
