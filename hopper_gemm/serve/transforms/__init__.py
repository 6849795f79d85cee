"""What torch's transforms ask of the operators: derivatives, batches, shards."""
