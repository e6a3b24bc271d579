import numpy as np
import torch

from recollect.core.seeding import integers, normals, uniforms
from recollect_papers.worlds import open_world_source, world_of
from recollect_papers.worlds.latents import LatentWorld
from recollect_papers.worlds.tasks import world_tasks


def test_random_numbers_depend_only_on_row_and_column():
    whole = uniforms(7, np.arange(50), 6)
    np.testing.assert_array_equal(uniforms(7, np.array([40, 3]), 6), whole[[40, 3]])
    np.testing.assert_array_equal(uniforms(7, np.arange(50), 2), whole[:, :2])
    assert not np.any(uniforms(8, np.arange(50), 6) == whole)


def test_random_numbers_are_uniform_normal_and_independent():
    draws = uniforms(1, np.arange(20_000), 4)
    assert draws.min() > 0
    assert draws.max() < 1
    np.testing.assert_allclose(np.quantile(draws, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.01)
    gauss = normals(1, np.arange(20_000), 4)
    np.testing.assert_allclose(gauss.mean(0), 0, atol=0.03)
    np.testing.assert_allclose(np.cov(gauss.T), np.eye(4), atol=0.03)
    assert abs(np.corrcoef(gauss[:-1, 0], gauss[1:, 0])[0, 1]) < 0.03
    assert np.bincount(integers(draws[:, 0], 5), minlength=5).min() > 3700


def test_a_sample_is_the_same_alone_and_in_a_batch():
    source = open_world_source("latents:captions")
    images, texts, _ = source.batch(np.array([9, 1_000_000_007, 4]), 0)
    sample = source[1_000_000_007]
    assert sample.texts == (texts[1],)
    np.testing.assert_allclose(sample.image, images[1], atol=1e-5)


def test_the_seed_of_a_batch_changes_the_view_but_not_the_caption():
    source = open_world_source("latents:captions")
    one, two = source.batch(np.arange(200), 1), source.batch(np.arange(200), 2)
    assert one[1] == two[1]
    correlation = np.corrcoef(one[0].numpy().ravel(), two[0].numpy().ravel())[0, 1]
    assert 0.05 < correlation < 0.7


def test_captions_never_name_held_out_classes_and_rarely_seen_ones():
    world = LatentWorld()
    _, texts, _ = open_world_source("latents:captions").batch(np.arange(20_000), 0)
    named = [int(word[4:]) for text in texts for word in text.split() if word.startswith("name")]
    assert max(named) < world.coarse * world.named
    assert 0.02 < len(named) / len(texts) < 0.04
    assert {word for text in texts for word in text.split()} <= set(world.vocabulary())


def test_test_tasks_share_no_class_with_training_or_validation():
    def classes(split):
        return {name for task in world_tasks("latents", split) for name in task.class_names}

    assert not classes("test") & classes("validation")
    world = LatentWorld()
    seen = {f"class {number}" for number in range(world.coarse * world.named)}
    assert not (classes("test") | classes("validation")) & seen


def test_tasks_of_several_sizes_are_over_unseen_classes():
    tasks = world_tasks("latents:sizes", "test")
    assert [len(task.class_names) for task in tasks] == [5, 5, 8, 8, 12, 12, 20, 20, 32, 32, 50, 50, 80, 80, 120, 120]
    assert np.bincount(tasks[-1].query.labels).tolist() == [25] * 120
    unseen = {f"class {number}" for number in range(60 * 7, 60 * 9)}  # the first 60 held-out classes are for validation
    assert set(tasks[-1].class_names) == unseen
    last_seen = LatentWorld().domains - LatentWorld().held_out_domains - 1
    for task in tasks:
        number = int(task.support.domain.removeprefix("domain "))
        assert (number <= last_seen) == task.name.endswith("-seen")
    choosing = world_tasks("latents:sizes", "validation")
    assert [len(task.class_names) for task in choosing][-2:] == [50, 50]
    assert not {name for task in choosing for name in task.class_names} & unseen


def test_settings_are_part_of_the_address_and_of_the_fingerprint():
    assert world_of("latents?seed=4&noise=0.2") == LatentWorld(seed=4, noise=0.2)
    first, second = (open_world_source(f"latents:captions?seed={seed}") for seed in (0, 1))
    assert first.fingerprint != second.fingerprint
    assert not torch.equal(first.batch(np.arange(2), 0)[0], second.batch(np.arange(2), 0)[0])
