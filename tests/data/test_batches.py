"""A batch is a pure function of (seed, step), in any order and on any number of ranks and workers."""

import multiprocessing
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from recollect.core.errors import UserError
from recollect.core.types import NO_LABEL, Source
from recollect.data.batches.mixture import DataMix
from recollect.data.batches.stream import CONTEXT_VIEW, BatchStream
from recollect.data.prompts import GENERAL_TEMPLATES
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.data.sources.subset import Subset
from recollect.data.transforms import ImageTransform

TRANSFORM = ImageTransform(size=6, training=True, scale=(0.2, 1.0))


@pytest.fixture
def both(captions, labels):
    return DataMix((captions, labels), sampling="equal")


def stream(mixture, batch_size=12, **options):
    return BatchStream(mixture, batch_size, TRANSFORM, **({"seed": 1} | options))


def same(one, other):
    return (
        torch.equal(one.images, other.images)
        and torch.equal(one.labels, other.labels)
        and (one.texts, one.kinds, one.sources, one.ids) == (other.texts, other.kinds, other.sources, other.ids)
    )


# --- contents of a batch -----------------------------------------------------------------------------------------


def test_a_batch_as_large_as_its_sources_contains_each_sample_once(captions, labels):
    """`max_samples` stays within the sizes of the sources too, so no duplicates are expected."""
    sizes = (len(captions), len(labels))
    whole = stream(DataMix((captions, labels)), sum(sizes))
    assert whole.max_samples(300) == sizes
    for step in range(3):
        drawn = whole.batch(step)
        assert len(set(zip(drawn.sources, drawn.ids, strict=True))) == sum(sizes)


def test_images_texts_and_labels_match(both, captions, labels):
    plain = BatchStream(both, 12, ImageTransform(size=10, fit="squash", mean=(0.0,) * 3, std=(1.0,) * 3), seed=1)
    batch = plain.batch(3)
    assert batch.images.dtype == torch.float32
    for row in range(12):
        picture = round(float(batch.images[row, 0].min()) * 255)
        assert batch.ids[row] == str(picture)
        if batch.kinds[row] == "caption":
            assert batch.texts[row] in captions[picture].texts
            assert (batch.sources[row], batch.labels[row]) == ("captions", NO_LABEL)
        else:
            name = labels.class_names[picture % 3]
            assert batch.texts[row] in {template.format(name) for template in GENERAL_TEMPLATES}
            assert (batch.sources[row], batch.labels[row]) == ("labels", picture % 3)


def test_classes_with_equal_names_in_two_sources_can_be_merged(make):
    """Class numbers are then equal exactly if the names are."""
    owls, birds = (
        open_source(str(make.parquet({"label": names * 4}, f"{names[0]}.parquet")), kind="label")
        for names in (["owl", "crane"], ["Crane", "heron", "owl"])
    )
    for merge in (False, True):
        mixture = DataMix((owls, birds), merge_classes=merge)
        names_by_number = {}
        for place, source in enumerate((owls, birds)):
            numbers = mixture.class_numbers(place, source.labels)
            for number, label in zip(numbers.tolist(), source.labels.tolist(), strict=True):
                names_by_number.setdefault(number, set()).add((place, source.class_names[label].strip().lower()))
        names = sorted(sorted({name for _, name in each}) for each in names_by_number.values())
        separate = [["crane"], ["crane"], ["heron"], ["owl"], ["owl"]]
        assert names == ([["crane"], ["heron"], ["owl"]] if merge else separate)
    assert mixture.class_numbers(0, np.array([NO_LABEL, 1])).tolist()[0] == NO_LABEL


def test_all_captions_and_templates_are_drawn(both):
    sampler = stream(both)
    texts = Counter(text for step in range(120) for text in sampler.batch(step).texts)
    assert texts["picture 7"] > 3
    assert texts["number 7"] > 3
    assert len({text for text in texts if "cat" in text}) > 70  # of 80 templates


