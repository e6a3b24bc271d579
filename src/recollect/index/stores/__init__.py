"""Storage backends of an index: RAM, Lance on disk, or Milvus."""
