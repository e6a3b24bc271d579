"""Places that keep the rows of an index: RAM, Lance on disk, or Milvus."""
