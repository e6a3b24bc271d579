"""The figures printed in prefix conditioning (Saito et al., 2023), to stand beside ours. Accuracies in percent."""

SETS = ("IN-1K", "Cal", "CF100", "CF10", "ESTAT", "Food", "Flower", "Pets", "Patch", "R45", "VOC", "DTD", "AVG")
"""Columns of Tables 2 and 4: ImageNet-1K, the eleven sets, and the mean of the eleven."""

# Table 1: IN-1K and zero-shot on eleven sets, by (labels, captions, objective, prefix).
TABLE_1: dict[tuple[str, str, str, bool], tuple[str, str]] = {
    ("–", "CC-3M", "CLIP", False): ("18.1", "28.7"),
    ("–", "CC-12M", "CLIP", False): ("33.4", "41.2"),
    ("IN-1K", "–", "CLIP", False): ("72.1", "20.2"),
    ("IN-21K", "–", "CLIP", False): ("47.1", "39.6"),
    ("IN-1K", "CC-12M", "CLIP", False): ("68.7", "43.3"),
    ("IN-1K", "CC-12M", "CLIP", True): ("71.5", "45.5"),
    ("IN-1K", "CC-12M", "UniCL", False): ("68.8", "43.1"),
    ("IN-1K", "CC-12M", "UniCL", True): ("71.7", "44.5"),
    ("IN-21K", "CC-12M", "CLIP", False): ("56.8", "49.5"),
    ("IN-21K", "CC-12M", "CLIP", True): ("67.3", "57.8"),
    ("IN-21K", "CC-12M", "UniCL", False): ("58.2", "51.7"),
    ("IN-21K", "CC-12M", "UniCL", True): ("66.5", "58.4"),
    ("IN-21K w/o IN-1K", "CC-12M", "CLIP", False): ("29.1", "46.9"),
    ("IN-21K w/o IN-1K", "CC-12M", "CLIP", True): ("47.8", "56.4"),
}

# Table 2: by (prefix, sampling), in the order of `SETS`; the caption prefix at the test.
TABLE_2: dict[tuple[bool, str], tuple[str, ...]] = {
    (False, "equal"): (
        "56.8", "70.2", "55.0", "79.4", "21.1", "46.0", "60.3", "57.2", "51.2", "24.8", "57.7", "21.4", "49.5",
    ),
    (True, "equal"): (
        "65.4", "81.2", "62.6", "88.9", "30.4", "51.7", "61.8", "71.9", "50.0", "28.2", "78.1", "27.7", "57.5",
    ),
    (False, "debiased"): (
        "58.7", "65.9", "55.0", "85.7", "22.8", "40.8", "55.7", "60.2", "50.0", "20.6", "45.2", "23.8", "47.8",
    ),
    (True, "debiased"): (
        "67.3", "79.7", "63.8", "87.9", "31.5", "53.4", "58.8", "69.6", "50.6", "31.5", "80.5", "28.4", "57.8",
    ),
}  # fmt: skip

# Table 3: linear probes.
TABLE_3_SETS = ("IN-1K", "Cifar10", "Cifar100", "Caltech", "Food", "Pet", "Patch", "VOC", "DTD")
TABLE_3: dict[tuple[str, bool], tuple[str, ...]] = {
    ("IN-21K", False): ("71.5", "94.3", "79.1", "83.5", "79.1", "86.3", "82.3", "88.9", "61.3"),
    ("IN-21K + CC-12M", False): ("69.2", "93.0", "76.4", "82.4", "78.4", "82.2", "81.4", "88.7", "61.4"),
    ("IN-21K + CC-12M", True): ("69.4", "93.5", "77.3", "83.2", "78.8", "83.6", "82.0", "88.8", "62.5"),
}

# Table 4: by (labels, prefix at the test), in the order of `SETS`.
TABLE_4: dict[tuple[str, str], tuple[str, ...]] = {
    ("IN-1K", "N/A"): (
        "68.7", "68.7", "38.4", "69.5", "24.4", "31.9", "13.3", "66.6", "50.2", "25.4", "65.6", "22.3", "43.3",
    ),
    ("IN-1K", "label"): (
        "75.4", "71.7", "35.5", "63.9", "24.2", "20.0", "8.1", "72.2", "50.4", "24.2", "61.1", "15.3", "40.6",
    ),
    ("IN-1K", "caption"): (
        "71.5", "75.1", "39.4", "70.5", "26.7", "33.9", "13.9", "72.3", "50.5", "25.8", "67.8", "25.4", "45.5",
    ),
    ("IN-21K", "N/A"): (
        "56.8", "70.2", "55.0", "79.4", "21.1", "46.0", "60.3", "57.2", "51.2", "24.8", "57.7", "21.4", "49.5",
    ),
    ("IN-21K", "label"): (
        "71.4", "76.5", "59.0", "86.0", "20.1", "45.7", "62.3", "69.1", "52.4", "26.3", "76.8", "21.4", "54.1",
    ),
    ("IN-21K", "caption"): (
        "67.3", "79.7", "63.8", "87.9", "31.5", "53.4", "58.8", "69.6", "50.6", "31.5", "80.5", "28.4", "57.8",
    ),
    ("IN-21K w/o IN-1K", "N/A"): (
        "29.1", "67.4", "45.9", "80.0", "28.6", "40.8", "56.9", "39.2", "50.2", "21.9", "64.9", "19.8", "46.9",
    ),
    ("IN-21K w/o IN-1K", "label"): (
        "40.8", "74.9", "61.0", "84.6", "31.2", "48.1", "58.7", "45.2", "51.2", "23.5", "67.5", "21.4", "51.6",
    ),
    ("IN-21K w/o IN-1K", "caption"): (
        "47.8", "81.9", "63.3", "87.3", "32.4", "52.9", "62.8", "57.0", "50.6", "25.6", "80.1", "26.2", "56.4",
    ),
}  # fmt: skip