@pytest.mark.parametrize("batch_size", [7, 10, 13, 39, 40])
def test_no_sample_repeats_within_a_batch_or_a_pass(captions, batch_size):
    stream = BatchStream(DataMix((captions,)), batch_size, TRANSFORM)
    rows = [stream.rows(step)[1] for step in range(40)]
    assert all(len(set(batch.tolist())) == batch_size for batch in rows), "also not in a batch across two passes"
    assert len({tuple(batch) for batch in rows}) == 40, "each pass has a different order"
    drawn = np.bincount(np.concatenate(rows), minlength=40)
    assert drawn.max() - drawn.min() <= 1, "all samples are drawn equally often"


def test_a_batch_larger_than_its_source_repeats_samples_evenly(captions):
    batch = stream(DataMix((captions,)), 100).batch(0)
    assert set(Counter(batch.ids).values()) == {2, 3}


# --- mixing ------------------------------------------------------------------------------------------------------


def test_equal_sampling_gives_half_of_every_batch_to_each_kind(both):
    for step in range(5):
        assert Counter(stream(both).batch(step).kinds) == {"caption": 6, "label": 6}


def test_a_debiased_batch_has_a_single_source_and_both_are_equally_frequent(captions, labels):
    sampler = stream(DataMix((captions, labels), sampling="debiased"), world_size=1)
    kinds = []
    for step in range(100):
        before, after = sampler.seen(step), sampler.seen(step + 1)
        composition = {name: after[name] - before[name] for name in after}
        assert sorted(composition.values()) == [0, 12]
        kinds.append(max(composition, key=composition.get))
    assert 35 < Counter(kinds)["captions"] < 65
    for step in range(4):
        assert set(sampler.batch(step).sources) == {kinds[step]}


def test_proportional_sampling_follows_sizes_or_weights(captions, labels):
    by_size, by_weight = DataMix((captions, labels)), DataMix((captions, labels), weights=(1.0, 3.0))
    assert by_size.shares == (40 / 70, 30 / 70)
    assert by_weight.shares == (0.25, 0.75)
    assert stream(by_weight, 10).seen(200)["labels"] / 2000 == pytest.approx(0.75, abs=0.01)


def test_weights_act_within_a_kind_when_kinds_are_balanced(captions, labels):
    more = Subset(captions, np.arange(10), name="more")
    for sampling in ("equal", "debiased"):
        mixture = DataMix((captions, more, labels), weights=(1.0, 4.0, 7.0), sampling=sampling)
        np.testing.assert_allclose(mixture.shares, [0.1, 0.4, 0.5])
        np.testing.assert_allclose(DataMix((captions, more), weights=(1.0, 4.0), sampling=sampling).shares, [0.2, 0.8])


# --- purity ------------------------------------------------------------------------------------------------------


def test_a_batch_does_not_depend_on_previous_reads(both):
    fresh, used = stream(both), stream(both)
    for step in (9, 2, 5):
        used.batch(step)
    assert same(fresh.batch(4), used.batch(4))
    assert not same(fresh.batch(4), fresh.batch(5))
    assert not same(fresh.batch(4), stream(both, seed=2).batch(4))


