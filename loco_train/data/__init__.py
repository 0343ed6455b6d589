"""Text to tokens to batches: tokenizer, readers, Megatron indexed datasets, and a loader that resumes to the sample."""