# Table 5: ImageNet, -V2, -R and Sketch, by (training data, prefix at the test).
TABLE_5_SETS = ("IN", "IN-V2", "IN-R", "IN-S")
TABLE_5: dict[tuple[str, str], tuple[str, ...]] = {
    ("IN-1K", "N/A"): ("72.1", "59.3", "19.9", "17.8"),
    ("IN-1K + CC-12M", "N/A"): ("68.7", "57.4", "27.7", "27.8"),
    ("IN-1K + CC-12M", "caption"): ("71.5", "60.2", "31.8", "30.7"),
    ("IN-1K + CC-12M", "label"): ("75.4", "63.3", "29.2", "27.9"),
    ("IN-21K", "N/A"): ("47.1", "41.1", "20.1", "16.1"),
    ("IN-21K + CC-12M", "N/A"): ("56.8", "48.6", "29.4", "30.6"),
    ("IN-21K + CC-12M", "caption"): ("67.3", "57.5", "35.2", "34.6"),
    ("IN-21K + CC-12M", "label"): ("71.4", "61.1", "32.1", "32.2"),
}

# Table 7: original names (top-1, top-5) and synonyms, by (labels, trained on synonyms, prefix at the test).
TABLE_7: dict[tuple[str, bool, str], tuple[str, ...]] = {
    ("IN-1K", False, "N/A"): ("69.3", "89.3", "31.2", "49.5"),
    ("IN-1K", False, "label"): ("75.0", "92.9", "38.3", "54.8"),
    ("IN-1K", False, "caption"): ("71.4", "91.6", "36.6", "56.7"),
    ("IN-21K", False, "N/A"): ("54.5", "83.2", "23.1", "43.9"),
    ("IN-21K", False, "label"): ("69.9", "92.4", "32.1", "53.7"),
    ("IN-21K", False, "caption"): ("65.3", "90.6", "33.5", "56.9"),
    ("IN-21K", True, "label"): ("54.4", "78.6", "70.8", "92.8"),
    ("IN-21K", True, "caption"): ("54.5", "82.6", "59.0", "86.1"),
}

# Table 8: I2T@1, I2T@5, T2I@1, T2I@5 on CC3M, then on COCO, by prefix at the test.
TABLE_8_SETS = ("CC3M", "COCO")
TABLE_8: dict[str, tuple[str, ...]] = {
    "N/A": ("21.8", "47.4", "21.0", "45.7", "23.9", "49.5", "18.7", "43.2"),
    "label": ("13.1", "31.3", "8.1", "21.8", "17.2", "38.1", "16.8", "37.7"),
    "caption": ("22.6", "47.5", "21.6", "46.1", "24.7", "49.7", "19.7", "43.9"),
}

# Table 9: IN-1K and eleven sets, by (labels, captions, objective, batch size, epochs); all with the prefix.
TABLE_9: dict[tuple[str, str, str, int, int], tuple[str, str]] = {
    ("IN-21K", "CC-12M", "CLIP", 1024, 15): ("67.3", "57.8"),
    ("IN-21K", "CC-12M", "CLIP", 1024, 30): ("69.1", "58.3"),
    ("IN-22K", "CC-15M", "CLIP", 1024, 15): ("69.3", "58.5"),
    ("IN-22K", "CC-15M", "CLIP", 4096, 15): ("71.1", "59.5"),
    ("IN-22K", "CC-15M", "CLIP", 4096, 30): ("72.2", "59.8"),
    ("IN-22K", "CC-15M", "UniCL", 1024, 15): ("69.7", "58.5"),
    ("IN-22K", "CC-15M", "UniCL", 4096, 15): ("70.3", "60.4"),
    ("IN-22K", "CC-15M", "UniCL", 4096, 30): ("73.9", "58.9"),
}

FIGURES = {
    3: "with the label prefix the first layer looks at the class name alone; with the caption prefix, and without "
    "prefixes, at other nouns too",
    4: "prompts read with different prefixes lie apart; the label prefix has less spread within a class and more "
    "between classes",
    5: "with the label prefix at the class name alone; otherwise at the template's noun too",
    6: "a real caption: with the caption prefix at several words in many layers, with the label prefix at few",
    7: "as Figure 4, for all classes of ImageNet",
    8: "images of the two sources lie apart, with and without prefixes",
    9: "prompts and captions mix in a model without prefixes, and lie apart with each read by its own",
}
