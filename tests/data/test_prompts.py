from recollect.data.prompts import GENERAL_TEMPLATES, SIMPLE_TEMPLATES, fill


def test_there_are_80_distinct_templates_each_with_one_placeholder():
    assert len(set(GENERAL_TEMPLATES)) == 80
    assert all(template.count("{}") == 1 for template in GENERAL_TEMPLATES)


def test_the_templates_match_clip_in_order():
    # From the notebook "Prompt Engineering for ImageNet" of openai/CLIP; spot checks fix the order.
    known = {0: "a bad photo of a {}.", 4: "a low resolution photo of the {}.", 10: "the embroidered {}.",
             35: "a {} in a video game.", 39: "a photo of a {}.", 44: "a origami {}.", 59: "itap of the {}.",
             76: "itap of my {}.", 79: "a tattoo of the {}."}  # fmt: skip
    assert {place: GENERAL_TEMPLATES[place] for place in known} == known
    assert set(SIMPLE_TEMPLATES) <= set(GENERAL_TEMPLATES)


def test_braces_in_a_class_name_are_kept():
    assert fill("a {}.", "set {0} of {x}") == "a set {0} of {x}."