@pytest.mark.parametrize("sampling", ["proportional", "equal", "debiased"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_batches_of_all_ranks_form_the_batch_of_one_process(captions, labels, sampling, world_size):
    mixture = DataMix((captions, labels), sampling=sampling)
    for step in (0, 7):
        whole = stream(mixture).batch(step)
        parts = [stream(mixture, rank=rank, world_size=world_size).batch(step) for rank in range(world_size)]
        assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
        assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels)
        assert sum((part.texts for part in parts), ()) == whole.texts
        assert sum((part.ids for part in parts), ()) == whole.ids


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_do_not_affect_batches(both, workers):
    batches = list(stream(both, 50).iterate(3, 7, workers))
    assert len(batches) == 4
    assert all(same(batch, stream(both, 50).batch(step)) for step, batch in enumerate(batches, 3))


def test_raw_batches_are_equal_after_normalization(both):
    batches = stream(both, 50)
    for raw, whole in zip(batches.iterate(0, 2, raw=True), batches.iterate(0, 2), strict=True):
        assert raw.images.dtype == torch.uint8
        assert torch.equal(batches.normalized(raw.images), whole.images)


def test_spawned_workers_give_the_same_batches(both, monkeypatch):
    """Spawned processes have different string hashes."""
    context = torch.multiprocessing.get_context("spawn")
    from recollect.data.batches import loading

    loader = loading.DataLoader
    monkeypatch.setattr(loading, "DataLoader", lambda *a, **k: loader(*a, multiprocessing_context=context, **k))
    assert same(next(iter(stream(both).iterate(0, 1, workers=1))), stream(both).batch(0))


# --- views and contexts ------------------------------------------------------------------------------------------


def test_a_second_view_has_different_crops_of_the_same_samples(both):
    first, second = stream(both).batch(2), stream(both).batch(2, view=1)
    assert (first.ids, first.texts) == (second.ids, second.texts)
    assert not torch.equal(first.images, second.images)
    assert same(next(stream(both).iterate(2, 3, view=1)), second)


def test_a_context_shares_no_sample_with_its_batch(captions):
    sampler = stream(DataMix((captions,)), 10)
    for step in (0, 1, 2):
        batch, context = sampler.batch(step), sampler.batch(step + 1, view=CONTEXT_VIEW)
        assert not set(batch.ids) & set(context.ids)
    assert same(next(sampler.iterate(1, 2, view=CONTEXT_VIEW)), sampler.batch(1, view=CONTEXT_VIEW))


# --- vectors and sources that generate whole batches -------------------------------------------------------------


class World(Source):
    """Source that generates whole batches of vectors; row i depends only on its index and the seed."""

    name, class_names, fingerprint = "world", ("a", "b", "c", "d"), "w"

    def __init__(self, kind="caption"):
        self.kind = kind

    makes_batches = True

    def __len__(self):
        return 50

    @property
    def labels(self):
        return np.arange(50) % 4

    def __getitem__(self, index):
        raise AssertionError("must use the vectorized method")

    def batch(self, indices, seed):
        images = torch.tensor([[float(index), float(seed % 1000)] for index in indices])
        return images, [f"text {index}" for index in indices], torch.from_numpy(indices % 4)


def test_a_source_that_generates_batches_is_used_for_whole_batches():
    assert isinstance(World(), Source)
    sampler = BatchStream(DataMix((World(),)), 8, None, seed=3)
    batch = sampler.batch(0)
    assert batch.images.shape == (8, 2)
    assert batch.texts == tuple(f"text {int(value)}" for value in batch.images[:, 0])
    assert batch.labels.tolist() == [NO_LABEL] * 8
    halves = [BatchStream(DataMix((World(),)), 8, None, seed=3, rank=rank, world_size=2).batch(0) for rank in (0, 1)]
    assert torch.equal(torch.cat([half.images for half in halves]), batch.images)


def test_a_label_source_that_generates_batches_keeps_its_labels():
    subset = Subset(World("label"), np.arange(10, 20))
    batch = BatchStream(DataMix((subset,)), 5, None).batch(0)
    assert batch.labels.tolist() == [int(value) % 4 for value in batch.images[:, 0]]
    assert all(10 <= value < 20 for value in batch.images[:, 0])


class Pictures(World):
    """Generated pictures (n, 3, height, width) in uint8; the shade is the index, the last column the view."""

    class_names = ("red_fox", "owl")

    def batch(self, indices, seed):
        images = torch.zeros(len(indices), 3, 6, 6, dtype=torch.uint8) + torch.from_numpy(indices).view(-1, 1, 1, 1)
        images[:, :, :, 5] = seed % 200
        return images.to(torch.uint8), ["the source's own text"] * len(indices), torch.from_numpy(indices % 2)


def test_generated_pictures_are_normalized_and_class_names_filled_into_templates():
    sampler = stream(DataMix((Pictures("label"),)), 8, templates=("one {}.", "two {}."))
    batch, other = sampler.batch(0), sampler.batch(0, view=1)
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (TRANSFORM.mean, TRANSFORM.std))
    shades = ((batch.images * std + mean) * 255).round()[:, 0, 0, 0]
    assert batch.ids == tuple(str(int(shade)) for shade in shades)
    names = ["red fox", "owl"]
    for label, text in zip(batch.labels.tolist(), batch.texts, strict=True):
        assert text in {f"one {names[label]}.", f"two {names[label]}."}
    assert batch.texts == other.texts
    assert not torch.equal(batch.images, other.images)
    words = [[text.split()[0] for text in sampler.batch(step).texts] for step in range(3)]
    assert words[0] != words[1] or words[1] != words[2]  # templates are drawn again at each step


