"""Rules of the operators for torch's transforms: derivatives, batches, shards."""
