"""Tests of corpora, tokenizers and batches."""