def test_generated_pictures_are_resized_to_the_input_size():
    larger = BatchStream(DataMix((Pictures(),)), 4, ImageTransform(size=12, training=True)).batch(0)
    assert larger.images.shape == (4, 3, 12, 12)
    with pytest.raises(ValueError, match="needs a transform"):
        BatchStream(DataMix((Pictures(),)), 4, None).batch(0)


def test_generated_sources_can_be_mixed():
    glyphs = DataMix(tuple(open_source(f"glyphs:{name}") for name in ("captions", "labels")), sampling="equal")
    transform = ImageTransform(size=32, training=True)
    batch = BatchStream(glyphs, 16, transform).batch(3)
    assert batch.images.shape == (16, 3, 32, 32)
    assert sum(label >= 0 for label in batch.labels.tolist()) == 8
    halves = [BatchStream(glyphs, 16, transform, rank=rank, world_size=2).batch(3) for rank in (0, 1)]
    assert torch.equal(torch.cat([half.images for half in halves]), batch.images)
    assert halves[0].texts + halves[1].texts == batch.texts


# --- broken images -----------------------------------------------------------------------------------------------


@pytest.fixture
def partly_broken(make):
    good = [make.encoded(make.picture(i)) for i in range(120)]
    images = [data[:40] if i in (7, 50, 90) else data for i, data in enumerate(good)]
    return open_source(str(make.parquet({"image": images, "caption": [f"text {i}" for i in range(120)]})))


def test_a_broken_image_gets_the_same_replacement_everywhere(partly_broken):
    mixture = DataMix((partly_broken,))
    whole = stream(mixture, 120, broken_share=0.1)
    batch = whole.batch(0)
    assert not {"7", "50", "90"} & set(batch.ids)
    assert batch.texts == tuple(f"text {id}" for id in batch.ids)
    assert whole.counters.summary() == {"set": 3}
    ranks = [stream(mixture, 120, broken_share=0.1, rank=rank, world_size=3).batch(0) for rank in range(3)]
    assert sum((part.ids for part in ranks), ()) == batch.ids
    assert same(next(iter(stream(mixture, 120, broken_share=0.1).iterate(0, 1, workers=2))), batch)
    assert whole.batch(0, view=1).ids == batch.ids
    broken = np.isin(whole.rows(0)[1], (7, 50, 90))
    assert len(set(np.array(batch.ids)[broken])) == 3  # three different replacements


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_broken_images_give_a_one_line_error(partly_broken, workers):
    with pytest.raises(UserError, match=r"set\.parquet, row \d+: .* images of set cannot be read") as error:
        list(stream(DataMix((partly_broken,)), 60).iterate(0, 4, workers))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_source_with_only_broken_images_is_rejected(make, workers):
    source = open_source(str(make.parquet({"image": [b"junk"] * 5, "caption": ["x"] * 5})))
    others = set(multiprocessing.active_children())
    with pytest.raises(UserError, match=r"row \d: not a picture") as error:
        list(stream(DataMix((source,)), 4).iterate(0, 1, workers))
    assert "\n" not in str(error.value)
    assert set(multiprocessing.active_children()) <= others, "workers must end although the error is still referenced"


