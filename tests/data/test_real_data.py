"""The real sets open as they are, and train and test as the guide says."""

from collections import Counter

import numpy as np
import pytest
import torch

from recollect.data.batches.mixture import DataMix
from recollect.data.batches.stream import BatchStream
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.data.sources.derived import Subset
from recollect.data.sources.reading import readable_blocks
from recollect.data.transforms import ImageTransform
from recollect.tasks.classification import Division, class_name_shift, classification_task
from recollect.tasks.retrieval import retrieval_task

SETS = ("caltech101", "cifar10", "dtd10", "emoji", "eurosat", "flickr8k_1k", "omniglot", "pacs", "rsicd_captions",
        "tiny_imagenet", "tiny_imagenet_b")  # fmt: skip


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
    assert len(others) + len(both) == 11_582


def test_sizes_are_those_of_the_readme(real_data):
    assert len(open_source(str(real_data("emoji")), split="test")) == 2923
    assert [len(open_source(str(real_data("rsicd_captions")), split=split)) for split in ("train", "val", "test")] == [
        6000, 1094, 1093,
    ]  # fmt: skip
    task = classification_task(str(real_data("tiny_imagenet")))
    assert (len(task.support), len(task.query), len(task.class_names)) == (4000, 4000, 100)


def test_aerial_images_without_a_class_are_left_out_of_the_label_set(real_data):
    source = open_source(str(real_data("rsicd_captions")), kind="label", split="all")
    assert (len(source), len(source.class_names)) == (8187 - 675, 30)


def test_omniglot_is_divided_inside_one_split(real_data):
    task = classification_task(str(real_data("omniglot")), division=Division(within="test", query_share=0.25))
    assert (len(task.class_names), len(task.support), len(task.query)) == (160, 2400, 800)


def test_tiny_imagenet_has_synonyms_for_class_name_shift(real_data):
    task = classification_task(str(real_data("tiny_imagenet")), columns=Columns(synonyms="captions"))
    usual, shifted = class_name_shift(task)
    names = dict(zip(usual.class_names, shifted.class_names, strict=True))
    assert names["African elephant"] == "Loxodonta africana"
    assert 25 <= len(names) <= 60


def test_one_pool_of_three_domains_knows_all_true_matches(real_data):
    files = [str(real_data(name)) for name in ("emoji", "rsicd_captions", "flickr8k_1k")]
    pool = retrieval_task(files)
    assert len(pool.images) == 2923 + 1093 + 125
    assert sum(pool.ambiguous) == 77
    assert {"aerial", "photo", "noto"} <= set(pool.domains)
    aerial = retrieval_task(files[1])
    assert sum(len(images) > 1 for images in aerial.matches) == 150  # the README counts as many repeated sentences


def test_three_sources_of_two_kinds_train_together(real_data):
    captions = tuple(open_source(str(real_data(name))) for name in ("emoji", "rsicd_captions"))
    names = open_source(str(real_data("tiny_imagenet_b")), kind="label", columns=Columns(synonyms="captions"))
    mixture = DataMix((*captions, names), sampling="equal")
    stream = BatchStream(mixture, 64, ImageTransform(size=32, training=True), seed=0)
    batches = list(stream.iterate(0, 2, workers=1))
    assert torch.equal(batches[1].images, stream.batch(1).images)
    assert Counter(batches[0].kinds) == {"caption": 32, "label": 32}
    assert batches[0].images.shape == (64, 3, 32, 32)
    assert stream.counters.summary() == {}


def test_no_picture_of_the_real_sets_is_broken(real_data):
    source = open_source(str(real_data("dtd10")), split="all")
    every_tenth = Subset(source, np.arange(0, len(source), 10))
    assert sum(len(block) for block in readable_blocks(every_tenth, 16, share=0.0)) == 120
