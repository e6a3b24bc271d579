"""The page: a memory in the browser, searched, sorted and taught by clicks."""
