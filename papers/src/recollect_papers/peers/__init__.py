"""Published few-shot methods, for comparison with those of recollect."""
