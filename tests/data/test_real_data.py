"""The real data sets open unmodified, and train and evaluate as documented."""

from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from recollect.data.batches.mixture import DataMix
from recollect.data.batches.stream import BatchStream
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.data.transforms import ImageTransform
from recollect.evaluation.tasks.classification import Division, classification_task
from recollect.evaluation.tasks.retrieval import retrieval_task

SETS = ("caltech101", "cifar10", "dtd10", "emoji", "eurosat", "flickr8k", "omniglot", "pacs", "rsicd_captions",
        "tiny_imagenet", "tiny_imagenet_b")  # fmt: skip


def rows(file, split=None):
    """Return the rows of a file without its pictures, read with pyarrow."""
    table = pq.read_table(file, columns=[name for name in pq.read_schema(file).names if name != "image"])
    return table if split is None else table.filter(pc.equal(table["split"], split))


@pytest.mark.parametrize("name", SETS)
def test_every_set_opens_and_decodes_to_rgb(real_data, name):
    source = open_source(str(real_data(name)))
    for index in range(0, len(source), len(source) // 20):
        sample = source[index]
        assert sample.image.mode == "RGB"
        assert min(sample.image.size) >= 64
        assert sample.texts or sample.label >= 0


def test_emoji_styles_are_selected_by_domain(real_data):
    spec = f"{real_data('emoji')}?domain=twemoji,noto&ambiguous=false"
    source = open_source(spec, split="train")
    domains = Counter(sample.extra["domain"] for sample in map(source.__getitem__, range(0, len(source), 50)))
    assert set(domains) == {"twemoji", "noto"}
    others = open_source(f"{real_data('emoji')}?domain!=twemoji,noto", split="train")
    both = open_source(f"{real_data('emoji')}?domain=twemoji,noto", split="train")
    assert len(others) + len(both) == len(rows(real_data("emoji"), "train"))


@pytest.mark.parametrize("name", SETS)
def test_every_split_has_the_rows_of_the_file(real_data, name):
    file = real_data(name)
    for split, count in Counter(rows(file).column("split").to_pylist()).items():
        assert len(open_source(str(file), split=split)) == count


def test_aerial_images_without_a_class_are_excluded_from_the_label_source(real_data):
    source = open_source(str(real_data("rsicd_captions")), kind="label", split="all")
    classes = [name for name in rows(real_data("rsicd_captions")).column("class_name").to_pylist() if name]
    assert (len(source), len(source.class_names)) == (len(classes), len(set(classes)))
    assert len(classes) < len(rows(real_data("rsicd_captions")))


def test_omniglot_is_divided_within_one_split(real_data):
    task = classification_task(str(real_data("omniglot")), division=Division(within="test", query_share=0.25))
    test = rows(real_data("omniglot"), "test")
    assert len(task.class_names) == len(set(test.column("label").to_pylist()))
    assert len(task.support) + len(task.query) == len(test)
    assert len(task.query) / len(test) == pytest.approx(0.25, abs=0.01)


def test_a_pool_of_three_domains_has_all_true_matches(real_data):
    files = [str(real_data(name)) for name in ("emoji", "rsicd_captions", "flickr8k")]
    pool = retrieval_task(files)
    assert len(pool.images) == sum(len(rows(Path(file), "test")) for file in files)
    assert sum(pool.ambiguous) == sum(filter(None, rows(Path(files[0]), "test").column("ambiguous").to_pylist()))
    assert {"aerial", "flickr8k:test", "noto"} <= set(pool.domains)  # a set without a domain column is a single domain
    aerial = retrieval_task(files[1])
    sentences = [set(captions) for captions in rows(Path(files[1]), "test").column("captions").to_pylist()]
    shared = Counter(caption for captions in sentences for caption in captions)
    assert sum(len(images) > 1 for images in aerial.matches) == sum(count > 1 for count in shared.values())


def test_captions_and_labels_can_be_mixed(real_data):
    captions = tuple(open_source(str(real_data(name))) for name in ("emoji", "rsicd_captions"))
    names = open_source(str(real_data("tiny_imagenet_b")), kind="label", columns=Columns(synonyms="captions"))
    mixture = DataMix((*captions, names), sampling="equal")
    stream = BatchStream(mixture, 64, ImageTransform(size=32, training=True), seed=0)
    batches = list(stream.iterate(0, 2, workers=1))
    assert torch.equal(batches[1].images, stream.batch(1).images)
    assert Counter(batches[0].kinds) == {"caption": 32, "label": 32}
    assert batches[0].images.shape == (64, 3, 32, 32)
    assert stream.counters.summary() == {}
