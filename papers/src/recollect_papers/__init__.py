"""The four papers' tables and figures, and the generated worlds they can be run on."""