def test_a_sample_with_a_null_caption_field_is_replaced(make):
    metas = [{"text": "a"} if i % 2 else {"text": None} for i in range(20)]
    source = open_source(str(make.parquet({"meta": metas})), columns=Columns(caption="meta.text"))
    batch = stream(DataMix((source,)), 10, broken_share=1.0).batch(0)
    assert set(batch.texts) == {"a"}


# --- bad input ---------------------------------------------------------------------------------------------------


def test_invalid_mixtures_are_rejected(captions, labels, make):
    with pytest.raises(UserError, match="source"):
        DataMix(())
    with pytest.raises(UserError, match="captions"):
        DataMix((captions, captions))
    with pytest.raises(UserError, match="2 positive numbers"):
        DataMix((captions, labels), weights=(1.0,))
    with pytest.raises(UserError, match="2 positive numbers"):
        DataMix((captions, labels), weights=(1.0, -1.0))
    numbers = open_source(str(make.parquet({"label": [3, 4]}, "numbers.parquet")), kind="label")
    with pytest.raises(UserError, match="numbers"):
        DataMix((numbers,))
    with pytest.raises(UserError, match=r"12 .* 5"):
        stream(DataMix((captions, labels)), world_size=5)  # 12 samples do not divide over 5 ranks


# --- signals -----------------------------------------------------------------------------------------------------


def test_only_the_trainer_handles_stop_signals(captions, tmp_path):
    """Workers ignore Ctrl-C, and the SIGTERM that `timeout` or Slurm sends to all processes; they end with the loader
    and never run the inherited handler."""
    handled, others = tmp_path / "handled", set(multiprocessing.active_children())
    previous = signal.signal(signal.SIGTERM, lambda *_: handled.touch())
    try:
        batches = stream(DataMix((captions,))).iterate(0, 10**6, workers=1)
        next(batches)
        (worker,) = set(multiprocessing.active_children()) - others
        os.kill(worker.pid, signal.SIGINT)
        subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)
        for _ in range(10):
            next(batches)
        assert worker.is_alive()
        batches.close()
        worker.join(timeout=10)
        assert not worker.is_alive()
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert not handled.exists()


def test_sources_of_equal_length_have_different_orders(captions):
    everything, names = np.arange(len(captions)), ("one", "two")
    sources = tuple(Subset(captions, everything, name=name) for name in names)
    both = stream(DataMix(sources, sampling="equal"), 80)
    batch = both.batch(0)
    one, two = (sorted(batch.ids[row] for row in range(80) if batch.sources[row] == name) for name in names)
    assert one == two
    assert not np.array_equal(*(order(everything) for order in both._orders))


def test_synonyms_and_templates_are_drawn_independently(make):
    path = str(make.parquet({"class_name": ["frog"] * 40, "label": [0] * 40, "names": [["toad", "newt"]] * 40}))
    source = open_source(path, kind="label", columns=Columns(synonyms="names"))
    drawn = stream(DataMix((source,)), 40, templates=("a {}.", "the {}."))
    texts = Counter(text for step in range(5) for text in drawn.batch(step).texts)
    assert set(texts) == {"a toad.", "a newt.", "the toad.", "the newt."}
    assert min(texts.values()) > 25  # of 200, fifty each on average; the probability of 25 or fewer is below 1e-3


def _train_until_killed(mixture, workers):
    batches = stream(mixture, 4_096).iterate(0, 100_000, workers=1)  # large enough to fill the queue's pipe
    next(batches)
    time.sleep(2)  # until the pipe is full
    workers.send([worker.pid for worker in multiprocessing.active_children()])
    signal.pause()


def test_workers_end_when_their_trainer_is_killed(both):
    """They ignore other signals than SIGKILL, so they must notice themselves."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe()
    trainer = context.Process(target=_train_until_killed, args=(both, sender))
    trainer.start()
    (worker,) = receiver.recv()
    trainer.kill()
    trainer.join()
    end = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < end:
        time.sleep(0.2)
    if left := Path(f"/proc/{worker}").exists():
        os.kill(worker, signal.SIGKILL)
    assert not left
