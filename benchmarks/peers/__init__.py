"""The programs that ours is measured against, each behind the same few lines of JSON."""
