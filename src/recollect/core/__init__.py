"""What every room shares: types, errors, safe files, seeds, progress."""
